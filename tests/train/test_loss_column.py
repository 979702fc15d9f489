"""Bins that say which tokens count: what the model is asked, and the loss it gets, beside plain torch."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from corpus import make_bins
from mtl_common.bins import Bins
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT
from mtl_parallel.optimizer import Optimizer
from mtl_train.data import Loader
from mtl_train.order import Order
from mtl_train.step import Trainer
from training import GPT2, SETTINGS, build

SEQ, SAMPLES, EOD = 8, 6, 0


@pytest.fixture(scope="module")
def stream() -> tuple[list[list[int]], list[list[int]]]:
    """Documents, and for each of their tokens whether it counts: the second half and the end do."""
    generator = np.random.default_rng(3)
    documents = [generator.integers(1, 101, n).tolist() for n in generator.integers(3, 20, 12)]
    return documents, [[int(i > len(ids) / 2) for i in range(len(ids) + 1)] for ids in documents]


@pytest.fixture(scope="module", params=[40, 1000], ids=["several shards", "1 shard"])
def bins(
    stream: tuple[list[list[int]], list[list[int]]],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Bins:
    documents, loss = stream
    place = tmp_path_factory.mktemp("bins")
    return Bins(make_bins(place, documents, 101, eod=EOD, shard_tokens=request.param, loss=loss))


def expected(
    model: GPT, stream: tuple[list[list[int]], list[list[int]]], order: Order, mask_eod: bool
) -> tuple[torch.Tensor, int]:
    """The mean loss of the first samples, token by token, and how many tokens it is of."""
    ids = [id for document in stream[0] for id in (*document, EOD)]
    counts = [flag for flags in stream[1] for flag in flags]
    losses = []
    for sample in range(SAMPLES):
        start = order.position(sample)
        logits = model(torch.tensor([ids[start : start + SEQ]]))[0, :, :101]  # (T, V)
        for t in range(SEQ):
            label = start + t + 1
            if counts[label] and not (mask_eod and ids[label - 1] == EOD):
                losses.append(F.cross_entropy(logits[t], torch.tensor(ids[label])))
    return torch.stack(losses).mean(), len(losses)


@pytest.mark.parametrize("mask_eod", [False, True])
def test_only_what_counts_is_learned(
    bins: Bins, stream: tuple[list[list[int]], list[list[int]]], mask_eod: bool
) -> None:
    mesh, shape = Mesh.single(), GPT2.model_copy(update={"seq": SEQ})
    model = build(shape, mesh, torch.float64)
    order = Order(0, bins.tokens, SEQ, seed=1)
    eod = EOD if mask_eod else None
    batches = Loader(bins, order, SAMPLES, 2, mesh.dp, mesh.device, eod).step(0)
    loss, count = expected(model, stream, order, mask_eod)
    assert 0 < count < SAMPLES * SEQ
    assert sum(int(batch.mask.sum()) for batch in batches) == count
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()

    trainer = Trainer(model, Optimizer(model, mesh, SETTINGS, 0), mesh, "1f1b")
    assert trainer.evaluate(batches) == pytest.approx(loss.item(), rel=1e-9)
    assert trainer.step(batches, 0.01)[:2] == pytest.approx((loss.item(), norm), rel=1e-9)


def test_a_sample_has_a_mask_of_its_own(bins: Bins) -> None:
    mesh = Mesh.single()
    loader = Loader(bins, Order(0, bins.tokens, SEQ, seed=1), 1, 1, mesh.dp, mesh.device)
    first = loader.step(0)[0].mask.clone()
    loader.step(0)[0].mask.zero_()
    assert loader.step(1)[0].mask.shape == (1, SEQ)
    assert torch.equal(loader.step(0)[0].mask, first)
