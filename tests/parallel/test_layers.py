"""Every layer at tp 1, 2 and 4 against plain torch on full tensors: output, input gradient, weight gradients.

In float64, so that 1e-9 leaves no room for an error of substance: sums in another order differ by 1e-15.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtl_common.errors import ConfigError
from mtl_common.layout import Layout
from mtl_common.shapes import ModelShape
from mtl_common.tensors import vocabulary_rows
from mtl_parallel.collectives import all_gather
from mtl_parallel.launch import finish, start
from mtl_parallel.layers.attention import SelfAttention, causal
from mtl_parallel.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from mtl_parallel.layers.linear import ColumnParallelLinear, RowParallelLinear
from mtl_parallel.layers.loss import cross_entropy
from mtl_parallel.layers.mlp import MLP
from mtl_parallel.layers.norm import LayerNorm, RMSNorm
from mtl_parallel.layers.rope import Rotary
from mtl_parallel.mesh import Axis, Mesh
from mtl_parallel.models.gpt import stage
from mtl_parallel.randomness import initialise
from mtl_parallel.sharding import Sharding, sharded_parameters
from ranks import run_ranks

DTYPE = torch.float64
B, T, H = 2, 6, 16
SHAPE = ModelShape(hidden=H, layers=2, heads=8, kv_heads=4, head_dim=6, ffn=24, vocab=101, seq=T)
LLAMA = SHAPE.model_copy(
    update={"norm": "rmsnorm", "position": "rope", "activation": "swiglu", "bias": False, "tied": False}
)
Full = dict[str, Tensor]
"""Full tensors by name."""


def noise(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=DTYPE, generator=generator)


def local(full: Tensor, record: Sharding, like: Tensor) -> Tensor:
    """A rank's memory of a full tensor, zero in the padding."""
    flat = torch.zeros(like.numel(), dtype=full.dtype)
    parts = [full[tuple(map(slice, box.offset, box.end))].flatten() for box in record.boxes]
    flat[: record.volume] = torch.cat(parts) if parts else 0.0
    return flat.view(like.shape)


def fill(module: nn.Module) -> Full:
    """Gives every parameter its part of a noisy full tensor; returns those, ready to collect gradients."""
    full = {}
    for name, parameter, record in sharded_parameters(module):
        full[name] = noise(*record.shape) / 3
        parameter.data.copy_(local(full[name], record, parameter))
        full[name].requires_grad_()
    return full


def same(ours: Tensor | None, wanted: Tensor | None) -> None:
    assert ours is not None
    assert wanted is not None
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-9 * float(wanted.detach().abs().max()))


def same_gradients(module: nn.Module, full: Full) -> None:
    for name, parameter, record in sharded_parameters(module):
        wanted = full[name].grad
        assert wanted is not None, name
        assert parameter.grad is not None, name
        same(parameter.grad, local(wanted, record, parameter))


def part(x: Tensor, axis: Axis) -> Tensor:
    return x.chunk(axis.size, dim=-1)[axis.rank]


def compare(
    module: nn.Module,
    ours: Callable[[Tensor], Tensor],
    wanted: Callable[[Tensor, Full], Tensor],
    x: Tensor,
    cut_input: Axis | None = None,
    cut_output: Axis | None = None,
) -> None:
    full = fill(module)
    x = x.clone().requires_grad_()
    y = wanted(x, full)
    dy = noise(*y.shape)
    y.backward(dy)
    own = (part(x, cut_input) if cut_input else x).detach().clone().requires_grad_()
    out = ours(own)
    out.backward(part(dy, cut_output) if cut_output else dy)
    same(out, part(y, cut_output) if cut_output else y)
    same(own.grad, part(x.grad, cut_input) if cut_input and x.grad is not None else x.grad)
    same_gradients(module, full)


def check_linears(axis: Axis) -> None:
    for bias in (True, False):

        def plain(x: Tensor, full: Full) -> Tensor:
            return F.linear(x, full["weight"], full.get("bias"))

        column = ColumnParallelLinear(H, 24, axis, bias=bias, dtype=DTYPE)
        compare(column, column, plain, noise(B, T, H), cut_output=axis)
        row = RowParallelLinear(24, H, axis, bias=bias, dtype=DTYPE)
        compare(row, row, plain, noise(B, T, 24), cut_input=axis)


