"""The rules of C4: Raffel et al. 2020, JMLR 21/140, section 2.2, and c4_utils.py of tensorflow_datasets.

Lines that do not end in punctuation, have few words, a very long one, or speak of JavaScript or cookies are
taken out of the text; documents with filler text or curly brackets, or with few sentences left, go. Code has
neither sentences nor a lack of brackets: leave it out with `only` or `unless`.
"""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtl_prep.curate import characters
from mtl_prep.curate.batch import Batch, Integers, Mask
from mtl_prep.curate.step import Count, LocalStep, Verdict

ENDS = tuple(map(ord, ".?!\"'"))
SENTENCE_ENDS = tuple(map(ord, ".?!"))
QUOTES = tuple(map(ord, "\"')]"))
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
POLICIES = (
    b"terms of use",
    b"privacy policy",
    b"cookie policy",
    b"uses cookies",
    b"use of cookies",
    b"use cookies",
)


class C4(LocalStep):
    """The thresholds of the paper and its code; `false` switches a rule off."""

    ended_lines: bool = True  # keep lines that end in . ? ! " or ', but not in ...
    min_line_words: Count = 3
    max_word: Count = 1000  # characters
    javascript: bool = True  # take out lines with the word
    policies: bool = True  # take out lines on cookies and terms of use
    citations: bool = True  # take out [1], [edit] and [citation needed]
    lorem_ipsum: bool = True  # documents with it go
    curly_bracket: bool = True
    min_sentences: Count = 5

    def begin(self, base: Path) -> "C4Judge":
        """The step at work."""
        return C4Judge(self)


def _found(batch: Batch, phrase: bytes) -> Integers:
    """Where a phrase stands, in capitals or small letters."""
    places, at = [], batch.plain.find(phrase)
    while at >= 0:
        places.append(at)
        at = batch.plain.find(phrase, at + 1)
    return np.array(places, np.int64)


def _lines_with(batch: Batch, phrases: tuple[bytes, ...]) -> Mask:
    """(lines,) which ones have one of the phrases."""
    mask = np.zeros(len(batch.lines.starts), bool)
    for phrase in phrases:
        mask[np.searchsorted(batch.lines.stops, _found(batch, phrase))] = True
    return mask


def _among(codes: NDArray[np.uint32], few: tuple[int, ...]) -> Mask:
    """(n,) which characters are one of a few; faster than numpy's isin for so few."""
    return np.asarray(np.any([codes == one for one in few], 0))


def _ended(batch: Batch) -> Mask:
    """(lines,) which ones end in punctuation that is no ellipsis."""
    codes, content = batch.codes, batch.content
    last = content.stops - 1
    ended = _among(codes[last], ENDS) & (content.lengths > 0)
    three = [codes[np.maximum(last - before, 0)] == ord(".") for before in range(3)]
    return np.asarray(ended & ~(np.all(three, 0) & (content.lengths >= 3)))


def _long_words(batch: Batch, longest: int) -> Mask:
    """(lines,) which ones have a longer word."""
    mask = np.zeros(len(batch.lines.starts), bool)
    starts = batch.words.starts[batch.words.lengths > longest]
    mask[np.searchsorted(batch.lines.stops, starts)] = True
    return mask


def sentences(batch: Batch) -> Integers:
    """(lines,) about how many sentences each has: 1, and 1 for every word inside that ends one.

    Such a word ends in . ? or !, perhaps with a quote or bracket after it, and no small letter follows it.
    """
    codes, words = batch.codes, batch.words
    last, size = words.stops - 1, words.lengths
    inner = np.where(_among(codes[last], QUOTES) & (size > 1), last - 1, last)
    ends = _among(codes[inner], SENTENCE_ENDS)
    small = characters.small_letters()[codes[words.starts]]
    ends[:-1] &= ~small[1:]
    line = np.repeat(np.arange(len(batch.words_a_line)), batch.words_a_line)
    follows = np.append(line[1:] == line[:-1], False)
    return np.bincount(line[ends & follows], minlength=len(batch.lines.starts)) + 1


class C4Judge:
    """The rules at work."""

    def __init__(self, settings: C4) -> None:
        self._settings = settings

    def judge(self, batch: Batch, wanted: Mask) -> Verdict:
        """Lines first, then the documents they leave."""
        verdict = Verdict(len(batch))
        shown = self._without_citations(batch, wanted)
        kept = self._good_lines(shown)
        kept = self._judge_pages(shown, kept, verdict)
        if self._settings.min_sentences:
            count = shown.lines.sums(sentences(shown) * kept)
            verdict.remove(count < self._settings.min_sentences, "too few sentences")
        for document in np.flatnonzero(wanted & (verdict.reason == 0)):
            self._rewrite(shown, batch, kept, int(document), verdict)
        return verdict

    def _without_citations(self, batch: Batch, wanted: Mask) -> Batch:
        """The same documents, those wanted without citations."""
        if not self._settings.citations:
            return batch
        pairs = zip(batch.texts, wanted.tolist(), strict=True)
        texts = [CITATION.sub("", text) if asked and "[" in text else text for text, asked in pairs]
        return batch if texts == batch.texts else Batch(texts)

    def _good_lines(self, batch: Batch) -> Mask:
        """(lines,) what the rules on punctuation and words leave."""
        rules = self._settings
        kept = batch.content.lengths > 0
        if rules.max_word:
            kept &= ~_long_words(batch, rules.max_word)
        if rules.ended_lines:
            kept &= _ended(batch)
        if rules.min_line_words:
            kept &= batch.words_a_line >= rules.min_line_words
        return kept

    def _judge_pages(self, batch: Batch, kept: Mask, verdict: Verdict) -> Mask:
        """Lets documents go for what stands on the kept lines; (lines,) what is kept still."""
        rules, lines = self._settings, batch.lines
        if rules.lorem_ipsum:
            verdict.remove(lines.sums(kept & _lines_with(batch, (b"lorem ipsum",))) > 0, "lorem ipsum")
        if rules.javascript:
            kept = kept & ~_lines_with(batch, (b"javascript",))
        if rules.curly_bracket:
            verdict.remove(lines.sums(kept & _lines_with(batch, (b"{",))) > 0, "curly bracket")
        if rules.policies:
            kept = kept & ~_lines_with(batch, POLICIES)
        return kept

    def _rewrite(self, shown: Batch, batch: Batch, kept: Mask, document: int, verdict: Verdict) -> None:
        """Gives a document the text of its kept lines."""
        first, last = shown.lines.offsets[document : document + 2]
        lines, content, start = shown.lines, shown.content, int(shown.starts[document])
        text, whole = shown.texts[document], kept[first:last]
        if whole.all() and (content.lengths[first:last] == lines.lengths[first:last]).all():
            new = text
        else:
            places = zip(
                content.starts[first:last][whole].tolist(),
                content.stops[first:last][whole].tolist(),
                strict=True,
            )
            new = "\n".join([text[a - start : b - start] for a, b in places])
        if new != batch.texts[document]:
            verdict.texts[document] = new
            verdict.edit(document, "lines taken out", int(len(whole) - whole.sum()))
