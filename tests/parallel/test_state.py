"""Checkpoints of a sharded run: any layout and precision loads any, to the bit, and a failure leaves
nothing behind.
"""

import resource
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtl_common.checkpoint import Checkpoint, PartWriter, begin, commit, newest, verify
from mtl_common.errors import CheckpointError
from mtl_common.layout import Layout
from mtl_parallel import state
from mtl_parallel.launch import start
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT
from mtl_parallel.optimizer import Optimizer
from mtl_parallel.sharding import sharded_parameters
from ranks import run_ranks
from training import LR, Case, Slice, assemble, build, reference, train_step

KINDS = ("parameter", "master", "exp_avg", "exp_avg_sq")
Full = dict[str, dict[str, np.ndarray[Any, Any]]]


def prepare(case: Case, seed: int = 5) -> tuple[Mesh, GPT, Optimizer]:
    mesh = start(Layout.parse(case.layout), "cpu")
    model = build(case.shape, mesh, case.dtype, seed)
    return mesh, model, Optimizer(model, mesh, case.settings, case.zero)


def train(case: Case, mesh: Mesh, model: GPT, optimizer: Optimizer, steps: Iterable[int]) -> list[float]:
    losses = []
    for step in steps:
        losses.append(train_step(model, mesh, optimizer, case, step)[0])
        optimizer.step(LR)
    return losses


def keep(case: Case, step: int, out: Path, mesh: Mesh, model: GPT, optimizer: Optimizer) -> Path:
    config = {"model": case.shape.model_dump()}
    return state.save(out, step, model, optimizer, mesh, config=config, state={"samples": 8 * step})


def held(optimizer: Optimizer) -> dict[str, list[Slice]]:
    """What this rank's optimizer holds, as exact float64."""
    return {
        kind: [
            Slice(s.name, s.record.shape, s.record.boxes, s.start, getattr(s, kind).double().clone().numpy())
            for s in optimizer.shards
        ]
        for kind in KINDS
    }


def run_and_save(case: Case, steps: int, out: Path) -> tuple[Path, dict[str, list[Slice]]]:
    mesh, model, optimizer = prepare(case)
    train(case, mesh, model, optimizer, range(steps))
    return keep(case, steps, out, mesh, model, optimizer), held(optimizer)


def run_and_load(case: Case, path: Path) -> tuple[int, dict[str, Any], int, dict[str, list[Slice]]]:
    mesh, model, optimizer = prepare(case, seed=99)
    step, saved = state.load(path, model, optimizer, mesh)
    return step, saved, optimizer.steps, held(optimizer)


def full(by_rank: Iterable[dict[str, list[Slice]]]) -> Full:
    ranks = list(by_rank)
    tensors = {kind: assemble(piece for rank in ranks for piece in rank[kind]) for kind in KINDS}
    for named in tensors.values():
        named.pop(
            "output_layer.weight", None
        )  # the alias, which `assemble` has compared among its own copies
    return tensors


def assert_equal(ours: Full, wanted: Full, kinds: Iterable[str] = KINDS) -> None:
    for kind in kinds:
        assert ours[kind].keys() == wanted[kind].keys()
        for name in wanted[kind]:
            np.testing.assert_array_equal(ours[kind][name], wanted[kind][name], err_msg=f"{kind}/{name}")


def world(case: Case) -> int:
    return Layout.parse(case.layout).world


def saved(case: Case, steps: int, out: Path) -> tuple[Path, Full]:
    results = run_ranks(world(case), run_and_save, case, steps, out)
    assert len({path for path, _ in results}) == 1
    return results[0][0], full(tensors for _, tensors in results)


def loaded(case: Case, path: Path) -> Full:
    results = run_ranks(world(case), run_and_load, case, path)
    assert all(r[:3] == (2, {"samples": 16}, 2) for r in results)
    return full(r[3] for r in results)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (Case("dp2", zero=1), ["dp3", "tp1", "tp2"]),
        (Case("tp2pp2", "llama"), ["tp1", "dp2pp2"]),
        (Case("tp1", "llama"), ["tp2dp2", "pp4"]),
        (Case("dp3", zero=0, micro=1), ["tp2pp2"]),
    ],
    ids=lambda value: str(value).replace(" ", "-"),
)
def test_any_layout_loads_any_to_the_bit(written: Case, read: list[str], tmp_path: Path) -> None:
    path, before = saved(written, 2, tmp_path)
    stored = Checkpoint(path)
    assert stored.layout == written.layout
    assert stored.aliases == {"output_layer.weight": "embedding.word_embeddings.weight"}
    for name, values in before["exp_avg_sq"].items():
        raw = np.frombuffer(stored.read_full(f"exp_avg_sq/{name}"), np.float64).reshape(values.shape)
        np.testing.assert_array_equal(raw, values)
    for layout in read:
        for zero in (0, 1):
            assert_equal(loaded(replace(written, layout=layout, zero=zero), path), before)
            if "dp" not in layout:
                break


