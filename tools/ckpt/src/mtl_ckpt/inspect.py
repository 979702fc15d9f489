"""What a checkpoint holds, from its manifest alone, as text or JSON."""

import re
from collections import defaultdict
from collections.abc import Mapping
from math import prod
from typing import Any

from mtl_ckpt.report import size
from mtl_common.checkpoint import Checkpoint, TensorInfo
from mtl_common.tables import table


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything, as JSON values."""
    return {
        "path": str(checkpoint.path),
        "step": checkpoint.step,
        "layout": checkpoint.layout,
        "config": dict(checkpoint.config),
        "state": dict(checkpoint.state),
        "tokenizer": checkpoint.tokenizer is not None,
        "files": {name: file.size for name, file in checkpoint.files.items()},
        "tensors": {
            key: {"shape": info.shape, "dtype": info.dtype, "bytes": _bytes(info), "alias": info.alias}
            for key, info in checkpoint.tensors.items()
        },
    }


def _bytes(info: TensorInfo) -> int:
    return 0 if info.alias else info.bytes


def _pattern(key: str) -> str:
    return re.sub(r"\.\d+\.", ".*.", key)


def _grouped(tensors: Mapping[str, TensorInfo]) -> dict[tuple[str, TensorInfo], list[TensorInfo]]:
    """Tensors that differ only by the number of their layer, together."""
    groups: dict[tuple[str, TensorInfo], list[TensorInfo]] = defaultdict(list)
    for key, info in tensors.items():
        groups[_pattern(key), TensorInfo(info.shape, info.dtype, info.alias)].append(info)
    return groups


def tensor_table(checkpoint: Checkpoint, every: bool) -> str:
    """One line a tensor, or a line for all layers' alike."""
    rows = [("tensor", "count", "shape", "dtype", "size")]
    if every:
        groups = {(key, info): [info] for key, info in checkpoint.tensors.items()}
    else:
        groups = _grouped(checkpoint.tensors)
    for (name, info), members in groups.items():
        shape = " x ".join(map(str, info.shape)) or "scalar"
        held = f"= {info.alias}" if info.alias else size(sum(map(_bytes, members)))
        rows.append((name, str(len(members)), shape, info.dtype, held))
    return table(rows)


def kind_table(checkpoint: Checkpoint) -> str:
    """One line for the model and each kind of optimizer state."""
    rows = [("kind", "tensors", "elements", "size")]
    kinds: dict[str, list[TensorInfo]] = defaultdict(list)
    for key, info in checkpoint.tensors.items():
        if not info.alias:
            kinds[key.partition("/")[0]].append(info)
    for kind, infos in kinds.items():
        elements = sum(prod(info.shape) for info in infos)
        rows.append((kind, f"{len(infos):,}", f"{elements:,}", size(sum(map(_bytes, infos)))))
    return table(rows)


def summary(checkpoint: Checkpoint) -> str:
    """Step, layout, model and files, one a line."""
    model = checkpoint.config.get("model") or {}
    files = checkpoint.files.values()
    lines = [
        ("checkpoint", str(checkpoint.path)),
        ("step", str(checkpoint.step)),
        ("layout", f"{checkpoint.layout} (loads at any)"),
        ("model", " ".join(f"{key}={value}" for key, value in model.items()) or "not stated"),
        ("tokenizer", "yes" if checkpoint.tokenizer else "no"),
        ("files", f"{len(files)}, {size(sum(file.size for file in files))}"),
    ]
    return "\n".join(f"{name:<11} {text}" for name, text in lines)
