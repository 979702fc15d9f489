"""Resharding: bit for bit on every way, moments included, in bounded memory."""

import subprocess
import sys
from math import prod
from pathlib import Path

import numpy as np
import pytest

from mtl_ckpt.reshard import reshard, shards
from mtl_common.boxes import Box
from mtl_common.checkpoint import Checkpoint, PartWriter, begin, commit, verify
from mtl_common.errors import CheckpointError, ConfigError, UsageError
from mtl_common.layout import Layout
from mtl_common.shapes import ModelShape
from mtl_common.tensors import aliases, held_boxes, model_tensors

SHAPE = ModelShape(
    hidden=24,
    layers=4,
    heads=12,
    kv_heads=6,
    head_dim=2,
    ffn=36,
    vocab=301,
    seq=8,
    norm="rmsnorm",
    position="rope",
    activation="swiglu",
    bias=True,
)
KINDS = {"model": "bfloat16", "master": "float32", "exp_avg": "float32", "exp_avg_sq": "float32"}
MEMORY = 64 << 20


def full_values(shape: ModelShape) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    values = {}
    for kind, dtype in KINDS.items():
        carrier = np.uint16 if dtype == "bfloat16" else np.uint32
        for name, tensor in model_tensors(shape).items():
            values[f"{kind}/{name}"] = random.integers(0, 2**16, tensor.shape, carrier)
    return values


def save(out: Path, shape: ModelShape, values: dict[str, np.ndarray]) -> Path:
    staging = begin(out, 40)
    with PartWriter(staging, 0) as writer:
        for key, array in values.items():
            box = [Box.full(array.shape)]
            writer.write(key, KINDS[key.partition("/")[0]], array.shape, box, 0, array.size, array.data)
    config = {"model": shape.model_dump(), "train": {"lr": 0.1}}
    return commit(staging, layout="tp1", config=config, state={"consumed": 9}, aliases=aliases(shape))


def change(path: Path, to: str, out: Path) -> Path:
    return reshard(Checkpoint(path), Layout.parse(to), out, MEMORY, lambda _: None)


def check_values(path: Path, values: dict[str, np.ndarray]) -> None:
    checkpoint = Checkpoint(path)
    assert {key for key, info in checkpoint.tensors.items() if not info.alias} == values.keys()
    for key, array in values.items():
        assert bytes(checkpoint.read_full(key)) == array.tobytes(), key


def test_every_way_gives_the_same_bits(tmp_path) -> None:
    values = full_values(SHAPE)
    path = save(tmp_path / "a", SHAPE, values)
    for number, to in enumerate(["tp2pp2", "tp3dp2", "pp4", "tp6", "dp3pp2", "tp1"]):
        path = change(path, to, tmp_path / str(number))
        assert verify(path) == []
        check_values(path, values)
        checkpoint = Checkpoint(path)
        assert (checkpoint.layout, checkpoint.step, checkpoint.state) == (to, 40, {"consumed": 9})
        assert checkpoint.config["train"] == {"lr": 0.1}
        assert checkpoint.tensors["model/output_layer.weight"].alias


def test_a_rank_of_the_new_layout_has_its_part_in_one_file(tmp_path) -> None:
    layout = Layout.parse("tp3pp2")
    path = change(save(tmp_path / "a", SHAPE, full_values(SHAPE)), str(layout), tmp_path / "b")
    checkpoint = Checkpoint(path)
    for rank in range(layout.world):
        for name, tensor in model_tensors(SHAPE).items():
            if tensor.cut == "copies":
                continue
            for box in held_boxes(tensor, SHAPE.layers, layout, rank):
                (chunk,) = [c for c in checkpoint.tensors[f"master/{name}"].chunks if c.box == box]
                assert chunk.file == f"optim/part{rank:05d}-0.safetensors"
                assert chunk.stop == box.volume


def test_replicas_share_the_writing_evenly(tmp_path) -> None:
    layout = Layout.parse("tp2dp3")
    checkpoint = Checkpoint(save(tmp_path / "a", SHAPE, full_values(SHAPE)))
    written = [
        sum(s.stop - s.start for s in shards(checkpoint, layout, rank)) for rank in range(layout.world)
    ]
    assert sum(written) == sum(prod(i.shape) for i in checkpoint.tensors.values() if not i.alias)
    for tp in range(2):
        group = [count for rank, count in enumerate(written) if layout.place(rank)["tp"] == tp]
        assert max(group) - min(group) < 0.01 * max(group)


def test_layouts_that_cannot_be_are_refused(tmp_path) -> None:
    path = save(tmp_path / "a", SHAPE, full_values(SHAPE))
    with pytest.raises(ConfigError, match=r"heads 12 cannot be divided by tp 5"):
        change(path, "tp5", tmp_path / "b")
    with pytest.raises(ConfigError, match=r"layers 4 cannot be divided by pp 3"):
        change(path, "pp3", tmp_path / "b")
    with pytest.raises(ConfigError, match=r"give at least 64"):
        reshard(Checkpoint(path), Layout(), tmp_path / "b", 1 << 20, lambda _: None)
    with pytest.raises(UsageError, match=r"a exists already"):
        change(path, "tp2", tmp_path / "a")
    assert not (tmp_path / "b").exists()


def test_a_tensor_of_no_place_is_named(tmp_path) -> None:
    values = full_values(SHAPE)
    values["model/stranger.weight"] = np.zeros((2, 3), np.uint16)
    path = save(tmp_path / "a", SHAPE, values)
    with pytest.raises(CheckpointError, match=r"model/stranger.weight"):
        change(path, "tp2", tmp_path / "b")


def test_memory_stays_within_what_was_stated(tmp_path) -> None:
    """Tensors of 126 MB pass through 64 MiB."""
    wide = SHAPE.model_copy(update={"vocab": 1_310_720, "layers": 1})
    staging = begin(tmp_path / "a", 1)
    with PartWriter(staging, 0) as writer:
        for name, tensor in model_tensors(wide).items():
            count = prod(tensor.shape)
            data = np.zeros(count, np.uint32)
            writer.write(
                f"model/{name}", "float32", tensor.shape, [Box.full(tensor.shape)], 0, count, data.data
            )
    path = commit(staging, layout="tp1", config={"model": wide.model_dump()}, state={})
    program = """
import resource, sys
from pathlib import Path
from mtl_ckpt.reshard import reshard
from mtl_common.checkpoint import Checkpoint
from mtl_common.layout import Layout
import mtl_common.tokenizers
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
checkpoint = Checkpoint(Path(sys.argv[1]))
before = peak()
reshard(checkpoint, Layout.parse("tp2"), Path(sys.argv[2]), 64 << 20, lambda _: None)
print(peak() - before)
"""
    command = [sys.executable, "-c", program, str(path), str(tmp_path / "b")]
    used = int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    assert used < MEMORY