def check_mlp(axis: Axis) -> None:
    def activated(name: str, x: Tensor) -> Tensor:
        if name == "swiglu":
            return torch.sigmoid(x[..., :24]) * x[..., :24] * x[..., 24:]
        if name == "gelu":
            return x * (1 + torch.erf(x / 2**0.5)) / 2
        return x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2

    for name in ("gelu", "gelu_tanh", "swiglu"):
        shape = SHAPE.model_copy(update={"activation": name})

        def plain(x: Tensor, full: Full, name: str = name) -> Tensor:
            inner = activated(name, F.linear(x, full["linear_fc1.weight"], full["linear_fc1.bias"]))
            return F.linear(inner, full["linear_fc2.weight"], full["linear_fc2.bias"])

        mlp = MLP(shape, axis, std=0.02, dtype=DTYPE)
        compare(mlp, mlp, plain, noise(B, T, H))


def turned(x: Tensor, base: float) -> Tensor:
    """Rotary positions as complex products, `(B, T, N, D)`."""
    D = x.shape[-1]
    speed = (1.0 / base ** (torch.arange(0, D, 2, dtype=torch.float32) / D)).to(DTYPE)
    angle = (torch.arange(T, dtype=DTYPE)[:, None] * speed).float()
    turn = torch.complex(angle.cos().to(DTYPE), angle.sin().to(DTYPE))[:, None]  # (T, 1, D/2)
    pairs = torch.complex(x[..., : D // 2], x[..., D // 2 :]) * turn
    return torch.cat((pairs.real, pairs.imag), -1)


def check_attention(axis: Axis) -> None:
    N, K, D = SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim
    for rope in (False, True):

        def plain(x: Tensor, full: Full, rope: bool = rope) -> Tensor:
            qkv = F.linear(x, full["linear_qkv.weight"], full["linear_qkv.bias"])
            qkv = qkv.view(B, T, K, N // K + 2, D)
            q, k, v = qkv[:, :, :, :-2].reshape(B, T, N, D), qkv[:, :, :, -2], qkv[:, :, :, -1]
            if rope:
                q, k = turned(q, 10_000.0), turned(k, 10_000.0)
            k, v = (x.repeat_interleave(N // K, dim=2) for x in (k, v))
            scores = torch.einsum("bind,bjnd->bnij", q, k) / D**0.5
            scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
            out = torch.einsum("bnij,bjnd->bind", scores.softmax(-1), v).reshape(B, T, N * D)
            return F.linear(out, full["linear_proj.weight"], full["linear_proj.bias"])

        attention = SelfAttention(SHAPE, axis, layer=0, std=0.02, dtype=DTYPE)
        turn = Rotary(D, T, 10_000.0)(torch.arange(T)) if rope else None
        compare(attention, lambda x, a=attention, turn=turn: a(x, turn, causal), plain, noise(B, T, H))


def check_embedding(axis: Axis) -> None:
    tokens = torch.tensor([[0, 1, 63, 64, 100, 100], [50, 51, 77, 0, 99, 2]])
    words = VocabParallelEmbedding(101, H, axis, dtype=DTYPE)
    full = fill(words)
    dy = noise(B, T, H)
    wanted = full["weight"][tokens]
    wanted.backward(dy)
    ours = words(tokens)
    ours.backward(dy)
    same(ours, wanted)
    same_gradients(words, full)


def check_loss(axis: Axis) -> None:
    labels = torch.tensor([[0, 1, 63, 64, 100, 100], [50, 51, 77, -100, 99, 2]])
    mask = torch.tensor([[1, 1, 0, 1, 0.5, 1], [0, 0, 1, 0, 1, 1]])
    columns = vocabulary_rows(101, axis.size)
    own = slice(axis.rank * columns, (axis.rank + 1) * columns)
    for scale in (1.0, 300.0):  # the larger one makes most probabilities vanish
        full = (noise(B, T, columns * axis.size) * scale).requires_grad_()  # padding is noise, to be ignored
        flat = full[..., :101].flatten(0, 1)
        each = F.cross_entropy(flat, labels.flatten(), reduction="none", ignore_index=-100)
        wanted = (each * mask.flatten()).sum()
        (3 * wanted).backward()
        logits = full.detach()[..., own].clone().requires_grad_()
        loss = cross_entropy(logits * 1, labels, mask, 101, axis)
        (3 * loss).backward()
        same(loss, wanted)
        assert full.grad is not None
        assert logits.grad is not None
        torch.testing.assert_close(logits.grad, full.grad[..., own], rtol=0, atol=1e-12)
        with torch.no_grad():
            same(cross_entropy(full[..., own].clone(), labels, mask, 101, axis), wanted)


def check_gpt(mesh: Mesh) -> None:
    tokens = torch.arange(B * T).view(B, T) * 7 % 101
    labels, mask = tokens.roll(-1, 1), torch.tensor([[1, 1, 0, 1, 1, 1], [0, 0, 0, 1, 0, 1]])
    for shape in (SHAPE, SHAPE.model_copy(update={"tied": False}), LLAMA):
        alone, cut = stage(shape, Mesh.single(), DTYPE), stage(shape, mesh, DTYPE)
        full = fill(alone)
        for name, parameter, record in sharded_parameters(cut):
            parameter.data.copy_(local(full[name].detach(), record, parameter))
        logits = [model(tokens) for model in (alone, cut)]
        gathered = all_gather(logits[1].detach(), mesh.tp, dim=2)
        same(gathered[..., :101], logits[0][..., :101])
        losses = [model.loss(x, labels, mask) for model, x in zip((alone, cut), logits, strict=True)]
        same(losses[1], losses[0])
        for loss in losses:
            loss.backward()
        for name, parameter, record in sharded_parameters(alone):
            assert parameter.grad is not None
            full[name].grad = parameter.grad.view(-1)[: record.volume].view(record.shape)
        same_gradients(cut, full)


def check_initial_values(mesh: Mesh) -> None:
    for shape in (SHAPE, LLAMA):
        alone, cut = stage(shape, Mesh.single()), stage(shape, mesh)
        for model in (alone, cut):
            initialise(model, seed=5)
        full = {n: p.detach().view(-1)[: r.volume].view(r.shape) for n, p, r in sharded_parameters(alone)}
        for name, parameter, record in sharded_parameters(cut):
            assert torch.equal(parameter, local(full[record.alias or name], record, parameter)), name


def on_ranks(layout: Layout) -> None:
    mesh = start(layout, "cpu")
    check_linears(mesh.tp)
    check_mlp(mesh.tp)
    check_attention(mesh.tp)
    check_embedding(mesh.tp)
    check_loss(mesh.tp)
    check_gpt(mesh)
    check_initial_values(mesh)
    finish()


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_every_layer_equals_plain_torch(tp: int) -> None:
    run_ranks(tp, on_ranks, Layout(tp=tp))


def stages_on_ranks(layout: Layout) -> None:
    check_initial_values(start(layout, "cpu"))
    finish()


@pytest.mark.parametrize("layout", [Layout(pp=2), Layout(tp=2, pp=2)], ids=str)
def test_initial_values_are_those_of_one_process(layout: Layout) -> None:
    run_ranks(layout.world, stages_on_ranks, layout)


def test_norms_and_positions_equal_their_formulas() -> None:
    x = noise(B, T, H) + 2

    def layernorm(x: Tensor, full: Full) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt()
        return scaled * full["weight"] + full.get("bias", 0)

    def rmsnorm(x: Tensor, full: Full) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * full["weight"]

    for bias in (True, False):
        layer = LayerNorm(H, eps=1e-3, bias=bias, dtype=DTYPE)
        compare(layer, layer, layernorm, x)
    root = RMSNorm(H, eps=1e-3, dtype=DTYPE)
    compare(root, root, rmsnorm, x)

    learned = PositionEmbedding(T, H, dtype=DTYPE)
    full = fill(learned)
    positions = torch.tensor([[0, 1, 2, 0, 1, 5]])
    wanted = full["weight"][positions]
    wanted.backward(torch.ones_like(wanted))
    ours = learned(positions)
    ours.backward(torch.ones_like(ours))
    same(ours, wanted)
    same_gradients(learned, full)


@pytest.mark.parametrize(
    ("change", "layout", "message"),
    [
        (
            {"heads": 6, "kv_heads": 6},
            Layout(tp=4),
            "heads 6 cannot be divided by tp 4; choose tp from 1, 2, 3, 6",
        ),
        ({"kv_heads": 2}, Layout(tp=4), "kv_heads 2 cannot be divided by tp 4; choose tp from 1, 2"),
        ({"ffn": 22}, Layout(tp=4), "ffn 22 cannot be divided by tp 4; choose tp from 1, 2, 11, 22"),
        ({"layers": 3}, Layout(pp=2), "layers 3 cannot be divided by pp 2; choose pp from 1, 3"),
    ],
)
def test_a_shape_that_cannot_be_cut_is_one_sentence(
    change: dict[str, int], layout: Layout, message: str
) -> None:
    shape = SHAPE.model_copy(update=change)
    axes = {name: Axis(name, 0, size, tuple(range(size))) for name, size in layout.sizes().items()}
    mesh = replace(Mesh.single(), layout=layout, **axes)
    with pytest.raises(ConfigError) as caught:
        stage(shape, mesh)
    assert str(caught.value) == message
