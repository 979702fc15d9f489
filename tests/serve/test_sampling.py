"""Drawing tokens: against transformers' filters and plain softmax, and independent of company."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from mtl_serve.request import BadRequest, Sampling, Stopping
from mtl_serve.sampling import draw, sample, uniform

VOCAB = 501


@pytest.fixture(scope="module")
def logits() -> Tensor:
    return 3 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(0))


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """What transformers would sample from."""
    rows, ids = logits[None], torch.zeros(1, 1, dtype=torch.long)
    rows = TemperatureLogitsWarper(sampling.temperature)(ids, rows)
    if sampling.top_k:
        rows = TopKLogitsWarper(sampling.top_k)(ids, rows)
    if sampling.top_p < 1:
        rows = TopPLogitsWarper(sampling.top_p)(ids, rows)
    return torch.softmax(rows, -1)[0]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7, top_k=5),
        Sampling(top_p=0.8),
        Sampling(temperature=5.0, top_p=0.99),
        Sampling(temperature=1.3, top_k=40, top_p=0.6),
        Sampling(top_k=VOCAB),
        Sampling(top_k=2**31 - 1, top_p=0.5),
    ],
    ids=str,
)
def test_draws_follow_the_distribution_of_transformers(logits: Tensor, sampling: Sampling) -> None:
    count = 4000
    wanted = distribution(logits, sampling).double()
    # Noise on an even grid: each token comes up as often as its probability says, to a grid step.
    found = torch.bincount(
        torch.tensor([draw(logits, sampling, (n + 0.5) / count) for n in range(count)]), minlength=VOCAB
    )
    assert set(found.nonzero().flatten().tolist()) <= set(wanted.nonzero().flatten().tolist())
    assert (found / count - wanted).abs().max() <= 1.01 / count


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-10, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tiny_temperature_is_greedy(logits: Tensor, temperature: float, dtype: torch.dtype) -> None:
    row = logits.to(dtype).float()
    row[7] = row.max() + 0.1
    for noise in (0.0, 0.5, 1 - 2**-53):
        assert sample(row[None], [(Sampling(temperature, top_p=0.5), noise)]) == [7]


def test_top_k_1_is_greedy_at_any_temperature(logits: Tensor) -> None:
    assert sample(logits[None], [(Sampling(100.0, top_k=1), 0.99)]) == [int(logits.argmax())]


def test_each_row_of_a_mixed_batch_is_sampled_as_if_alone(logits: Tensor) -> None:
    rows = torch.stack([logits.roll(n) for n in range(6)])
    wants = [
        Sampling(0.0),
        Sampling(),
        Sampling(top_k=3),
        Sampling(2.0, top_p=0.5),
        Sampling(top_k=1),
        Sampling(),
    ]
    pairs = [(want, uniform(9, 0, n)) for n, want in enumerate(wants)]
    together = sample(rows, pairs)
    assert together == [sample(rows[n : n + 1], pairs[n : n + 1])[0] for n in range(6)]


@given(st.floats(0, 1, exclude_max=True))
def test_a_token_without_probability_is_never_drawn(noise: float) -> None:
    row = torch.full((64,), -math.inf)
    row[[3, 40]] = torch.tensor([0.0, -80.0])
    assert draw(row, Sampling(), noise) in (3, 40)
    assert draw(row, Sampling(top_p=0.999), noise) == 3


def test_noise_is_uniform_and_depends_on_every_argument() -> None:
    values = torch.tensor([uniform(seed, 0, position) for seed in range(40) for position in range(50)])
    counts = torch.histc(values, bins=10, min=0, max=1)
    assert ((counts - 200) ** 2 / 200).sum() < 27.9  # chi-square, 9 degrees of freedom, one in a thousand
    assert len({uniform(*arguments) for arguments in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]}) == 4
    assert uniform(2**64 - 1, 0, 5) == uniform(2**64 - 1, 0, 5) < 1


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_impossible_sampling_is_told_by_name(values: dict[str, float], names: str) -> None:
    with pytest.raises(BadRequest, match=f"^{names} is "):
        Sampling(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "stopping", [{"max_new_tokens": 0}, {"stop_strings": ("a", "")}, {"stop_strings": ("a",) * 65}]
)
def test_impossible_stopping_is_refused(stopping: dict[str, int]) -> None:
    with pytest.raises(BadRequest):
        Stopping(**stopping)  # type: ignore[arg-type]
