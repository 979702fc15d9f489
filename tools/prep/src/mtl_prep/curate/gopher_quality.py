"""The quality rules of Gopher: Rae et al. 2021, arXiv 2112.11446, appendix A1.1, "Quality Filtering".

Words are what stands between white space. A word of punctuation alone does not count for how many there are
and how long they are; in this and in the order of the rules we follow datatrove's GopherQualityFilter.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtl_prep.curate.batch import Batch, Integers, Mask, compiled
from mtl_prep.curate.step import Count, LocalStep, Share, Verdict

ELLIPSES, BULLETS = ("...", "\u2026"), ("\u2022", "-")


class GopherQuality(LocalStep):
    """The thresholds of the paper; `false` switches a rule off."""

    min_words: Count = 50
    max_words: Count = 100_000
    min_mean_word: Share = 3.0  # characters
    max_mean_word: Share = 10.0
    max_symbols: Share = 0.1  # `#` a word, and ellipses a word
    max_bullet_lines: Share = 0.9
    max_ellipsis_lines: Share = 0.3
    min_letter_words: Share = 0.8  # words with a letter
    min_stop_words: Count = 2  # different ones
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")

    def begin(self, base: Path) -> "GopherQualityJudge":
        """The step at work."""
        return GopherQualityJudge(self)


def _counts(batch: Batch, *pieces: str) -> Integers:
    """(documents,) how often any of these stands in each, none overlapping another."""
    return np.array([sum(map(text.count, pieces)) for text in batch.texts], np.int64)


def _line_rules(batch: Batch) -> tuple[Integers, Integers, Integers]:
    """(documents,) lines, those that begin with a bullet, those that end in an ellipsis."""
    codes, content, lines = batch.codes, batch.content, batch.lines
    filled = content.lengths > 0
    bullets = filled & np.any([codes[content.starts] == ord(bullet) for bullet in BULLETS], 0)
    ends = np.zeros(len(filled), bool)
    for ellipsis in ELLIPSES:
        long = np.flatnonzero(content.lengths >= len(ellipsis))
        first = content.stops[long] - len(ellipsis)
        ends[long] |= np.all([codes[first + i] == ord(one) for i, one in enumerate(ellipsis)], 0)
    count = lines.counts - (lines.lengths[lines.offsets[1:] - 1] == 0)  # none after a last line end
    return count, lines.sums(bullets), lines.sums(ends)


class GopherQualityJudge:
    """The rules at work."""

    def __init__(self, settings: GopherQuality) -> None:
        self._settings = settings
        self._stop_words = Batch(settings.stop_words).word_hashes

    def judge(self, batch: Batch, wanted: Mask) -> Verdict:
        """Rules in the order of the paper; the first one broken is the reason."""
        verdict = Verdict(len(batch))
        with np.errstate(divide="ignore", invalid="ignore"):  # of no words nothing is a share
            sums = compiled("loops").word_sums(batch.words.lengths, batch.word_kinds, batch.words.offsets)
            real, characters, letters = sums
            self._judge_words(batch, real, characters / real, verdict)
            self._judge_lines(batch, verdict)
            self._judge_kinds(batch, letters, verdict)
        return verdict

    def _judge_words(self, batch: Batch, real: Integers, mean: NDArray[np.float64], verdict: Verdict) -> None:
        rules, words = self._settings, batch.words
        if rules.min_words:
            verdict.remove(real < rules.min_words, "too few words")
        if rules.max_words:
            verdict.remove(real > rules.max_words, "too many words")
        if rules.min_mean_word:
            verdict.remove(mean < rules.min_mean_word, "words too short")
        if rules.max_mean_word:
            verdict.remove(mean > rules.max_mean_word, "words too long")
        if rules.max_symbols:
            verdict.remove(_counts(batch, "#") / words.counts > rules.max_symbols, "too many #")
            ellipses = _counts(batch, *ELLIPSES)
            verdict.remove(ellipses / words.counts > rules.max_symbols, "too many ellipses")

    def _judge_lines(self, batch: Batch, verdict: Verdict) -> None:
        rules = self._settings
        count, bullets, ends = _line_rules(batch)
        if rules.max_bullet_lines:
            verdict.remove(bullets / count > rules.max_bullet_lines, "too many bullets")
        if rules.max_ellipsis_lines:
            verdict.remove(ends / count > rules.max_ellipsis_lines, "too many lines end in an ellipsis")

    def _judge_kinds(self, batch: Batch, letters: Integers, verdict: Verdict) -> None:
        rules, words = self._settings, batch.words
        if rules.min_letter_words:
            verdict.remove(letters / words.counts < rules.min_letter_words, "too few words with a letter")
        if rules.min_stop_words:
            different = compiled("loops").different(batch.word_hashes, words.offsets, self._stop_words)
            verdict.remove(different < rules.min_stop_words, "too few stop words")
