"""Logits with cache, pages, chunks and company, against a plain forward pass over the whole context."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mtl_common.layout import Layout
from mtl_common.shapes import ModelShape
from mtl_parallel import launch, state
from mtl_parallel.layers.linear import Product
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT, stage
from mtl_serve.attention import Cache
from mtl_serve.columns import ColumnBlocks
from mtl_serve.message import Message
from mtl_serve.packed import packed
from mtl_serve.quicken import quicken
from mtl_serve.request import Request, Sampling, Stopping
from mtl_serve.runner import Leader, Line, Runner, follow
from mtl_serve.scheduler import Limits, Scheduler, Sequence
from ranks import run_ranks
from serving import GPT2, LLAMA, toy_model, write_checkpoint

LIMITS = Limits(step_tokens=24, sequences=4, context=160, page_size=8, pages=60)
SHAPES = pytest.mark.parametrize("shape", [LLAMA, GPT2], ids=["llama", "gpt2"])


def tokens(seed: int, count: int) -> list[int]:
    return torch.randint(0, LLAMA.vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def runner(model: GPT, limits: Limits) -> Runner:
    dtype = model.output_weight.dtype
    return Runner(model, Cache(model.shape, model.tp.size, limits, dtype, torch.device("cpu")))


def feed(
    step: Callable[[Message], Tensor], scheduler: Scheduler, texts: list[list[int]], prompt: int
) -> list[list[Tensor]]:
    """Feeds known texts, the first `prompt` tokens at once, then one by one; logits after each step."""
    sequences: list[Sequence] = []
    for number, text in enumerate(texts):
        request = Request(number, tuple(text[:prompt]), Sampling(seed=0), Stopping())
        sequences.append(scheduler.add(request))
    found: list[list[Tensor]] = [[] for _ in texts]
    while scheduler.busy:
        shares = scheduler.plan()
        logits = step(Message.step(shares))
        scheduler.advance(shares)
        for row, sequence in zip(logits, [s.sequence for s in shares if s.samples], strict=True):
            number = sequences.index(sequence)
            found[number].append(row)
            if len(sequence.tokens) == len(texts[number]):
                scheduler.remove(sequence)
            else:
                sequence.tokens.append(texts[number][len(sequence.tokens)])
    return found


def plain(model: GPT, text: list[int], prompt: int) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([text]))  # (1, T, Vp)
    return logits[0, prompt - 1 :, : model.shape.vocab].float()


@SHAPES
def test_a_long_context_in_chunks_and_steps_gives_the_plain_logits(shape: ModelShape) -> None:
    model = toy_model(shape, torch.float64)
    texts = [tokens(n, 150 - 7 * n) for n in range(3)]
    for text, rows in zip(texts, feed(runner(model, LIMITS).step, Scheduler(LIMITS), texts, 61), strict=True):
        torch.testing.assert_close(torch.stack(rows), plain(model, text, 61), rtol=1e-6, atol=1e-6)


@SHAPES
def test_preempted_and_scattered_sequences_give_the_plain_logits(shape: ModelShape) -> None:
    model = toy_model(shape, torch.float64)
    limits = replace(LIMITS, pages=26)  # three texts of 12 pages do not fit
    texts = [tokens(n, 90) for n in range(4)]
    scheduler = Scheduler(limits)
    tables: list[list[int]] = []
    run = runner(model, limits)

    def step(message: Message) -> Tensor:
        tables.extend(list(part.pages) for part in message.parts)
        return run.step(message)

    found = feed(step, scheduler, texts, 5)
    assert scheduler.preemptions
    assert any(b != a + 1 for table in tables for a, b in pairwise(table))
    for text, rows in zip(texts, found, strict=True):
        torch.testing.assert_close(torch.stack(rows), plain(model, text, 5), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quickened_products_change_rounding_only(dtype: torch.dtype) -> None:
    model, text = toy_model(LLAMA, dtype), tokens(0, 100)
    expected = plain(model, text, 40)
    exact = plain(toy_model(LLAMA, torch.float64), text, 40)
    quicken(model)
    found = torch.stack(feed(runner(model, LIMITS).step, Scheduler(LIMITS), [text], 40)[0])
    allowed = 1.5 * (expected - exact).abs().max() + 1e-5
    assert (found - exact).abs().max() <= allowed


def test_logits_do_not_depend_on_company_to_the_bit() -> None:
    model = toy_model(LLAMA)
    quicken(model)
    if packed(model.output_weight) is None:
        pytest.skip("this build of torch has no packed products")
    text, company = tokens(0, 60), [tokens(n, 60) for n in range(1, 4)]
    limits = replace(LIMITS, step_tokens=256)  # the prompt in one chunk, alone as in company
    alone = feed(runner(model, limits).step, Scheduler(limits), [text], 20)[0]
    together = feed(runner(model, limits).step, Scheduler(limits), [text, *company], 20)[0]
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("rows", [1, 3, 4, 40])
@pytest.mark.parametrize("shape", [(7, 5), (300, 1000), (1, 64)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kind", "dtype"), [(packed, torch.float32), (ColumnBlocks, torch.bfloat16)])
def test_products_are_those_of_linear(
    rows: int,
    shape: tuple[int, int],
    bias: bool,
    kind: Callable[[Tensor], Product | None],
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = ((1, rows, shape[1]), shape, shape[:1])
    x, weight, added = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
    product = kind(weight)
    if product is None:
        pytest.skip("this build of torch has no packed products")
    with torch.inference_mode():
        found = product(x, torch.empty(0), added if bias else None)
    assert found.dtype == dtype
    exact = torch.nn.functional.linear(x.double(), weight.double(), added.double() if bias else None)
    scale = (x.double().abs() @ weight.double().abs().t()).max()  # of what is summed
    allowed = torch.finfo(dtype).eps * exact.abs() + torch.finfo(torch.float32).eps * 4 * scale
    assert ((found.double() - exact).abs() <= allowed + (0.02 if bias else 0)).all()


def serve(path: Path, tp: int, texts: list[list[int]], prompt: int) -> list[list[Tensor]] | None:
    mesh = launch.start(Layout(tp=tp), "cpu")
    model = stage(LLAMA, mesh).eval().requires_grad_(False)
    state.load(path, model, None, mesh)
    quicken(model)
    line, run = Line(mesh.tp, LIMITS), runner(model, LIMITS)
    if not mesh.tp.first:
        follow(run, line)
        return None
    leader = Leader(run, line)
    found = feed(leader.step, Scheduler(LIMITS), texts, prompt)
    leader.pulse()
    leader.leave()
    return found


def test_two_ranks_give_the_plain_logits_and_never_the_padding(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, LLAMA)
    texts = [tokens(n, 150) for n in range(3)]
    found, nothing = run_ranks(2, serve, path, 2, texts, 70)
    assert nothing is None
    model = toy_model(LLAMA)
    for text, rows in zip(texts, found, strict=True):
        assert rows[0].shape == (LLAMA.vocab,)
        torch.testing.assert_close(torch.stack(rows), plain(model, text, 70), rtol=1e-4, atol=1e-4)


def test_a_mesh_of_one_needs_no_group() -> None:
    model = toy_model(GPT2)
    leader = Leader(runner(model, LIMITS), Line(Mesh.single().tp, LIMITS))
    leader.pulse()
    assert len(feed(leader.step, Scheduler(LIMITS), [tokens(0, 9)], 4)[0]) == 6
    leader.leave()
