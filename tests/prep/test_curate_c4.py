"""C4's rules beside a plain telling of them, line by line, as datatrove's C4QualityFilter does it.

What is told otherwise: white space around a citation goes with it, words are counted and measured without
citations, and of a document with filler text and brackets the first is the reason.
"""

import random
import re
from pathlib import Path

import numpy as np
import pytest

from corpus import stdlib_texts
from curating import make_words
from mtl_prep.curate.batch import Batch
from mtl_prep.curate.c4 import C4

CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
PIECES = (
    *(
        "lorem ipsum",
        "Lorem",
        "JavaScript",
        "javascript:",
        "{",
        "}",
        "Terms of Use",
        "use  cookies",
        "Uses Cookies",
    ),
    *(
        "[1]",
        " [23]",
        "[] ",
        "[edit]",
        "[citation needed]",
        "[a]",
        ".",
        "...",
        "..",
        "!",
        "?",
        '"',
        "'",
        "\u201d",
    ),
    *(
        ". ",
        ".\n",
        "\n",
        "\n\n",
        "\t",
        "\u3000",
        "x" * 1001,
        "x" * 1000,
        "\u00c4\u00d6",
        "\u5927",
        " and so on.",
    ),
)


def told(text: str) -> str:
    """Why a document goes, or what is left of it after a `:`; sentences are not counted."""
    kept, reasons = list[str](), set[str]()
    for raw in text.split("\n"):
        line = CITATION.sub("", raw).strip()
        if any(len(word) > 1000 for word in line.split()):
            continue
        if not line.endswith((".", "?", "!", '"', "'")) or line.endswith("..."):
            continue
        small = line.lower()
        if len(line.split()) < 3:
            continue
        if "lorem ipsum" in small:
            reasons.add("lorem ipsum")
        if "javascript" in small:
            continue
        if "{" in line:
            reasons.add("curly bracket")
        if not any(policy in small for policy in POLICIES):
            kept.append(line)
    return max(reasons) if reasons else ":" + "\n".join(kept)


def judged(texts: list[str]) -> list[str]:
    verdict = C4(min_sentences=False).begin(Path()).judge(Batch(texts), np.ones(len(texts), bool))
    return [verdict.why(i) or f":{verdict.texts.get(i, text)}" for i, text in enumerate(texts)]


def test_real_texts_are_left_as_told() -> None:
    texts = list(stdlib_texts(120))
    ours = judged(texts)
    assert len({why for why in ours if why[0] != ":"}) == 1
    assert ours == list(map(told, texts))


@pytest.mark.parametrize("seed", range(20))
def test_awkward_texts_are_left_as_told(seed: int) -> None:
    drawn, words = random.Random(seed), make_words(seed, 40)
    texts = [
        "".join(drawn.choice([drawn.choice(PIECES), f" {drawn.choice(words)}"]) for _ in range(size))
        for size in drawn.choices(range(1, 120), k=60)
    ]
    assert judged(texts) == list(map(told, texts))
