"""Between bins and the files of others: Megatron's pair in and out, parquet and JSON lines out."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mtl_common.bins import Bins, megatron
from mtl_common.config import nearest
from mtl_common.errors import UsageError
from mtl_common.log import progress
from mtl_prep.finished.export import to_json_lines, to_parquet
from mtl_prep.finished.reading import check, opened

Export = Callable[[Bins, Path], Iterator[int]]

EXPORTS: Mapping[str, Export] = {
    "megatron": megatron.write,
    "parquet": to_parquet,
    "jsonl": to_json_lines,
}
LEFT_OUT = {
    "megatron": "the tokenizer, and which source and record each document came from",
    "parquet": "the tokenizer",
    "jsonl": "special tokens, the ends of documents among them",
}


@dataclass(frozen=True)
class Exported:
    """What was written, and what of the bins it does not hold."""

    bins: Bins
    files: tuple[Path, ...]
    left_out: str


def _written(kind: str, out: Path) -> tuple[Path, ...]:
    if kind == "megatron":
        return megatron.files_of(out)
    return tuple(sorted(out.iterdir())) if out.is_dir() else (out,)


def export(path: Path, kind: str, out: Path) -> Exported:
    """Writes bins in the form `kind` names.

    Raises UsageError for an unknown form, or when `out` exists, DataError for damaged bins.
    """
    if kind not in EXPORTS:
        raise UsageError(
            f"no such form {kind}{nearest(kind, list(EXPORTS))}; --to is one of {', '.join(EXPORTS)}"
        )
    bins = opened(path)
    check(bins)
    with progress("convert", bins.tokens, "tokens") as shown:
        for tokens in EXPORTS[kind](bins, out):
            shown.advance(tokens)
    lost = LEFT_OUT[kind]
    if kind != "parquet" and bins.has_loss:
        lost = f"which tokens count as labels, {lost}"
    return Exported(bins, _written(kind, out), lost)