def load_and_save(case: Case, path: Path, out: Path) -> Path:
    mesh, model, optimizer = prepare(case, seed=99)
    step, _ = state.load(path, model, optimizer, mesh)
    return keep(case, step, out, mesh, model, optimizer)


def test_a_checkpoint_survives_a_round_of_layouts_to_the_bit(tmp_path: Path) -> None:
    path, before = saved(Case("dp2", zero=1), 2, tmp_path / "dp2")
    for then in (Case("dp3", zero=1), Case("tp2pp2"), Case("tp1")):
        path = run_ranks(world(then), load_and_save, then, path, tmp_path / then.layout)[0]
        assert verify(path) == []
    assert_equal(loaded(Case("dp2", zero=1), path), before)


def go_on(case: Case, path: Path, steps: range) -> list[float]:
    mesh, model, optimizer = prepare(case, seed=99)
    state.load(path, model, optimizer, mesh)
    return train(case, mesh, model, optimizer, steps)


@pytest.mark.parametrize("then", [Case("tp2", "llama"), Case("dp2pp2", "llama", zero=1)], ids=str)
def test_training_goes_on_at_another_layout_as_if_unbroken(then: Case, tmp_path: Path) -> None:
    path, _ = saved(Case("dp2", "llama", zero=1), 2, tmp_path)
    losses = run_ranks(world(then), go_on, then, path, range(2, 4))[0]
    unbroken = reference(Case("tp1", "llama", steps=4)).losses[2:]
    np.testing.assert_allclose(losses, unbroken, rtol=1e-9)


def test_resume_at_the_same_layout_is_exact(tmp_path: Path) -> None:
    case = Case("tp1", dtype=torch.float32)
    mesh, model, optimizer = prepare(case)
    train(case, mesh, model, optimizer, range(2))
    path = keep(case, 2, tmp_path, mesh, model, optimizer)
    losses = train(case, mesh, model, optimizer, range(2, 5))
    assert go_on(case, path, range(2, 5)) == losses


@pytest.mark.parametrize(
    ("written", "read"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)], ids=str
)
def test_precision_may_change(written: torch.dtype, read: torch.dtype, tmp_path: Path) -> None:
    path, before = saved(Case("tp2", dtype=written), 2, tmp_path)
    after = loaded(Case("dp2", zero=1, dtype=read), path)
    assert_equal(after, before, ("master", "exp_avg", "exp_avg_sq"))
    for name, values in after["parameter"].items():
        rounded = torch.from_numpy(before["master"][name]).to(read).double().numpy()
        np.testing.assert_array_equal(values, rounded, err_msg=name)


def test_bf16_stores_master_weights(tmp_path: Path) -> None:
    path, before = saved(Case("dp2", zero=1, dtype=torch.bfloat16), 2, tmp_path)
    assert_equal(loaded(Case("tp2", dtype=torch.bfloat16), path), before)
    dtypes = {kind: {i.dtype for k, i in Checkpoint(path).tensors.items() if k.startswith(kind)} for kind in
              ("model/", "master/", "exp_avg/")}  # fmt: skip
    assert dtypes == {"model/": {"bfloat16"}, "master/": {"float32"}, "exp_avg/": {"float32"}}


def test_a_checkpoint_from_before_the_first_step_loads(tmp_path: Path) -> None:
    case = Case("tp1")
    path = keep(case, 0, tmp_path, *prepare(case))
    step, saved_state, steps, tensors = run_and_load(case, path)
    assert (step, saved_state, steps) == (0, {"samples": 0}, 0)
    assert not any(piece.values.any() for piece in tensors["exp_avg"] + tensors["exp_avg_sq"])


def test_a_model_alone_is_read_without_an_optimizer(tmp_path: Path) -> None:
    case = Case("tp1", dtype=torch.float32)
    mesh, model, optimizer = prepare(case)
    path = keep(case, 1, tmp_path, mesh, model, optimizer)
    other = build(case.shape, mesh, torch.bfloat16, seed=99)
    state.load(path, other, None, mesh)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.bfloat16(), b)


