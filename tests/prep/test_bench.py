"""mtl-prep bench: what it says of each encoder is true of the ids; rates are only looked at for form."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpus import stdlib_texts
from mtl_common.errors import DataError
from mtl_common.tokenizers import Flat, Tokenizer, load
from mtl_prep.encoding import bench as module
from mtl_prep.encoding.bench import LOOP, Request, bench
from mtl_prep.encoding.bench_report import page
from preparing import Make, json_lines, prep

TEXTS = [text[:20_000] for text in stdlib_texts(20)]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "a.jsonl"
    path.write_bytes(json_lines(TEXTS))
    return path


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN", 0.02)
    monkeypatch.setattr(module, "FEW", 1 << 15)
    for name in ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1")


def test_every_encoder_that_fits_is_tried(lines: Path, tokenizer: Path) -> None:
    result = bench(Request([lines], tokenizer, 150_000, 2))
    tried = {side.name: side for side in result.sides if not side.absent}
    assert {"fastokens", "reference", LOOP} <= tried.keys()
    assert result.sides[-1].name == LOOP
    assert all(side.rate > 0 for side in tried.values())
    assert all(side.differing == 0 and side.compared > 0 for name, side in tried.items() if name != LOOP)
    assert (result.library, result.chosen in tried) == ("tokenizers", True)
    given = [
        sum(len(text.encode()) for text in TEXTS[:count])
        for count in (result.documents - 1, result.documents)
    ]
    assert given[0] < 150_000 <= given[1] == result.size


def test_the_loop_makes_the_bytes_of_the_bins(lines: Path, tokenizer: Path, make: Make) -> None:
    bins = make(lines)
    found = module._loop(load(tokenizer), lines.read_text("utf-8").splitlines())
    assert found == bins.window(0, bins.tokens).tobytes()


class Wrong:
    """A tokenizer that gets the first id of every third document wrong."""

    def __init__(self, real: Tokenizer) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def encode_batch(self, texts: Sequence[str]) -> Flat:
        ids, offsets = self._real.encode_batch(texts)
        ids = np.array(ids)
        ids[offsets[:-1:3]] += 1
        return ids, offsets


def test_other_ids_are_told(lines: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path, *, engine: str, one_thread: bool) -> Any:
        found = load(path, engine=engine, one_thread=one_thread)
        return Wrong(found) if engine == "fastokens" else found

    monkeypatch.setattr(module, "load", opened)
    monkeypatch.setattr(module, "TURN", 1e9)
    result = bench(Request([lines], tokenizer, 100_000, 1))
    side = next(side for side in result.sides if side.name == "fastokens")
    assert (side.compared, side.differing) == (result.documents, -(-result.documents // 3))
    assert f"{side.differing} of {side.compared} documents differ" in page(result)


def test_the_table(lines: Path, tokenizer: Path) -> None:
    done = prep("bench", lines, "--tokenizer", tokenizer, "--sample", "60KB", "--rounds", 1)
    assert done.returncode == 0
    rows = done.stdout.splitlines()
    assert rows[0].endswith(" kB of text")
    assert rows[1].split("  ")[0] == "encoder"
    loop = next(row for row in rows if row.startswith("tokenizers in a loop over JSON lines"))
    assert loop.split()[-1] == "1.0"
    assert any(row.startswith("fastokens ") and " equal in " in row for row in rows)
    assert any(row.startswith("not tried  bytes: ") for row in rows)
    assert rows[-1] == f"next: mtl-prep tokenize {lines} --tokenizer {tokenizer} --out bins"


def test_wrong_requests(lines: Path, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(json_lines([{"body": "a"}]))
    with pytest.raises(DataError, match="no documents in "):
        bench(Request([tmp_path / "b.jsonl"], tokenizer, 1000))
    done = prep("bench", lines, "--tokenizer", tokenizer, "--sample", "much")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --sample much is no size; write it like 256MB\n"
