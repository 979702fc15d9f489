"""Tokenizing as Megatron's preprocess_data.py does it: a JSON line is a task, lists of ids go through a pipe.

python prep_pool.py corpus.jsonl out.bin --tokenizer tokenizer.json --workers 2
python prep_pool.py corpus.jsonl out.bin --ranks gpt2.tiktoken --workers 2
"""

import argparse
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np

GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
EOD = 50256
CHUNK = 32  # lines a task


class Encoder:
    """What each process of the pool keeps."""

    encode: Callable[[str], list[int]]


def start(kind: str, path: str) -> None:
    """Loads the tokenizer in a process."""
    if kind == "tokenizer":
        from tokenizers import Tokenizer

        library = Tokenizer.from_file(path)
        Encoder.encode = staticmethod(lambda text: library.encode(text).ids)
    else:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        ranks = load_tiktoken_bpe(path)
        encoding = tiktoken.Encoding("gpt2", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={})
        Encoder.encode = staticmethod(encoding.encode_ordinary)


def one(line: str) -> list[int]:
    """The ids of one line's text and the end of the document."""
    return [*Encoder.encode(json.loads(line)["text"]), EOD]


def main() -> None:
    """Writes the ids of all lines, uint16, end to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer")
    parser.add_argument("--ranks")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    kind = "tokenizer" if options.tokenizer else "ranks"
    arguments = (kind, options.tokenizer or options.ranks)
    with (
        multiprocessing.Pool(options.workers, start, arguments) as pool,
        options.corpus.open(encoding="utf-8") as lines,
        options.out.open("wb") as out,
    ):
        for ids in pool.imap(one, lines, CHUNK):
            out.write(np.array(ids, dtype=np.uint16).tobytes())


if __name__ == "__main__":
    main()
