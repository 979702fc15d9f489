"""Checkpoints: written at any layout, read at any other, never half, never wrong without a word."""

import json
import subprocess
import sys
import textwrap
import time
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtl_common import tensorfile
from mtl_common.boxes import Box
from mtl_common.checkpoint import Checkpoint, PartWriter, begin, commit, newest, resolve, retain, verify
from mtl_common.errors import CheckpointError, ConfigError

Shape = tuple[int, ...]
Shard = tuple[list[Box], int, int]  # boxes end to end, and a flat range of them
ITEMS = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.float16, "float64": np.float64}


def whole(shape: Shape) -> Shard:
    return [Box.full(shape)], 0, prod(shape)


def part_of(full: np.ndarray, shard: Shard) -> np.ndarray:
    boxes, start, stop = shard
    memory = [full[box.slices(Box.full(full.shape))].ravel() for box in boxes]
    return np.concatenate(memory)[start:stop] if memory else np.empty(0, full.dtype)


def write(staging: Path, part: int, tensors: dict[str, tuple[str, np.ndarray, Shard]]) -> None:
    with PartWriter(staging, part) as writer:
        for key, (dtype, full, shard) in tensors.items():
            writer.write(key, dtype, full.shape, *shard, part_of(full, shard))


def save(out: Path, step: int, tensors: dict[str, np.ndarray], **commit_options) -> Path:
    staging = begin(out, step)
    write(staging, 0, {key: (str(a.dtype), a, whole(a.shape)) for key, a in tensors.items()})
    return commit(staging, layout="tp1", **{"config": {}, "state": {}, **commit_options})


def read(checkpoint: Checkpoint, key: str, shard: Shard) -> np.ndarray:
    boxes, start, stop = shard
    into = np.zeros(stop - start, ITEMS.get(checkpoint.tensors[key].dtype, np.int64))
    checkpoint.read(key, boxes, start, stop, into)
    return into


def flat_ranges(boxes: list[Box], parts: int) -> list[Shard]:
    total = sum(box.volume for box in boxes)
    edges = [total * i // parts for i in range(parts + 1)]
    return [(boxes, a, b) for a, b in pairwise(edges)]


def gated(shape: Shape, dim: int, parts: int) -> list[list[Box]]:
    """Each rank holds the same part of both halves of a dim: two boxes."""
    half = shape[dim] // 2
    edges = [half * i // parts for i in range(parts + 1)]
    found = []
    for a, b in pairwise(edges):
        offsets = [(*(0,) * dim, base + a, *(0,) * (len(shape) - dim - 1)) for base in (0, half)]
        size = (*shape[:dim], b - a, *shape[dim + 1 :])
        found.append([Box(offset, size) for offset in offsets] if b > a else [])
    return found


def even(shape: Shape, dim: int, parts: int) -> list[list[Box]]:
    edges = [shape[dim] * i // parts for i in range(parts + 1)]
    found = []
    for a, b in pairwise(edges):
        offset = (*(0,) * dim, a, *(0,) * (len(shape) - dim - 1))
        found.append([Box(offset, (*shape[:dim], b - a, *shape[dim + 1 :]))] if b > a else [])
    return found


@st.composite
def layouts(draw, shape: Shape) -> list[Shard]:
    """Every rank's shard of a tensor: cut along a dim as tp does, then flat as ZeRO does."""
    boxes = [[Box.full(shape)]]
    if shape:
        dim = draw(st.integers(0, len(shape) - 1))
        ranks = draw(st.integers(1, 4))
        halved = shape[dim] % 2 == 0 and draw(st.booleans())
        boxes = gated(shape, dim, ranks) if halved else even(shape, dim, ranks)
    shards = [shard for b in boxes for shard in flat_ranges(b, draw(st.integers(1, 4)))]
    return draw(st.permutations(shards))


@st.composite
def cases(draw) -> tuple[Shape, str, list[Shard], list[Shard]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=0, max_size=4)))
    dtype = draw(st.sampled_from(sorted(ITEMS)))
    return shape, dtype, draw(layouts(shape)), draw(layouts(shape))


@pytest.fixture
def small_blocks(monkeypatch) -> None:
    """Hashes of 16 bytes, so that small tensors have several."""
    for module in ("tensorfile", "staging", "checkpoint", "integrity"):
        monkeypatch.setattr(f"mtl_common.{module}.BLOCK", 16)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases())
