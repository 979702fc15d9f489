"""The repetition rules of Gopher: Rae et al. 2021, arXiv 2112.11446, appendix A1.1, table A1.

Shares of characters are of the whole text. A line is what stands between line ends, a paragraph what stands
between empty lines, a word what stands between white space; empty lines are no lines. The n-grams of the
second kind are counted as datatrove does it: none that overlaps one that was counted.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from mtl_prep.curate.batch import Batch, Hash, Mask, Spans, compiled
from mtl_prep.curate.step import LocalStep, Share, Verdict


def _none_for_false(value: Any) -> Any:
    return {} if value is False else value


Shares = Annotated[dict[int, float], BeforeValidator(_none_for_false)]  # n -> share


class GopherRepetition(LocalStep):
    """The thresholds of table A1; `false` switches a rule off, a missing n its n-gram rule."""

    max_repeated_lines: Share = 0.30
    max_repeated_paragraphs: Share = 0.30
    max_repeated_line_characters: Share = 0.20
    max_repeated_paragraph_characters: Share = 0.20
    max_top_n_grams: Shares = Field(default_factory=lambda: {2: 0.20, 3: 0.18, 4: 0.16})
    max_repeated_n_grams: Shares = Field(
        default_factory=lambda: {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    )

    def begin(self, base: Path) -> "GopherRepetitionJudge":
        """The step at work."""
        return GopherRepetitionJudge(self)


class GopherRepetitionJudge:
    """The rules at work."""

    def __init__(self, settings: GopherRepetition) -> None:
        self._settings = settings

    def judge(self, batch: Batch, wanted: Mask) -> Verdict:
        """Paragraphs, lines, then n-grams by n; the first rule broken is the reason."""
        verdict, rules = Verdict(len(batch)), self._settings
        filled = batch.lines.lengths > 0
        self._judge_pieces(
            batch,
            verdict,
            batch.paragraphs,
            batch.hashes_of(batch.paragraphs),
            "paragraph",
            rules.max_repeated_paragraphs,
            rules.max_repeated_paragraph_characters,
        )
        self._judge_pieces(
            batch,
            verdict,
            batch.lines.where(filled),
            batch.line_hashes[filled],
            "line",
            rules.max_repeated_lines,
            rules.max_repeated_line_characters,
        )
        self._judge_grams(batch, wanted, verdict)
        return verdict

    def _judge_pieces(
        self,
        batch: Batch,
        verdict: Verdict,
        pieces: Spans,
        hashes: Hash,
        what: str,
        share: Share,
        characters: Share,
    ) -> None:
        repeated = batch.later(hashes, pieces)
        if share:
            verdict.remove(pieces.sums(repeated) > share * pieces.counts, f"repeated {what}s")
        if characters:
            inside = pieces.sums(pieces.lengths * repeated)
            verdict.remove(inside > characters * batch.lengths, f"characters in repeated {what}s")

    def _judge_grams(self, batch: Batch, wanted: Mask, verdict: Verdict) -> None:
        most, repeated = self._settings.max_top_n_grams, self._settings.max_repeated_n_grams
        words, wanted = batch.words, wanted & (verdict.reason == 0)
        top, again = compiled("repeats").repeated_characters(
            batch.word_hashes, words.before, words.offsets, wanted, max([*most, *repeated], default=1)
        )
        for n in range(2, len(top)):
            if n in most:
                verdict.remove(top[n] > most[n] * batch.lengths, f"top {n}-gram")
            if n in repeated:
                verdict.remove(again[n] > repeated[n] * batch.lengths, f"repeated {n}-grams")
