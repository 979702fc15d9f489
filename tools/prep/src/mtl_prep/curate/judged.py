"""What of a record is judged: its text, or the texts of a record of another shape together, as one text.

The texts of a dialogue, pair or question are judged end to end, each on lines of its own. A step that edits
them keeps their line ends, so that each text is found again.
"""

from collections.abc import Mapping
from typing import Any

from mtl_common.errors import UsageError
from mtl_prep.corpus.keys import TextKey, put_at, value_at
from mtl_prep.corpus.units import Reading
from mtl_prep.curate.c4 import C4
from mtl_prep.curate.recipe import Recipe
from mtl_prep.encoding.shapes import Shape


class JudgedText(TextKey):
    """The text of a record."""

    def put(self, record: Mapping[str, Any], text: str) -> dict[str, Any]:
        """A record with another text where the old one is; under the first key where there is none.

        >>> JudgedText("text,a.0.b").put({"n": 1, "a": [{"b": "old"}]}, "new")
        {'n': 1, 'a': [{'b': 'new'}]}
        """
        there = (key for key in self.keys if isinstance(value_at(record, key), str))
        return put_at(record, next(there, self.keys[0]), text)


class JudgedShape(Shape):
    """The texts of a record of a shape."""

    def of(self, record: Any) -> str:
        """The texts together; raises BadRecordError for a record that could not be encoded."""
        super().of(record)
        return "\n".join(self.texts(record))

    def put(self, record: Mapping[str, Any], text: str) -> dict[str, Any]:
        """A record with its texts as they stand in an edited text of all, told apart by line ends."""
        lines, texts = text.split("\n"), list[str]()
        for old in self.texts(record):
            count = old.count("\n") + 1
            texts.append("\n".join(lines[:count]))
            lines = lines[count:]
        return self.with_texts(record, texts)


Judged = JudgedText | JudgedShape


def judged(reading: Reading) -> Judged:
    """What a corpus is read for."""
    return reading.shape if isinstance(reading.shape, JudgedShape) else JudgedText(reading.text_key)


def check_steps(recipe: Recipe, shape: Shape) -> None:
    """Raises UsageError for a step that takes lines out: nobody could tell of which text of a record."""
    for name, step in recipe.steps:
        if isinstance(step, C4):
            raise UsageError(
                f"the step {name} takes lines out of texts, of which a record of --shape {shape.name} has "
                "several; take it out of the recipe"
            )
