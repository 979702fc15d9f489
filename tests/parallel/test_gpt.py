"""What a server asks of the model: flat batches with positions, its own attention, bf16, inference mode."""

import pytest
import torch
from torch import Tensor

from mtl_common.errors import ConfigError
from mtl_common.layout import Layout
from mtl_common.shapes import ModelShape, preset
from mtl_parallel.layers.attention import causal
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT, stage
from mtl_parallel.randomness import initialise

GPT2 = ModelShape(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=101, seq=16)
LLAMA = GPT2.model_copy(update={"norm": "rmsnorm", "position": "rope", "activation": "swiglu", "bias": False})
SHAPES = pytest.mark.parametrize("shape", [GPT2, LLAMA], ids=["gpt2", "llama"])
LENGTHS = (5, 1, 9)


def built(shape: ModelShape, dtype: torch.dtype = torch.float32) -> GPT:
    model = stage(shape, Mesh.single(), dtype)
    initialise(model, seed=1)
    return model


def prompts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 101, (1, length), generator=generator) for length in LENGTHS]


def each_alone(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention within each of several sequences that lie end to end in dim 1."""
    parts = zip(*(x.split(LENGTHS, dim=1) for x in (q, k, v)), strict=True)
    return torch.cat([causal(layer, *part) for part in parts], dim=1)


@SHAPES
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_a_flat_batch_equals_its_sequences(shape: ModelShape, dtype: torch.dtype, tolerance: float) -> None:
    model = built(shape, dtype)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    with torch.inference_mode():
        flat = model(torch.cat(prompts(), dim=1), positions=positions, attend=each_alone)
        wanted = torch.cat([model(prompt) for prompt in prompts()], dim=1)
        batched = model(torch.cat(prompts(), dim=1), positions=positions[None], attend=each_alone)
    assert flat.dtype == dtype
    torch.testing.assert_close(flat.float(), wanted.float(), rtol=0, atol=tolerance)
    assert torch.equal(batched, flat)


@SHAPES
def test_bf16_stays_near_fp32(shape: ModelShape) -> None:
    wide, narrow = built(shape), built(shape, torch.bfloat16)
    tokens = torch.cat(prompts(), dim=1)
    labels, mask = tokens.roll(-1, 1), torch.ones(tokens.shape)
    losses = []
    for model in (wide, narrow):
        loss = model.loss(model(tokens), labels, mask)
        assert loss.dtype == torch.float32
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)
    for (name, a), b in zip(wide.named_parameters(), narrow.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert b.grad.dtype == torch.bfloat16
        assert (a.grad - b.grad.float()).norm() < 0.05 * a.grad.norm(), name


@SHAPES
def test_the_model_sees_no_later_token(shape: ModelShape) -> None:
    model = built(shape)
    tokens = prompts()[2]
    changed = tokens.clone()
    changed[0, 6] += 1
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.equal(before[:, 6:], after[:, 6:])


def test_stages_in_a_row_equal_the_whole_model() -> None:
    shape = LLAMA.model_copy(update={"layers": 4, "tied": False})
    whole = built(shape)
    cuts = [range(0, 1), range(1, 3), range(3, 4)]
    x = prompts()[2]
    wanted = whole(x)
    for i, layers in enumerate(cuts):
        part = GPT(shape, Mesh.single(), layers=layers, first=i == 0, last=i == 2)
        initialise(part, seed=1)
        x = part(x)
    assert torch.equal(x, wanted)


def test_a_mesh_must_have_its_layouts_ranks() -> None:
    with pytest.raises(ConfigError, match="layout tp2 has 2 ranks but the world has 1"):
        Mesh.create(Layout(tp=2))


def test_a_large_model_is_described_without_memory() -> None:
    with torch.device("meta"):
        model = stage(preset("llama-70b"), Mesh.single("meta"), torch.bfloat16)
    assert sum(parameter.numel() for parameter in model.parameters()) == 68_976_648_192