def test_weights_alone_leave_the_optimizer_new(tmp_path: Path) -> None:
    case = Case("tp1")
    mesh, model, optimizer = prepare(case)
    with PartWriter(begin(tmp_path, 7), 0) as writer:
        for name, parameter, record in sharded_parameters(model):
            data = parameter.detach().view(-1)[: record.volume].numpy().data
            writer.write(f"model/{name}", "float64", record.shape, record.boxes, 0, record.volume, data)
    path = commit(tmp_path / ".tmp-iter_0000007", layout="tp1", config={}, state={})
    train(case, mesh, model, optimizer, range(1))
    assert state.load(path, model, optimizer, mesh) == (7, {})
    assert optimizer.steps == 0
    assert not any(shard.exp_avg.any() for shard in optimizer.shards)
    fresh = build(case.shape, mesh, case.dtype)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 6}, "no tensor model/decoder.layers.5"),
        ({"layers": 2}, "has the tensor decoder.layers.2.input_layernorm.bias, which the model has not"),
        ({"hidden": 32}, r"model/decoder.final_layernorm.bias is \(24,\) in .*, the model wants \(32,\)"),
        ({"vocab": 102}, r"\(101, 24\) .* the model wants \(102, 24\)"),
        (
            {"tied": False},
            "output_layer.weight is tied to embedding.word_embeddings.weight in .*, the model's own is not",
        ),
        ({"position": "rope"}, "has the tensor embedding.position_embeddings.weight"),
    ],
)
def test_another_model_is_refused_by_name(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    case = Case("tp1")
    path = keep(case, 1, tmp_path, *prepare(case))
    mesh = Mesh.single()
    model = build(case.shape.model_copy(update=change), mesh, torch.float64)
    with pytest.raises(CheckpointError, match=message):
        state.load(path, model, Optimizer(model, mesh, case.settings), mesh)


def test_lost_optimizer_state_is_an_error(tmp_path: Path) -> None:
    """A checkpoint that says it was saved with an optimizer must hold every moment."""
    case = Case("tp1")
    mesh, model, optimizer = prepare(case)
    with PartWriter(begin(tmp_path, 7), 0) as writer:
        for name, parameter, record in sharded_parameters(model):
            data = parameter.detach().view(-1)[: record.volume].numpy().data
            writer.write(f"model/{name}", "float64", record.shape, record.boxes, 0, record.volume, data)
    counts = {"optimizer": {"steps": 7, "skipped": 0}}
    path = commit(tmp_path / ".tmp-iter_0000007", layout="tp1", config={}, state=counts)
    with pytest.raises(CheckpointError, match="no tensor exp_avg/"):
        state.load(path, model, optimizer, mesh)


def damaged_for_one_rank(case: Case, path: Path) -> str:
    mesh, model, optimizer = prepare(case)
    with pytest.raises(CheckpointError) as caught:
        state.load(path, model, optimizer, mesh)
    return str(caught.value)


def test_damage_that_one_rank_sees_stops_all_with_one_message(tmp_path: Path) -> None:
    case = Case("dp2", zero=1)
    path, _ = saved(case, 1, tmp_path)
    victim = path / "optim" / "part00001-0.safetensors"
    data = bytearray(victim.read_bytes())
    data[-5] ^= 1
    victim.write_bytes(data)
    messages = run_ranks(2, damaged_for_one_rank, case, path)
    assert messages[0] == messages[1]
    assert "part00001-0.safetensors is damaged" in messages[0]
    assert messages[0].endswith("(rank 1)")


def save_without_room(case: Case, out: Path, victim: int) -> tuple[str, Path]:
    mesh, model, optimizer = prepare(case)
    good = keep(case, 1, out, mesh, model, optimizer)
    if mesh.world.rank == victim:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, hard))  # a disk quota
    with pytest.raises(CheckpointError) as caught:
        keep(case, 2, out, mesh, model, optimizer)
    return str(caught.value), good


@pytest.mark.parametrize("victim", [0, 1])
def test_a_save_that_fails_on_one_rank_fails_on_all_and_leaves_nothing(victim: int, tmp_path: Path) -> None:
    results = run_ranks(2, save_without_room, Case("tp2"), tmp_path, victim)
    assert results[0] == results[1]
    message, good = results[0]
    assert message.startswith(f"step 2 cannot be saved in {tmp_path}: File too large")
    assert message.endswith(f"(rank {victim})")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["iter_0000001", "latest"]
    assert newest(tmp_path) == good
    assert verify(good) == []