def test_written_at_one_layout_and_read_at_another(tmp_path_factory, small_blocks, case) -> None:
    shape, dtype, written, wanted = case
    out = tmp_path_factory.mktemp("out")
    full = np.arange(prod(shape)).reshape(shape).astype(ITEMS[dtype])
    staging = begin(out, 3)
    for rank, shard in enumerate(written):
        write(staging, rank, {"exp_avg/x": (dtype, full, shard)})
    checkpoint = Checkpoint(commit(staging, layout="tp1", config={}, state={}))
    assert verify(checkpoint.path) == []
    for shard in [whole(shape), *wanted]:
        assert read(checkpoint, "exp_avg/x", shard).tolist() == part_of(full, shard).tolist()


@pytest.mark.parametrize("length", [1, 3, 5, 6])
@pytest.mark.parametrize(("ranks", "others"), [(2, 3), (4, 1), (3, 4)])
def test_uneven_shards_and_empty_ones(tmp_path, length, ranks, others) -> None:
    full = np.arange(length, dtype=np.float32)
    staging = begin(tmp_path, 1)
    for rank, shard in enumerate(flat_ranges([Box.full(full.shape)], ranks)):
        write(staging, rank, {"model/x": ("float32", full, shard)})
    checkpoint = Checkpoint(commit(staging, layout=f"dp{ranks}", config={}, state={}))
    for shard in flat_ranges([Box.full(full.shape)], others):
        assert read(checkpoint, "model/x", shard).tolist() == part_of(full, shard).tolist()


def test_large_tensors_cross_blocks_and_buffers(tmp_path) -> None:
    full = np.random.default_rng(2).integers(0, 2**31, (3001, 1153)).astype(np.float32)
    staging = begin(tmp_path, 1)
    for rank, boxes in enumerate(even(full.shape, 1, 3)):
        write(staging, rank, {"model/x": ("float32", full, (boxes, 0, sum(b.volume for b in boxes)))})
    checkpoint = Checkpoint(commit(staging, layout="tp3", config={}, state={}))
    for boxes in (*even(full.shape, 0, 2), *even(full.shape, 1, 2)):
        shard = (boxes, 1000, boxes[0].volume - 7)
        np.testing.assert_array_equal(read(checkpoint, "model/x", shard), part_of(full, shard))


def test_adjacent_ranges_written_one_after_another_become_one_chunk(tmp_path) -> None:
    full = np.arange(3 << 20, dtype=np.float32)
    staging = begin(tmp_path, 1)
    with PartWriter(staging, 0) as writer:
        for start in range(0, len(full), 1 << 20):
            data = full[start : start + (1 << 20)]
            writer.write(
                "model/x", "float32", full.shape, [Box.full(full.shape)], start, start + len(data), data
            )
    path = commit(staging, layout="tp1", config={}, state={})
    found = safetensors.numpy.load_file(path / "model/part00000-0.safetensors")
    np.testing.assert_array_equal(found["model/x"], full)
    assert verify(path) == []


def test_the_safetensors_library_opens_every_file(tmp_path) -> None:
    tensors = {
        "model/a.weight": np.ones((3, 5), np.float32),
        "exp_avg/a.weight": np.zeros((3, 5), np.float32),
    }
    path = save(tmp_path, 1, tensors)
    found: dict[str, np.ndarray] = {}
    for file in path.rglob("*.safetensors"):
        found |= safetensors.numpy.load_file(file)
    assert found.keys() == tensors.keys()
    for key, array in tensors.items():
        np.testing.assert_array_equal(found[key], array)


def test_more_tensors_than_a_header_has_room_for(tmp_path) -> None:
    tensors = {f"model/decoder.layers.{i}.weight": np.full(3, i, np.float32) for i in range(1500)}
    path = save(tmp_path, 1, tensors)
    files = sorted(path.rglob("*.safetensors"))
    assert len(files) > 1
    assert sum(len(safetensors.numpy.load_file(file)) for file in files) == 1500
    checkpoint = Checkpoint(path)
    assert read(checkpoint, "model/decoder.layers.1499.weight", whole((3,))).tolist() == [1499] * 3


