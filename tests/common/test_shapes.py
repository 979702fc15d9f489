"""Parameter counts and FLOPs against published numbers, presets by name, shapes that cannot be."""

import pytest
from pydantic import ValidationError

from mtl_common.errors import ConfigError
from mtl_common.layout import Layout
from mtl_common.shapes import PRESETS, ModelShape, check_layout, flops_per_token, parameters, preset

SMALL = ModelShape(hidden=8, layers=2, heads=4, kv_heads=2, head_dim=2, ffn=16, vocab=11, seq=5)


@pytest.mark.parametrize(
    ("name", "count"),
    [  # as the released checkpoints count them
        ("gpt2-124m", 124_439_808),
        ("gpt2-355m", 354_823_168),
        ("gpt2-774m", 774_030_080),
        ("gpt2-1.5b", 1_557_611_200),
        ("llama-1b", 1_100_048_384),
        ("llama-7b", 6_738_415_616),
        ("llama-70b", 68_976_648_192),
    ],
)
def test_presets_have_the_published_size(name: str, count: int) -> None:
    assert parameters(preset(name)) == count


@pytest.mark.parametrize(
    "size", ["1.7", "3.6", "7.5", "18.4", "39.1", "76.1", "145.6", "310.1", "529.6", "1008"]
)
def test_sc21_sizes_agree_to_the_printed_digit(size: str) -> None:
    billions = parameters(preset(f"sc21-{size}b")) / 1e9
    assert f"{billions:.{len(size.partition('.')[2])}f}" == size


def test_every_tensor_is_counted() -> None:
    attention = 8 * (4 + 2 * 2) * 2 + 16 + 8 * 8 + 8  # qkv and its bias, projection and its bias
    mlp = 8 * 16 + 16 + 16 * 8 + 8
    assert parameters(SMALL) == 11 * 8 + 5 * 8 + 2 * (attention + mlp + 4 * 8) + 2 * 8
    untied = SMALL.model_copy(update={"tied": False})
    assert parameters(untied) - parameters(SMALL) == 11 * 8
    llama = {"norm": "rmsnorm", "position": "rope", "activation": "swiglu", "bias": False}
    bare = 8 * 8 * 2 + 8 * 8 + 3 * 8 * 16
    assert parameters(SMALL.model_copy(update=llama)) == 11 * 8 + 2 * (bare + 2 * 8) + 8


@pytest.mark.parametrize(
    ("hidden", "layers", "heads", "gpus", "batch", "seconds", "utilization"),
    [  # Korthikanti et al. 2022 (arXiv:2205.05198), tables 3 and 5; an A100 has 312 TFLOP/s
        (6144, 48, 64, 8, 4, 1.10, 41.5),
        (12288, 96, 96, 64, 64, 13.75, 51.4),
        (20480, 105, 128, 280, 280, 37.83, 56.0),
        (25600, 128, 160, 512, 512, 71.49, 56.3),
    ],
)
def test_flops_give_the_published_utilization(
    hidden: int, layers: int, heads: int, gpus: int, batch: int, seconds: float, utilization: float
) -> None:
    shape = ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=51200,
        seq=2048,
    )
    rate = batch * shape.seq * flops_per_token(shape) / seconds / gpus
    assert 100 * rate / 312e12 == pytest.approx(utilization, abs=0.3)


def test_flops_follow_the_formula_and_the_sequence() -> None:
    shape = preset("sc21-145.6b")
    L, H, V = shape.layers, shape.hidden, shape.vocab
    for seq in (512, 2048, 8192):
        wanted = 72 * L * H**2 * (1 + seq / (6 * H) + V / (12 * L * H))
        assert flops_per_token(shape, seq) == pytest.approx(wanted, rel=1e-12)
    assert flops_per_token(shape) == flops_per_token(shape, 2048)


def test_flops_of_grouped_heads_and_gates_count_what_is_multiplied() -> None:
    shape = preset("llama-70b")
    weights = 80 * (8192 * (64 + 2 * 8) * 128 + 8192 * 8192 + 3 * 8192 * 28672) + 32000 * 8192
    assert flops_per_token(shape, 100) == 6 * weights + 12 * 80 * 8192 * 100


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'no model preset "gtp2-124m" \(did you mean "gpt2-124m"\?\)'):
        preset("gtp2-124m")
    assert preset("tiny") is PRESETS["tiny"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 3}, "heads 4 cannot be divided by kv_heads 3"),
        ({"position": "rope", "head_dim": 3}, "rotary positions need an even head_dim, not 3"),
    ],
)
def test_impossible_shapes_are_one_sentence(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelShape(**{**SMALL.model_dump(), **change})
    assert str(caught.value) == message


@pytest.mark.parametrize("change", [{"hidden": 0}, {"seq": -1}, {"activation": "relu"}, {"width": 3}])
def test_values_outside_the_schema_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ModelShape(**{**SMALL.model_dump(), **change})


def test_layouts_that_cut_a_shape_evenly_pass() -> None:
    check_layout(SMALL, Layout(tp=2, pp=2, dp=3))
    for layout, message in (
        (Layout(tp=3), "heads 4 cannot be divided by tp 3; choose tp from 1, 2, 4"),
        (Layout(tp=4), "kv_heads 2 cannot be divided by tp 4; choose tp from 1, 2"),
        (Layout(pp=4), "layers 2 cannot be divided by pp 4; choose pp from 1, 2"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_layout(SMALL, layout)
        assert str(caught.value) == message
