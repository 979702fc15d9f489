"""A checkpoint of the toy model, and a server over it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hosting import SETTINGS, InThread, serving
from mtl_serve.config import plan
from serving import LLAMA, write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("toy"), LLAMA)


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[InThread]:
    with serving(plan(checkpoint, SETTINGS)) as started:
        yield started