def test_all_that_was_given_comes_back(tmp_path) -> None:
    tokenizer = tmp_path / "bins-tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    path = save(
        tmp_path / "out",
        100,
        {"model/e": np.ones((4, 2)), "exp_avg/e": np.zeros((4, 2))},
        config={"model": {"hidden": 2}},
        state={"consumed": 800, "text": "\u00e9"},
        aliases={"output_layer.weight": "e"},
        tokenizer=tokenizer,
    )
    checkpoint = Checkpoint(path)
    assert path.name == "iter_0000100"
    assert (path.parent / "latest").read_text() == "iter_0000100\n"
    assert (checkpoint.step, checkpoint.layout) == (100, "tp1")
    assert checkpoint.config == {"model": {"hidden": 2}}
    assert checkpoint.state == {"consumed": 800, "text": "\u00e9"}
    assert checkpoint.tokenizer is not None
    assert (checkpoint.tokenizer / "tokenizer.json").read_text() == "{}"
    assert checkpoint.tensors["model/output_layer.weight"].alias == "model/e"
    into = np.zeros((4, 2))
    checkpoint.read("model/output_layer.weight", [Box.full((4, 2))], 0, 8, into, shape=(4, 2))
    assert into.tolist() == [[1, 1]] * 4
    json.loads((path / "manifest.json").read_bytes())


def test_a_tensor_that_is_not_full_is_not_saved(tmp_path) -> None:
    full = np.arange(20.0)
    staging = begin(tmp_path, 1)
    write(staging, 0, {"model/x": ("float64", full, ([Box.full((20,))], 0, 8))})
    with pytest.raises(CheckpointError, match="model/x cannot be saved: 12 of 20 elements are missing"):
        commit(staging, layout="tp1", config={}, state={})
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        newest(tmp_path)


@pytest.mark.parametrize(
    "other",
    [
        ([Box((0, 0), (4, 5))], 7, 12),  # the same box
        ([Box((1, 0), (2, 2))], 0, 4),  # another box
    ],
)
def test_elements_written_twice_are_not_saved(tmp_path, other: Shard) -> None:
    full = np.arange(20.0).reshape(4, 5)
    staging = begin(tmp_path, 1)
    write(staging, 0, {"model/x": ("float64", full, ([Box.full((4, 5))], 0, 8))})
    write(staging, 1, {"model/x": ("float64", full, other)})
    with pytest.raises(CheckpointError, match="model/x cannot be saved: some elements are written twice"):
        commit(staging, layout="tp1", config={}, state={})


def test_overlapping_boxes_whose_ranges_do_not_overlap_are_right(tmp_path) -> None:
    full = np.arange(20.0).reshape(4, 5)
    staging = begin(tmp_path, 1)
    write(staging, 0, {"model/x": ("float64", full, ([Box.full((4, 5))], 0, 10))})
    write(staging, 1, {"model/x": ("float64", full, ([Box((1, 0), (3, 5))], 5, 15))})
    checkpoint = Checkpoint(commit(staging, layout="tp1", config={}, state={}))
    assert read(checkpoint, "model/x", whole((4, 5))).tolist() == list(range(20))


def test_writers_that_disagree_are_named(tmp_path) -> None:
    staging = begin(tmp_path, 1)
    write(staging, 0, {"model/x": ("float64", np.arange(20.0), ([Box.full((20,))], 0, 10))})
    write(staging, 1, {"model/x": ("float32", np.arange(20, dtype=np.float32), ([Box.full((20,))], 10, 20))})
    with pytest.raises(CheckpointError, match=r"model/x is float64 .* in one writer and float32"):
        commit(staging, layout="tp1", config={}, state={})


