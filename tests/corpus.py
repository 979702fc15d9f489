"""Real text, small tokenizers and small bins for tests: the interpreter's own library, no download."""

import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from mtl_common import bins

END = "<|endoftext|>"
EMOJI = "I \u2764\ufe0f \U0001f468\u200d\U0001f469\u200d\U0001f467 na\u00efve \u4f60\u597d, \u0645\u0631!"


@cache
def stdlib_texts(count: int = 40) -> tuple[str, ...]:
    """The source text of some modules of the standard library, the same ones every time."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:count]
    return tuple(file.read_text("utf-8") for file in files)


def train_bpe(path: Path, vocab_size: int = 1024) -> Path:
    """Writes a byte-level BPE tokenizer.json of GPT-2's kind, trained on the standard library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(stdlib_texts(15), trainer)
    tokenizer.save(str(path))
    return path


def make_bins(
    directory: Path,
    documents: Sequence[Sequence[int]],
    vocab_size: int,
    *,
    eod: int = 0,
    shard_tokens: int = 1 << 20,
    loss: Sequence[Sequence[int]] | None = None,
    sentences: Sequence[Sequence[int]] | None = None,
) -> Path:
    """Writes finished bins of documents given as ids without the end; the tokenizer directory stays empty.

    `loss` has a number for every id, the end's too; `sentences` say where they begin in each document.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / bins.TOKENIZER).mkdir()
    dtype = bins.dtype_for(vocab_size)
    shards: list[bins.Shard] = []
    group: list[bins.Batch] = []

    def close() -> None:
        if group:
            shards.append(bins.write_shard(directory / f"shard-{len(shards):05d}.arrow", dtype, group))
            group.clear()

    for record, ids in enumerate(documents):
        if sum(len(batch.ids) for batch in group) + len(ids) + 1 > shard_tokens:
            close()
        array = np.array([*ids, eod], dtype)
        offsets, source = np.array([0, len(array)], np.int64), np.zeros(1, np.uint32)
        counted = np.array(loss[record], np.uint8) if loss else None
        starts = np.array(sentences[record], np.uint32) if sentences else None
        kept = None if starts is None else bins.Sentences(starts, np.array([0, len(starts)], np.int64))
        place = np.array([record], np.uint64)
        group.append(bins.Batch(array, offsets, source, place, loss=counted, sentences=kept))
    close()
    count, tokens = len(documents), sum(shard.tokens for shard in shards)
    only = bins.Source(path="x", size=1, xxh3="", records=count, documents=count, bad={}, repaired={})
    facts = bins.TokenizerFacts(fingerprint="none", vocab_size=vocab_size, eod=eod, engine="none")
    bins.write_manifest(
        directory,
        bins.Manifest(
            tool="tests",
            dtype=dtype,
            documents=count,
            tokens=tokens,
            tokenizer=facts,
            options={},
            shards=tuple(shards),
            sources=(only,),
        ),
    )
    return directory
