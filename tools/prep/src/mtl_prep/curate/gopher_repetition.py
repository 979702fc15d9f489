"""The repetition rules of Gopher: Rae et al. 2021, arXiv 2112.11446, appendix A1.1, table A1.

Shares of characters are of the whole text. A line is what stands between line ends, a paragraph what stands
between empty lines, a word what stands between white space; empty lines are no lines. The n-grams of the
second kind are counted as datatrove does it: none that overlaps one that was counted.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from pydantic import Field

from mtl_prep.curate.batch import Batch, Integers, Mask, Spans
from mtl_prep.curate.repeats import Grams, later, repeated_grams
from mtl_prep.curate.step import LocalStep, Share, Verdict

PLACE_BITS = 40


class GopherRepetition(LocalStep):
    """The thresholds of table A1; `false` switches a rule off, a missing n its n-gram rule."""

    max_repeated_lines: Share = 0.30
    max_repeated_paragraphs: Share = 0.30
    max_repeated_line_characters: Share = 0.20
    max_repeated_paragraph_characters: Share = 0.20
    max_top_n_grams: dict[int, float] = Field(default_factory=lambda: {2: 0.20, 3: 0.18, 4: 0.16})
    max_repeated_n_grams: dict[int, float] = Field(
        default_factory=lambda: {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    )

    def begin(self, base: Path) -> "GopherRepetitionJudge":
        """The step at work."""
        return GopherRepetitionJudge(self)


def _gram_characters(grams: Grams, words: Spans) -> Integers:
    """(grams,) characters of the words of each, without what stands between them."""
    total = words.before
    return np.asarray(total[grams.places + grams.n] - total[grams.places])


def _first_characters(n: int, words: Spans) -> Integers:
    """(documents,) characters of the first n-gram."""
    enough = words.counts >= n
    total = words.before
    starts = words.offsets[:-1][enough]
    sizes = np.zeros(len(enough), np.int64)
    sizes[enough] = total[starts + n] - total[starts] + n - 1
    return sizes


def top_characters(grams: Grams, words: Spans) -> Integers:
    """(documents,) characters in the n-gram that occurs most often, all its occurrences together.

    One blank between words is counted. Of several such n-grams it is the first one.
    """
    first, counts = grams.runs.first, grams.runs.counts
    # the larger count, and of equal ones the earlier place
    scores = counts << PLACE_BITS | ((1 << PLACE_BITS) - 1 - first)
    best = np.zeros(len(words.counts), np.int64)
    np.maximum.at(best, words.document[grams.places[first]], scores)
    having = np.flatnonzero(best)
    first = (1 << PLACE_BITS) - 1 - (best[having] & ((1 << PLACE_BITS) - 1))
    top = _first_characters(grams.n, words)
    top[having] = (_gram_characters(grams, words)[first] + grams.n - 1) * (best[having] >> PLACE_BITS)
    return top


def covered_characters(grams: Grams, words: Spans) -> Integers:
    """(documents,) characters of the words that are in any repeated n-gram: at least the repeated ones."""
    stops = grams.places + grams.n
    starts = grams.places.copy()
    starts[1:] = np.maximum(starts[1:], stops[:-1])  # what the one before covers is counted
    inside = words.before[stops] - words.before[starts]
    found = np.bincount(words.document[grams.places], inside, minlength=len(words.counts))
    return found.astype(np.int64)


def _repeated_characters(grams: Grams, sizes: Integers, start: int, stop: int) -> int:
    """Characters of those n-grams start:stop of a document that repeat one before and overlap none."""
    seen: set[int] = set()
    free = total = 0
    places, hashes = grams.places[start:stop].tolist(), grams.hashes[start:stop].tolist()
    for place, value, size in zip(places, hashes, sizes[start:stop].tolist(), strict=True):
        if place < free:
            continue
        if value in seen:
            total += size
            free = place + grams.n
        seen.add(value)
    return total


def repeated_characters(grams: Grams, words: Spans, documents: Iterable[int]) -> Integers:
    """(documents,) characters in repeated n-grams, of some documents only."""
    found = np.zeros(len(words.counts), np.int64)
    bounds = np.searchsorted(grams.places, words.offsets)
    sizes = _gram_characters(grams, words)
    for document in documents:
        found[document] = _repeated_characters(grams, sizes, bounds[document], bounds[document + 1])
    return found


class GopherRepetitionJudge:
    """The rules at work."""

    def __init__(self, settings: GopherRepetition) -> None:
        self._settings = settings

    def judge(self, batch: Batch, wanted: Mask) -> Verdict:
        """Paragraphs, lines, then n-grams by n; the first rule broken is the reason."""
        verdict, rules = Verdict(len(batch)), self._settings
        lines = batch.lines.where(batch.lines.lengths > 0)
        limits = (rules.max_repeated_paragraphs, rules.max_repeated_paragraph_characters)
        self._judge_pieces(batch, verdict, batch.paragraphs, "paragraph", *limits)
        self._judge_pieces(
            batch, verdict, lines, "line", rules.max_repeated_lines, rules.max_repeated_line_characters
        )
        self._judge_grams(batch, wanted, verdict)
        return verdict

    def _judge_pieces(
        self, batch: Batch, verdict: Verdict, pieces: Spans, what: str, share: Share, characters: Share
    ) -> None:
        repeated = later(batch.hashes.of(pieces.starts, pieces.stops), pieces)
        if share:
            verdict.remove(pieces.sums(repeated) > share * pieces.counts, f"repeated {what}s")
        if characters:
            inside = pieces.sums(pieces.lengths * repeated)
            verdict.remove(inside > characters * batch.lengths, f"characters in repeated {what}s")

    def _judge_grams(self, batch: Batch, wanted: Mask, verdict: Verdict) -> None:
        top, repeated = self._settings.max_top_n_grams, self._settings.max_repeated_n_grams
        last = max([*top, *repeated], default=1)
        words = batch.words
        going_on = wanted & (verdict.reason == 0)
        for grams in repeated_grams(batch.word_hashes, words, going_on, last):
            n = grams.n
            if n in top:
                verdict.remove(top_characters(grams, words) > top[n] * batch.lengths, f"top {n}-gram")
            covered = covered_characters(grams, words)
            if n in repeated:
                limits = repeated[n] * batch.lengths
                inside = repeated_characters(grams, words, np.flatnonzero(going_on & (covered > limits)))
                verdict.remove(inside > limits, f"repeated {n}-grams")
            going_on &= verdict.reason == 0
            if n >= max(top, default=0):  # longer n-grams cover no more
                least = min((share for m, share in repeated.items() if m > n), default=0.0)
                going_on &= covered > least * batch.lengths