def test_reading_is_strict(tmp_path) -> None:
    checkpoint = Checkpoint(save(tmp_path, 1, {"model/x": np.arange(20.0)}))
    into = np.zeros(20)
    with pytest.raises(CheckpointError, match=r"has no tensor model/y"):
        checkpoint.read("model/y", *whole((20,)), into)
    with pytest.raises(CheckpointError, match=r"model/x is \(20,\) .* the model wants \(4, 5\)"):
        checkpoint.read("model/x", *whole((20,)), into, shape=(4, 5))
    with pytest.raises(CheckpointError, match=r"model/x is float64 .* the model wants float32"):
        checkpoint.read("model/x", *whole((20,)), into, dtype="float32")
    with pytest.raises(CheckpointError, match=r"model/x is \(20,\)"):
        checkpoint.read("model/x", [Box((10,), (11,))], 0, 11, into[:11])


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("position", [20, -1, tensorfile.HEADER + 9])
def test_a_flipped_bit_is_found_by_verify(tmp_path, position) -> None:
    path = save(tmp_path, 1, {"model/x": np.arange(20.0), "exp_avg/x": np.arange(20.0)})
    flip(path / "model/part00000-0.safetensors", position)
    problems = verify(path)
    assert len(problems) == 1
    assert "model/part00000-0.safetensors is damaged" in problems[0]
    assert verify(path, full=False) == []


def test_a_flipped_bit_is_found_when_reading_only_a_part(tmp_path) -> None:
    full = np.arange(6 << 17, dtype=np.float64)  # six blocks
    path = save(tmp_path, 1, {"model/x": full})
    flip(path / "model/part00000-0.safetensors", tensorfile.HEADER + (2 << 20) + 5)
    checkpoint = Checkpoint(path)
    shard = ([Box.full(full.shape)], 0, 2 << 17)  # the two blocks before the damage
    assert read(checkpoint, "model/x", shard).tolist() == part_of(full, shard).tolist()
    with pytest.raises(CheckpointError, match=r"part00000-0.safetensors is damaged: .*model/x"):
        read(checkpoint, "model/x", ([Box.full(full.shape)], (2 << 17) + 100, (2 << 17) + 101))


def test_missing_and_truncated_files_are_named(tmp_path) -> None:
    path = save(tmp_path, 1, {"model/x": np.arange(20.0), "exp_avg/x": np.arange(20.0)})
    checkpoint = Checkpoint(path)
    (path / "optim/part00000-0.safetensors").unlink()
    with (path / "model/part00000-0.safetensors").open("r+b") as file:
        file.truncate(tensorfile.HEADER + 8)
    for full in (False, True):
        problems = sorted(verify(path, full))
        assert len(problems) == 2
        assert "model/part00000-0.safetensors is truncated" in problems[0]
        assert "optim/part00000-0.safetensors is missing" in problems[1]
    with pytest.raises(CheckpointError, match=r"model/part00000-0.safetensors is truncated"):
        read(checkpoint, "model/x", whole((20,)))
    with pytest.raises(CheckpointError, match=r"optim/part00000-0.safetensors is missing"):
        read(checkpoint, "exp_avg/x", whole((20,)))


