"""The quality rules of FineWeb: Penedo et al. 2024, arXiv 2406.17557, section 3.6, and datatrove's filter.

Lines of white space alone are no lines. The thresholds removed most at least harm in the paper's ablations.
"""

from pathlib import Path

import numpy as np

from mtl_prep.curate import characters
from mtl_prep.curate.batch import Batch, Mask
from mtl_prep.curate.step import Count, LocalStep, Share, Verdict


class FineWeb(LocalStep):
    """The thresholds of the paper; `false` switches a rule off."""

    min_ended_lines: Share = 0.12  # lines whose last character ends a sentence
    max_short_lines: Share = 0.67
    short_line: Count = 30  # characters of a short line at most
    max_repeated_line_characters: Share = 0.01  # of all but line ends
    max_lines_per_word: Share = 0.3

    def begin(self, base: Path) -> "FineWebJudge":
        """The step at work."""
        return FineWebJudge(self)


class FineWebJudge:
    """The rules at work."""

    def __init__(self, settings: FineWeb) -> None:
        self._settings = settings

    def judge(self, batch: Batch, wanted: Mask) -> Verdict:
        """The first rule broken is the reason."""
        verdict, rules = Verdict(len(batch)), self._settings
        filled = batch.content.lengths > 0
        lines = batch.lines.where(filled)
        verdict.remove(lines.counts == 0, "empty")
        if rules.min_ended_lines:
            last = characters.kinds()[batch.codes[lines.stops - 1]]
            ended = lines.sums((last & np.uint8(characters.ENDING)) != 0)
            verdict.remove(ended < rules.min_ended_lines * lines.counts, "few lines end a sentence")
        if rules.max_short_lines:
            short = lines.sums(lines.lengths <= rules.short_line)
            verdict.remove(short > rules.max_short_lines * lines.counts, "short lines")
        line_ends = batch.lines.counts - 1
        if rules.max_repeated_line_characters:
            repeated = batch.later(batch.line_hashes[filled], lines)
            inside, all_of_them = lines.sums(lines.lengths * repeated), batch.lengths - line_ends
            verdict.remove(
                inside > rules.max_repeated_line_characters * all_of_them, "characters in repeated lines"
            )
        if rules.max_lines_per_word:
            verdict.remove(line_ends > rules.max_lines_per_word * batch.words.counts, "list")
        return verdict
