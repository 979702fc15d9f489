"""Bins of more shards than a process may have open files, read by threads, forks and copies of the reader."""

import multiprocessing
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from corpus import make_bins
from mtl_common.bins import Bins, Source, read_manifest, write_manifest

TIMES = 1500
DOCUMENTS = [[5, 6, 7], [8], [9, 10, 11, 12]]
STREAM = np.array([id for ids in DOCUMENTS for id in (*ids, 0)] * TIMES)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shard, listed many times."""
    path = make_bins(tmp_path_factory.mktemp("bins"), DOCUMENTS, 100)
    old = read_manifest(path)
    sums = {"documents": TIMES * old.documents, "tokens": TIMES * old.tokens}
    sources: dict[str, tuple[Source, ...]] = {"sources": old.sources * TIMES}
    write_manifest(path, old.model_copy(update={**sums, **sources, "shards": old.shards * TIMES}))
    return path


@pytest.fixture
def few_files() -> Iterator[int]:
    """Room for 64 open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/proc/self/fd")) + 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_one_window_over_all_shards(many: Path, few_files: int) -> None:
    bins = Bins(many)
    assert len(bins.manifest.shards) == TIMES > few_files
    assert bins.window(0, bins.tokens).tolist() == STREAM.tolist()
    assert bins.window(5, bins.tokens - 9).tolist() == STREAM[5:-4].tolist()
    assert bins.window_loss(0, bins.tokens).tolist() == [1] * len(STREAM)
    assert bins.document(3 * TIMES - 1).tolist() == [*DOCUMENTS[-1], 0]


def is_right(bins: Bins, first: int) -> bool:
    return all(
        np.array_equal(bins.window(start, 40), STREAM[start : start + 40])
        for start in range(first, len(STREAM) - 40, 97)
    )


def test_threads_share_a_reader(many: Path, few_files: int) -> None:
    bins = Bins(many)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(is_right, [bins] * 8, range(8))) == [True] * 8


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_a_reader(many: Path, method: str) -> None:
    bins = Bins(many)
    assert is_right(bins, 0)
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.starmap(Bins.window, [(bins, start, 50) for start in range(20)])
    assert [ids.tolist() for ids in found] == [STREAM[i : i + 50].tolist() for i in range(20)]


def test_an_array_outlives_its_bins(many: Path) -> None:
    window = Bins(many).window(1, 4)
    assert window.base is not None
    assert window.tolist() == STREAM[1:5].tolist()


def test_memory_is_given_back(many: Path) -> None:
    maps = Path("/proc/self/maps")
    before = maps.read_text().count("shard-00000.arrow")
    bins = Bins(many)
    bins.window(0, bins.tokens)
    assert maps.read_text().count("shard-00000.arrow") == before + TIMES
    del bins
    assert maps.read_text().count("shard-00000.arrow") == before