def test_a_damaged_tokenizer_file_is_named(tmp_path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/tokenizer.json").write_text("[1]")
    path = save(tmp_path / "out", 1, {"model/x": np.arange(20.0)}, tokenizer=tmp_path / "t")
    (path / "tokenizer/tokenizer.json").write_text("[2]")
    assert ["tokenizer/tokenizer.json is damaged" in problem for problem in verify(path)] == [True]


@pytest.mark.parametrize("damage", ["missing", "empty", "flipped", "version", "text"])
def test_a_damaged_manifest_is_an_error_and_newest_takes_the_one_before(tmp_path, caplog, damage) -> None:
    good = save(tmp_path, 1, {"model/x": np.arange(20.0)})
    bad = save(tmp_path, 2, {"model/x": np.arange(20.0)})
    manifest = bad / "manifest.json"
    text = manifest.read_text()
    if damage == "missing":
        manifest.unlink()
    else:
        texts = {
            "empty": "",
            "flipped": text.replace('"step":2', '"step":3'),
            "version": text.replace('"1.0"', '"2.0"'),
            "text": "not a manifest\n",
        }
        manifest.write_text(texts[damage])
    with pytest.raises(CheckpointError, match=r"iter_0000002"):
        Checkpoint(bad)
    assert newest(tmp_path) == good
    assert "iter_0000002 is skipped" in caplog.text


@pytest.mark.parametrize("hint", ["", "iter_0000999\n"])
def test_the_latest_file_is_only_a_hint(tmp_path, hint) -> None:
    path = save(tmp_path, 7, {"model/x": np.arange(20.0)})
    (tmp_path / "latest").write_text(hint)
    assert newest(tmp_path) == path


def test_a_path_may_be_a_step_a_directory_of_checkpoints_or_a_run(tmp_path) -> None:
    run = tmp_path / "runs/x"
    path = save(run / "checkpoints", 7, {"model/x": np.arange(20.0)})
    assert [resolve(p) for p in (path, path.parent, run)] == [path] * 3
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        resolve(tmp_path)
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        resolve(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        resolve(path / "manifest.json")


def test_a_step_is_replaced_when_it_is_saved_again(tmp_path) -> None:
    save(tmp_path, 5, {"model/x": np.zeros(4)})
    path = save(tmp_path, 5, {"model/x": np.ones(4)})
    assert read(Checkpoint(path), "model/x", whole((4,))).tolist() == [1] * 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["iter_0000005", "latest"]


def test_retention_counts_complete_checkpoints_only(tmp_path) -> None:
    paths = [save(tmp_path, step, {"model/x": np.zeros(4)}) for step in (1, 2, 3, 4)]
    (paths[2] / "manifest.json").unlink()
    retain(tmp_path, 2)
    assert [path.exists() for path in paths] == [False, True, True, True]
    assert newest(tmp_path) == paths[3]
    for count in (0, -1):
        with pytest.raises(ConfigError, match="at least 1"):
            retain(tmp_path, count)


SAVER = """
    import os, sys
    from pathlib import Path
    import numpy as np
    from mtl_common.boxes import Box
    from mtl_common.checkpoint import PartWriter, begin, commit, newest, resolve, retain, verify, Checkpoint

    def save(out, step, count):
        staging = begin(out, step)
        for part in range(2):
            with PartWriter(staging, part) as writer:
                for kind in ("model", "exp_avg"):
                    half = np.full(count // 2, step, np.float32)
                    box, start = [Box.full((count,))], part * count // 2
                    writer.write(f"{kind}/x", "float32", (count,), box, start, start + count // 2, half)
        commit(staging, layout="dp2", config={}, state={"step": step})
        retain(out, 1)

    def check(out, count):
        path = newest(out)
        assert verify(path) == [], verify(path)
        checkpoint = Checkpoint(path)
        values = np.frombuffer(checkpoint.read_full("exp_avg/x"), np.float32)
        assert (values == checkpoint.step).all() and checkpoint.state == {"step": checkpoint.step}
        return checkpoint.step
"""


def python(program: str, *arguments: str) -> subprocess.Popen[str]:
    text = textwrap.dedent(SAVER) + textwrap.dedent(program)
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def test_ending_at_every_change_of_the_directory_leaves_a_checkpoint(tmp_path) -> None:
    """A child process ends at the n-th audited call (open, mkdir, rename, remove) of a save, for every n."""
    output = finish(
        python(
            """
        EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")

        def end_at(n):
            seen = 0
            def hook(event, arguments):
                nonlocal seen
                if event in EVENTS:
                    seen += 1
                    if seen == n:
                        os._exit(9)
            sys.addaudithook(hook)

        def ends(out, step, n):
            child = os.fork()
            if child == 0:
                try:
                    end_at(n)
                    save(out, step, 8)
                except BaseException as error:
                    print(error, file=sys.stderr, flush=True)
                    os._exit(1)
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        out = Path(sys.argv[1])
        save(out, 1, 8)
        for ahead in (0, 1):  # save the newest step anew, then the next step
            code, points = 9, 0
            while code == 9:
                points += 1
                step = check(out, 8)
                code = ends(out, step + ahead, points)
                assert check(out, 8) in (step, step + ahead)
            assert code == 0
            print(points)
        """,
            str(tmp_path),
        )
    )
    assert all(int(line) > 20 for line in output.split())


def test_killed_at_random_moments_of_a_save_loop(tmp_path) -> None:
    random = np.random.default_rng()
    finish(python("save(Path(sys.argv[1]), 1, 1 << 20)", str(tmp_path)))
    for _ in range(10):
        process = python(
            """
            out = Path(sys.argv[1])
            step = check(out, 1 << 20)
            print("saving", flush=True)
            while True:
                step += 1
                save(out, step, 1 << 20)
            """,
            str(tmp_path),
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "saving\n", process.communicate()[1]
        time.sleep(random.uniform(0, 0.3))
        process.kill()
        process.communicate()
    assert int(finish(python("print(check(Path(sys.argv[1]), 1 << 20))", str(tmp_path)))) > 1
