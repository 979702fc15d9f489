"""How fast a checkpoint is written and read: python bench/checkpoint.py [--gib 1] [--out DIR]

A measurement beside torch.save and safetensors, not a claim to be faster: the disk is the limit of all
three. Ours hashes every byte both ways, in at most 64 MiB of memory beside the tensors. Sides take turns
(A B C A B C ...) in one run; every write ends with fsync, every read starts with the file's pages dropped.
"""

import argparse
import os
import resource
import shutil
import statistics
import time
from collections.abc import Callable
from math import prod
from pathlib import Path

import safetensors.torch
import torch

from mtl_common.boxes import Box
from mtl_common.checkpoint import Checkpoint, PartWriter, begin, commit

Tensors = dict[str, torch.Tensor]


def some_tensors(gib: float) -> Tensors:
    """Matrices of 32 MiB and as many vectors, of random values."""
    count = round(gib * 32)
    shapes = {f"matrix{i}": (8192, 1024) for i in range(count)} | {
        f"vector{i}": (1024,) for i in range(count)
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def drop_pages(path: Path) -> None:
    """Makes the next read of the files come from the disk."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def flush(path: Path) -> None:
    """Waits until the file is on the disk."""
    with path.open("rb") as opened:
        os.fsync(opened.fileno())


def save_ours(tensors: Tensors, out: Path) -> Path:
    """One writer, committed."""
    staging = begin(out, 1)
    with PartWriter(staging, 0) as writer:
        for name, x in tensors.items():
            box, shape = [Box.full(tuple(x.shape))], tuple(x.shape)
            writer.write(f"model/{name}", "float32", shape, box, 0, x.numel(), x.numpy().data)
    return commit(staging, layout="tp1", config={}, state={})


def load_ours(path: Path, into: Tensors) -> None:
    """Every tensor read into place, its hashes checked."""
    checkpoint = Checkpoint(path)
    for name, x in into.items():
        checkpoint.read(f"model/{name}", [Box.full(tuple(x.shape))], 0, x.numel(), x.numpy().data)


def save_torch(tensors: Tensors, out: Path) -> Path:
    """torch.save and fsync."""
    out.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, out / "x.pt")
    flush(out / "x.pt")
    return out / "x.pt"


def load_torch(path: Path, into: Tensors) -> None:
    """torch.load, copied into place."""
    for name, x in torch.load(path).items():
        into[name].copy_(x)


def save_safetensors(tensors: Tensors, out: Path) -> Path:
    """save_file and fsync."""
    out.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, out / "x.safetensors")
    flush(out / "x.safetensors")
    return out / "x.safetensors"


def load_safetensors(path: Path, into: Tensors) -> None:
    """load_file, copied into place."""
    for name, x in safetensors.torch.load_file(path).items():
        into[name].copy_(x)


SIDES: dict[str, tuple[Callable[[Tensors, Path], Path], Callable[[Path, Tensors], None]]] = {
    "mtl": (save_ours, load_ours),
    "torch.save": (save_torch, load_torch),
    "safetensors": (save_safetensors, load_safetensors),
}


def seconds(work: Callable[[], object]) -> float:
    """The wall time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peak() -> int:
    """The most memory the process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def measure(name: str, tensors: Tensors, into: Tensors, out: Path) -> dict[str, float]:
    """GB/s of one side's save, cold load and hot load; the data is checked."""
    save, load = SIDES[name]
    size = sum(prod(x.shape) * 4 for x in tensors.values()) / 1e9
    shutil.rmtree(out, ignore_errors=True)
    found = {"save": size / seconds(lambda: save(tensors, out))}
    path = out / "iter_0000001" if name == "mtl" else next(out.iterdir())
    drop_pages(path)
    found["load cold"] = size / seconds(lambda: load(path, into))
    found["load hot"] = size / seconds(lambda: load(path, into))
    assert all(torch.equal(into[key], x) for key, x in tensors.items())
    shutil.rmtree(out)
    return found


def main() -> None:
    """Measures and prints medians and ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench-checkpoint"))
    options = parser.parse_args()
    tensors = some_tensors(options.gib)
    into = {name: torch.zeros_like(x) for name, x in tensors.items()}
    before = peak()
    measure("mtl", tensors, into, options.out)  # a warm-up, and the first to take memory
    print(f"extra memory of mtl: {peak() - before} MiB")
    results: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for name in SIDES:
            for what, rate in measure(name, tensors, into, options.out).items():
                results.setdefault((name, what), []).append(rate)
    for (name, what), rates in results.items():
        low, middle, high = min(rates), statistics.median(rates), max(rates)
        print(f"{name:<12} {what:<10} {middle:5.2f} GB/s ({low:.2f}-{high:.2f})")


if __name__ == "__main__":
    main()
