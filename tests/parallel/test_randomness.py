"""Initial values: Philox by its published vectors, and values by their distribution, slices and dtypes."""

import math

import pytest
import torch
from torch import nn

from mtl_common.boxes import Box
from mtl_common.shapes import preset
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import stage
from mtl_parallel.randomness import Words, initialise, philox
from mtl_parallel.sharding import Sharding, declare, sharded_parameters


def words(*values: int) -> Words:
    a, b, c, d = (torch.tensor([value]) for value in values)
    return a, b, c, d


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [  # Random123's kat_vectors, philox4x32 with 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], wanted: tuple[int, ...]
) -> None:
    assert tuple(word.item() for word in philox(words(*counter), key)) == wanted


class Holder(nn.Module):
    """One parameter, declared as some boxes of a tensor."""

    def __init__(self, shape: tuple[int, ...], *boxes: Box, padding: int = 0, **record: float) -> None:
        super().__init__()
        size = sum(box.volume for box in boxes) + padding
        self.weight = declare(nn.Parameter(torch.full((size,), torch.nan)), Sharding(shape, boxes, **record))


def drawn(module: nn.Module, seed: int = 0) -> torch.Tensor:
    initialise(module, seed)
    return next(module.parameters()).detach()


SHAPE = (700, 1003)


@pytest.fixture(scope="module")
def full() -> torch.Tensor:
    return drawn(Holder(SHAPE, Box.full(SHAPE), std=1.0)).view(SHAPE)


def test_values_are_normal(full: torch.Tensor) -> None:
    n = full.numel()
    values = full.double().flatten()
    assert abs(values.mean()) < 4 / n**0.5
    assert abs(values.var() - 1) < 4 * (2 / n) ** 0.5
    assert abs((values**3).mean()) < 4 * (15 / n) ** 0.5
    assert abs((values**4).mean() - 3) < 4 * (96 / n) ** 0.5
    ordered = values.sort().values
    cdf = (1 + torch.erf(ordered / 2**0.5)) / 2
    distance = (cdf - torch.arange(1, n + 1) / n).abs().max()  # Kolmogorov and Smirnov
    assert distance < 1.95 / n**0.5  # one chance in a thousand
    assert math.sqrt(2 * math.log(n)) - 1 < values.abs().max() < 6.7
    neighbours = (full[:, 1:] * full[:, :-1]).mean(), (full[1:] * full[:-1]).mean()
    assert max(map(abs, neighbours)) < 4 / n**0.5
    assert len(values.unique()) > 0.9 * n


@pytest.mark.parametrize("offset", [(0, 0), (3, 1), (5, 2), (699, 1002), (13, 400)])
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (650, 5), (4, 600), (700, 1003)])
def test_a_slice_holds_the_values_of_the_full_tensor(
    full: torch.Tensor, offset: tuple[int, int], size: tuple[int, int]
) -> None:
    box = Box(offset, size).intersect(Box.full(SHAPE))
    assert box is not None
    part = drawn(Holder(SHAPE, box, std=1.0)).view(box.size)
    assert torch.equal(part, full[box.slices(Box.full(SHAPE))])


def test_boxes_lie_end_to_end_before_zero_padding(full: torch.Tensor) -> None:
    boxes = Box((8, 0), (3, 1003)), Box((400, 0), (2, 1003))
    values = drawn(Holder(SHAPE, *boxes, padding=7, std=1.0))
    assert torch.equal(values[: 5 * 1003].view(5, -1), torch.cat((full[8:11], full[400:402])))
    assert values[5 * 1003 :].tolist() == [0] * 7


def test_seed_and_name_choose_the_values(full: torch.Tensor) -> None:
    holder = Holder(SHAPE, Box.full(SHAPE), std=1.0)
    other = drawn(holder, seed=1)
    assert abs((other * full.flatten()).mean()) < 0.01
    outer = nn.ModuleDict({"inner": holder})
    assert abs((drawn(outer) * full.flatten()).mean()) < 0.01
    assert torch.equal(drawn(holder), full.flatten())


def test_mean_std_and_constants(full: torch.Tensor) -> None:
    scaled = drawn(Holder(SHAPE, Box.full(SHAPE), std=0.5, mean=2.0))
    assert torch.equal(scaled, full.flatten() * 0.5 + 2)
    assert torch.equal(drawn(Holder((5,), Box.full((5,)), mean=1.0)), torch.ones(5))


def test_a_model_starts_as_its_records_say() -> None:
    shape = preset("tiny")
    wide, narrow = stage(shape, Mesh.single()), stage(shape, Mesh.single(), torch.bfloat16)
    for model in (wide, narrow):
        initialise(model, seed=3)
    small = 0.02 / (2 * shape.layers) ** 0.5
    for (name, parameter, record), rounded in zip(sharded_parameters(wide), narrow.parameters(), strict=True):
        assert torch.equal(parameter.bfloat16(), rounded), name
        projection = name.endswith(("linear_proj.weight", "linear_fc2.weight"))
        std = 0.0 if parameter.dim() == 1 else small if projection else 0.02
        mean = 1.0 if name.endswith("layernorm.weight") else 0.0
        assert (record.std, record.mean) == (std, mean), name
        if std:
            assert abs(parameter.std() / std - 1) < 0.02, name
        else:
            assert torch.equal(parameter, torch.full_like(parameter, mean)), name
