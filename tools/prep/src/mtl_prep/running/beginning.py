"""What is looked at before the work: how documents end, what the first ones hold, which library is exact."""

from collections import Counter
from dataclasses import replace

from mtl_common.errors import DataError, UsageError
from mtl_common.tokenizers import Tokenizer
from mtl_prep.corpus.counts import told
from mtl_prep.corpus.kinds import first_lines
from mtl_prep.corpus.parsing import keys_of
from mtl_prep.corpus.units import Reading, documents

CHECKED_DOCUMENTS = 200
CHECKED_CHARACTERS = 2000  # of each; the reference library is slow
CHECKED_BLOCKS = 64  # of a megabyte of text, or files that are smaller, after which the rest is not read
HOPELESS_RECORDS = 10_000  # bad records without a document among them, after which the rest is not read


def end_of_document(tokenizer: Tokenizer, name: str | None) -> int:
    """The id that ends documents; raises UsageError when there is none, or when text could spell it."""
    eod = tokenizer.eod if name is None else tokenizer.token_id(name)
    if name is not None and eod is None:
        raise UsageError(f"--eod {name} is no token of {tokenizer.path}")
    if eod is None:
        raise UsageError(f"{tokenizer.path} names no end-of-document token; choose one with --eod TOKEN")
    if eod not in tokenizer.facts.specials:
        raise UsageError(
            f"token {eod} of {tokenizer.path} is no special token, so it cannot end documents; see --eod"
        )
    return eod


def _no_documents(reading: Reading, reasons: Counter[str]) -> DataError:
    """The error that says what the first records hold instead."""
    source = reading.sources[0]
    lines = first_lines(source, 1) if source.kind == "lines" else []
    keys = keys_of(lines[0]) if lines else []
    asked = f"; in {source.name} {reading.rules.key.instead(keys)}"
    hint = asked if keys and reasons.keys() & reading.rules.key.absences else ""
    return DataError(f"no documents in the corpus, its records are: {told(reasons) or 'none'}{hint}")


def sample(reading: Reading) -> list[str]:
    """The first documents, some of each, as far as a corpus begins with some.

    Raises DataError when all records give none, or many are bad.
    """
    texts: list[str] = []
    reasons, bad = Counter[str](), 0
    for number, found in enumerate(documents(replace(reading, part_bytes=1 << 20))):
        if number == CHECKED_BLOCKS:
            return texts
        texts += [text[:CHECKED_CHARACTERS] for text in found.texts[: CHECKED_DOCUMENTS - len(texts)]]
        if found.giant is not None:
            texts.append(next(found.giant.pieces())[:CHECKED_CHARACTERS])
        reasons.update(found.reasons())
        bad += len(found.bad)
        if len(texts) >= CHECKED_DOCUMENTS or (bad >= HOPELESS_RECORDS and not texts):
            break
    if not texts:
        raise _no_documents(reading, reasons)
    return texts
