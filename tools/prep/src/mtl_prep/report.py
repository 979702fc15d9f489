"""What the commands say when they are done: a few aligned lines that add up."""

from collections import Counter

from mtl_common.log import duration, quantity
from mtl_prep.corpus.counts import told
from mtl_prep.corpus.source import OTHER
from mtl_prep.encoding.engine import COMPARED, LOST, UNKNOWN
from mtl_prep.running.tally import BAD
from mtl_prep.running.tokenize import Outcome, Part, Request
from mtl_prep.summary import lines, what
from mtl_prep.vocabulary.compression import table
from mtl_prep.vocabulary.train import Trained


def _watched(outcome: Outcome) -> list[tuple[str, str]]:
    """What was seen of the vocabulary on the way: comparisons, and text that it cannot say."""
    facts, library = outcome.tokenizer.facts, outcome.tokenizer.library
    compared, lost, unknown = (outcome.watched.get(name, 0) for name in (COMPARED, LOST, UNKNOWN))
    bytes_lost = f"{lost:,} bytes of {facts.lost_bytes.hex(' ')}, for which the vocabulary has no token"
    return [
        ("compared", f"{compared:,} pieces of documents with {library}: the same ids" if compared else ""),
        ("lost", bytes_lost if facts.lost_bytes else ""),
        ("unknown", f"{unknown:,} tokens stand for text that the vocabulary cannot say" if unknown else ""),
        (
            "not heeded",
            f"{', '.join(facts.unheeded)}: documents are encoded as they are" if facts.unheeded else "",
        ),
    ]


def _kinds(outcome: Outcome) -> str:
    """`1,204 Python, 33 Markdown`: documents by the language of their files; nothing where none has any."""
    languages = {source.name: source.language for source in outcome.corpus.sources}
    counts: Counter[str] = Counter()
    for source in outcome.manifest.sources:
        counts[languages.get(source.path, OTHER)] += source.documents
    return "" if set(counts) <= {OTHER} else told(counts)


def tokenized(outcome: Outcome, request: Request, seconds: float) -> str:
    """The summary of `tokenize`."""
    manifest, corpus = outcome.manifest, outcome.corpus
    if outcome.already:
        state = "finished before from files of these names and sizes; remove it to make it anew"
        return lines([(str(request.out), state), *what(manifest)])
    bad = request.out / BAD
    per_token = outcome.characters / max(manifest.tokens - manifest.documents, 1)
    return lines(
        [
            (
                "read",
                f"{len(corpus.sources):,} files, {quantity(corpus.size, 'bytes')} in {duration(seconds)}",
            ),
            ("passed over", told(corpus.skipped)),
            ("kinds", _kinds(outcome)),
            *what(manifest),
            ("bad ones", f"listed in {bad}, with what they hold" if bad.stat().st_size else ""),
            ("text", f"{outcome.characters:,} characters, {per_token:.2f} a token"),
            *_watched(outcome),
        ]
    )


def part(done: Part, seconds: float) -> str:
    """The summary of one task of an array job."""
    share = f"{done.share.number} of {done.share.of}, {quantity(done.size, 'bytes')} of the corpus"
    work = (
        f"{done.documents:,} documents in {duration(seconds)}" if done.tasks else "all of it was done before"
    )
    return lines([("task", share), ("now", work)])


def trained(result: Trained) -> str:
    """The summary of `train-tokenizer`."""
    short = f" of {result.asked:,} asked for: the sample has no more to learn"
    part = f", {result.share:.1%} of the corpus; --sample takes more" if result.share < 1 else ""
    rows = [
        ("learned from", f"{result.documents:,} documents, {result.characters:,} characters{part}"),
        ("vocabulary", f"{result.vocab_size:,} entries{short if result.vocab_size < result.asked else ''}"),
        ("memory", f"{quantity(result.peak, 'bytes')} at most"),
        ("written", str(result.path)),
    ]
    return f"{lines(rows)}\ncompression of some of the text it learned from\n{table(result.compression)}"
