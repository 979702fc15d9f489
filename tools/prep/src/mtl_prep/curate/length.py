"""Limits on how long documents are, and on text that no tokenizer can split."""

from pathlib import Path
from typing import Self

import numpy as np
from pydantic import model_validator

from mtl_prep.curate.batch import Batch, Integers, Mask, compiled
from mtl_prep.curate.step import Count, LocalStep, Verdict


class Length(LocalStep):
    """Limits, each with its own switch; `false` is no limit.

    `max_run` is for long runs without white space, which tokenizers take seconds or more memory for; 10,000
    characters are three times the longest URL in use and a hundredth of what is felt.
    """

    min_characters: Count = False
    max_characters: Count = False
    min_words: Count = False
    max_words: Count = False
    min_lines: Count = False
    max_lines: Count = False
    max_run: Count = 10_000

    @model_validator(mode="after")
    def _limits_leave_something(self) -> Self:
        for what in ("characters", "words", "lines"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low and high and low > high:
                raise ValueError(f"min_{what} is larger than max_{what}, so no document could stay")
        return self

    def begin(self, base: Path) -> "LengthJudge":
        """The step at work."""
        return LengthJudge(self)


def _size(batch: Batch, what: str) -> Integers:
    """(documents,) how long each is, in characters, words, or lines with something on them."""
    if what == "characters":
        return batch.lengths
    return batch.words.counts if what == "words" else batch.lines.where(batch.content.lengths > 0).counts


def _longest_words(batch: Batch) -> Integers:
    """(documents,) characters of the longest word."""
    return np.asarray(compiled("loops").largest(batch.words.lengths, batch.words.offsets))


class LengthJudge:
    """The limits at work."""

    def __init__(self, settings: Length) -> None:
        self._settings = settings

    def judge(self, batch: Batch, wanted: Mask) -> Verdict:
        """The first limit broken is the reason."""
        verdict, rules = Verdict(len(batch)), self._settings
        for what in ("characters", "words", "lines"):
            low, high = getattr(rules, f"min_{what}"), getattr(rules, f"max_{what}")
            if low:
                verdict.remove(_size(batch, what) < low, f"too few {what}")
            if high:
                verdict.remove(_size(batch, what) > high, f"too many {what}")
        if rules.max_run:
            verdict.remove(_longest_words(batch) > rules.max_run, "long run without white space")
        return verdict
