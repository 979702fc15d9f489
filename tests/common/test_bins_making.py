"""The writer of bins: what is added is read back, the directory appears whole or not at all."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpus import stdlib_texts, train_bpe
from mtl_common.bins import Bins, Writer, staged
from mtl_common.bins import making as module
from mtl_common.errors import DataError, UsageError
from mtl_common.tokenizers import load


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_bpe(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def test_texts_and_ids_come_back_in_order(tokenizer: Path, tmp_path: Path) -> None:
    library, texts = load(tokenizer), stdlib_texts(6)
    with Writer(tmp_path / "bins", tokenizer, shard_tokens=20_000, source="a test") as writer:
        for number, text in enumerate(texts):
            writer.add(text if number % 2 else library.encode(text))
    bins = Bins(tmp_path / "bins")
    assert len(bins.manifest.shards) > 1
    assert [bins.document(i).tolist() for i in range(6)] == [[*library.encode(text), 0] for text in texts]
    assert [bins.origin(i) for i in range(6)] == [("a test", i) for i in range(6)]
    assert load(bins.tokenizer).fingerprint == library.fingerprint == bins.manifest.tokenizer.fingerprint
    assert all(shard.tokens <= 20_000 or shard.documents == 1 for shard in bins.manifest.shards)


def test_the_example_of_the_readme(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = Path(__file__).parents[2] / "tools" / "prep" / "README.md"
    (example,) = re.findall(r"^```python\n(.*?)^```", readme.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    load(tokenizer).save(tmp_path / "tokenizer")
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["bins"].document(1).tolist() == [17, 4, 256, 0]
    assert load(tokenizer).decode(names["bins"].document(0).tolist()) == "A document as text"


def test_the_end_is_put_once_and_what_is_empty_is_counted(tokenizer: Path, tmp_path: Path) -> None:
    with Writer(tmp_path / "bins", tokenizer) as writer:
        for document in ([5, 6], [], [5, 0], "", np.array([7], np.uint16), [0]):
            writer.add(document)
    bins = Bins(tmp_path / "bins")
    assert [bins.document(i).tolist() for i in range(len(bins))] == [[5, 6, 0], [5, 0], [7, 0]]
    assert [bins.origin(i)[1] for i in range(3)] == [0, 2, 4]
    source = bins.manifest.sources[0]
    assert (source.records, source.documents, source.bad) == (6, 3, {"empty": 3})


def test_the_bytes_do_not_depend_on_what_waits_together(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for feed in (1, 5000, 1 << 22):
        monkeypatch.setattr(module, "FEED", feed)
        with Writer(tmp_path / str(feed), tokenizer, shard_tokens=9000) as writer:
            for text in stdlib_texts(8):
                writer.add(text)
        made.append({path.name: path.read_bytes() for path in (tmp_path / str(feed)).glob("*.*")})
    assert made[0] == made[1] == made[2]


def test_which_tokens_count(tokenizer: Path, tmp_path: Path) -> None:
    with Writer(tmp_path / "bins", tokenizer) as writer:
        writer.add([5, 6, 7], loss=[0, 1, 0])
        writer.add([8, 0], loss=[1, 0])
        with pytest.raises(DataError, match="either all documents have a loss or none"):
            writer.add([9])
        with pytest.raises(DataError, match="document 2 has 2 ids and a loss of 1"):
            writer.add([9, 9], loss=[1])
    bins = Bins(tmp_path / "bins")
    assert [bins.loss(i).tolist() for i in range(2)] == [[0, 1, 0, 1], [1, 0]]


def test_an_end_inside_is_refused_unless_labels_are_marked(tokenizer: Path, tmp_path: Path) -> None:
    with Writer(tmp_path / "a", tokenizer) as writer:
        writer.add([5, 0])
        with pytest.raises(DataError, match="document 1 holds the end-of-document id 0 inside"):
            writer.add([5, 0, 6])
    with Writer(tmp_path / "b", tokenizer) as writer:
        writer.add([5, 0, 6], loss=[1, 1, 0])
    assert Bins(tmp_path / "b").document(0).tolist() == [5, 0, 6, 0]


@pytest.mark.parametrize("ids", [[5, 1024], [-1], [70_000]])
def test_ids_outside_the_vocabulary_leave_nothing_behind(
    tokenizer: Path, tmp_path: Path, ids: list[int]
) -> None:
    def write() -> None:
        with Writer(tmp_path / "bins", tokenizer) as writer:
            writer.add([5])
            writer.add(ids)

    with pytest.raises(DataError, match="document 1 holds ids outside the vocabulary of 1,024"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_nothing_at_all_is_an_error(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing was written"), Writer(tmp_path / "bins", tokenizer):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_never_overwritten(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "bins").mkdir()
    with pytest.raises(UsageError, match="bins exists"), Writer(tmp_path / "bins", tokenizer):
        pass
    assert list((tmp_path / "bins").iterdir()) == []


def test_two_writers_of_one_place(tmp_path: Path) -> None:
    with staged(tmp_path / "bins") as place:
        (place / "a").write_text("first")
        with pytest.raises(UsageError, match="another process is writing"), staged(tmp_path / "bins"):
            pass
    assert (tmp_path / "bins" / "a").read_text() == "first"


WAITS = """
import sys, time
from mtl_common.bins import Writer
with Writer(sys.argv[1], sys.argv[2], shard_tokens=10) as writer:
    for number in range(8):
        writer.add([5] * 9)
    writer._flush()
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_kill_leaves_nothing_that_counts(tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "bins"
    command = [sys.executable, "-c", WAITS, str(out), str(tokenizer)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGKILL)
    assert [path.name for path in tmp_path.iterdir()] == [".bins.partial"]
    with Writer(out, tokenizer) as writer:
        writer.add("again")
    assert [path.name for path in tmp_path.iterdir()] == ["bins"]
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "shard-00000.arrow", "tokenizer"]
    assert len(Bins(out)) == 1
