"""A trained tokenizer, and bins made in this process."""

from pathlib import Path
from typing import Any

import pytest

from corpus import train_bpe
from mtl_common.bins import Bins
from mtl_prep.running.tokenize import Request, tokenize
from preparing import Make


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a byte-level BPE tokenizer of 1,024 entries."""
    return train_bpe(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json").parent


@pytest.fixture
def make(tokenizer: Path, tmp_path: Path) -> Make:
    """Tokenizes files in this process: `make(file, name="bins", **request)`."""

    def make(*corpus: Path, name: str = "bins", **options: Any) -> Bins:
        known = {"workers": 1, "tokenizer": tokenizer, "max_bad": "100%"}
        request = Request(corpus=corpus, out=tmp_path / name, **{**known, **options})
        tokenize(request)
        return Bins(request.out)

    return make
