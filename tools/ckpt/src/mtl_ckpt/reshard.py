"""Rewrites a checkpoint for another layout: each rank of it gets its own part in one file, in one run.

Any layout loads any checkpoint, so this changes only how fast that is: a rank of the new layout reads its
part front to back. Streams through a buffer of stated size; builds no model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mtl_ckpt.outputs import new_checkpoint
from mtl_ckpt.shape import model_shape
from mtl_common.boxes import Box
from mtl_common.checkpoint import Checkpoint, PartWriter, commit
from mtl_common.errors import CheckpointError, ConfigError
from mtl_common.layout import Layout, spread
from mtl_common.shapes import check_layout
from mtl_common.tensorfile import BLOCK, ITEM_BYTES
from mtl_common.tensors import ModelTensor, held_boxes, model_tensors

OVERHEAD = 48 << 20  # two files being written, with 16 MiB each, and what reading takes
SMALLEST = 64 << 20


@dataclass(frozen=True)
class Shard:
    """A flat range of boxes of one tensor: what one rank writes of it."""

    key: str
    boxes: tuple[Box, ...]
    start: int
    stop: int


def _tensor(checkpoint: Checkpoint, tensors: dict[str, ModelTensor], key: str) -> ModelTensor:
    name = key.partition("/")[2]
    if name not in tensors:
        raise CheckpointError(f"{checkpoint.path} has a tensor {key} that its model shape has no place for")
    checkpoint.info(key, tensors[name].shape)
    return tensors[name]


def shards(checkpoint: Checkpoint, layout: Layout, rank: int) -> Iterator[Shard]:
    """What a rank of the layout writes: with its dp replicas, each an even share of all that they hold.

    What all tp ranks hold alike is the first one's to write.
    """
    shape = model_shape(checkpoint)
    tensors = model_tensors(shape)
    place = layout.place(rank)
    for key, info in checkpoint.tensors.items():
        if info.alias:
            continue
        tensor = _tensor(checkpoint, tensors, key)
        boxes = held_boxes(tensor, shape.layers, layout, rank)
        if tensor.cut == "copies" and place["tp"] > 0:
            boxes = ()
        share = spread(sum(box.volume for box in boxes), layout.dp)[place["dp"]]
        yield Shard(key, boxes, share.start, share.stop)


def _copy(checkpoint: Checkpoint, shard: Shard, writer: PartWriter, buffer: memoryview) -> Iterator[int]:
    """Copies a shard piece by piece; gives the bytes of each piece."""
    info = checkpoint.tensors[shard.key]
    item = ITEM_BYTES[info.dtype]
    step = len(buffer) // item
    for start in range(shard.start, max(shard.stop, shard.start + 1), step):
        stop = min(start + step, shard.stop)
        data = buffer[: (stop - start) * item]
        checkpoint.read(shard.key, shard.boxes, start, stop, data)
        writer.write(shard.key, info.dtype, info.shape, shard.boxes, start, stop, data)
        yield len(data)


def reshard(
    checkpoint: Checkpoint, layout: Layout, out: Path, memory: int, advance: Callable[[int], None]
) -> Path:
    """Writes the checkpoint's step into `out` at another layout, optimizer state included; returns its
    directory.

    `memory` bytes bound what is taken beyond the program itself. Raises ConfigError when the layout cannot
    cut the model or the memory is less than 64 MiB.
    """
    if memory < SMALLEST:
        raise ConfigError(f"a memory of {memory >> 20} MiB is too small; give at least {SMALLEST >> 20}")
    check_layout(model_shape(checkpoint), layout)
    buffer = memoryview(bytearray((memory - OVERHEAD) // BLOCK * BLOCK))
    with new_checkpoint(out, checkpoint.step) as staging:
        for rank in range(layout.world):
            with PartWriter(staging, rank) as writer:
                for shard in shards(checkpoint, layout, rank):
                    for copied in _copy(checkpoint, shard, writer, buffer):
                        advance(copied)
        return commit(
            staging,
            layout=str(layout),
            config=checkpoint.config,
            state=checkpoint.state,
            aliases=checkpoint.aliases,
            tokenizer=checkpoint.tokenizer,
        )
