"""Directories of Hugging Face models: config.json, safetensors in one file or several, tokenizer files.

Pickled weights (pytorch_model.bin) are never opened.
"""

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mtl_ckpt.architectures import architecture
from mtl_ckpt.dtypes import CARRIERS, Array
from mtl_ckpt.sources import ModelSource
from mtl_common import tokenizers
from mtl_common.errors import CheckpointError, MtlError
from mtl_common.tensorfile import (
    Entry,
    TensorFileReader,
    TensorFileWriter,
    flush_directory,
    read_header,
    write_durably,
)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path} is missing; name a directory saved by transformers") from None
    except ValueError:
        raise CheckpointError(f"{path} is not JSON; copy the file again") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object; copy the file again")
    return content


def _files(path: Path) -> list[Path]:
    """The tensor files of a model directory; raises CheckpointError when it has none."""
    if (path / INDEX).exists():
        places = _read_json(path / INDEX).get("weight_map")
        if not isinstance(places, dict):
            raise CheckpointError(f"{path / INDEX} has no weight_map; copy the file again")
        return sorted({path / str(name) for name in places.values()})
    if (path / SINGLE).exists():
        return [path / SINGLE]
    raise CheckpointError(
        f"{path} has neither {SINGLE} nor {INDEX}; save the model with transformers as safetensors"
    )


class HuggingFaceSource(ModelSource):
    """A GPT-2 or Llama directory. Raises CheckpointError for any other, and for what cannot be imported
    exactly.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        config = _read_json(path / "config.json")
        found = architecture(config.get("model_type"))
        self.family = found.family
        try:
            self.shape = found.shape(config)
        except MtlError as error:
            raise CheckpointError(f"{path / 'config.json'}: {error}") from None
        except (TypeError, ZeroDivisionError):
            raise CheckpointError(f"{path / 'config.json'} has sizes that are no positive numbers") from None
        self._tensors: dict[str, tuple[Path, Entry]] = {}
        for file in _files(path):
            for name, entry in read_header(file).items():
                self._tensors[self.family.full_name(name)] = (file, entry)
        dtypes = Counter(entry.dtype for _, entry in self._tensors.values())
        self.dtype = max(dtypes, key=dtypes.__getitem__, default="float32")

    def names(self) -> Collection[str]:  # noqa: D102
        return self._tensors

    def read(self, name: str) -> tuple[Array, str]:  # noqa: D102
        file, entry = self._tensors[name]
        if entry.dtype not in CARRIERS:
            raise CheckpointError(f"{file}: {name} has dtype {entry.dtype}, which cannot be imported")
        array = np.empty(entry.shape, CARRIERS[entry.dtype])
        with TensorFileReader(file) as reader:
            reader.read_into(entry.start, memoryview(array.data).cast("B"))
        return array, entry.dtype

    def save_tokenizer(self, directory: Path) -> bool:  # noqa: D102
        if (self.path / "tokenizer.json").exists() or list(self.path.glob("*.model")):
            tokenizers.load(self.path).save(directory)
            return True
        if not (self.path / "vocab.json").exists() or not (self.path / "merges.txt").exists():
            return False
        from mtl_ckpt.tokenizer import from_vocabulary_files

        from_vocabulary_files(self.path, directory)
        return True


class ShardedWriter:
    """Writes named tensors into safetensors files of limited size, with an index when there are several."""

    def __init__(self, directory: Path, limit: int, names: Collection[str]) -> None:
        self._directory = directory
        self._limit = limit
        # Every file has room for all names; an entry is its name and at most 200 bytes.
        self._header = -(-sum(len(name) + 200 for name in names) // 4096) * 4096
        self._tables: list[dict[str, Entry]] = []
        self._writer: TensorFileWriter | None = None

    def write(self, name: str, dtype: str, array: Array) -> None:
        """Appends one tensor; a new file begins when it would not fit into the limit."""
        data = np.ascontiguousarray(array)
        writer = self._open(data.nbytes)
        start = writer.position
        writer.write(memoryview(data.data).cast("B"))
        self._tables[-1][name] = Entry(dtype, array.shape, start, writer.position)

    def finish(self) -> list[str]:
        """Completes the files under their final names, which it returns."""
        self._close()
        count = len(self._tables)
        if count == 1:
            os.rename(self._part(0), self._directory / SINGLE)
            return [SINGLE]
        names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
        for i, name in enumerate(names):
            os.rename(self._part(i), self._directory / name)
        self._write_index(names)
        return names

    def _part(self, number: int) -> Path:
        return self._directory / f"part{number}"

    def _open(self, size: int) -> TensorFileWriter:
        if self._writer and self._writer.position - self._header + size > self._limit and self._tables[-1]:
            self._close()
        if self._writer is None:
            self._writer = TensorFileWriter(self._part(len(self._tables)), self._header)
            self._tables.append({})
        return self._writer

    def _close(self) -> None:
        if self._writer:
            self._writer.finish(self._tables[-1])
            self._writer = None

    def _write_index(self, files: list[str]) -> None:
        total = sum(entry.stop - entry.start for table in self._tables for entry in table.values())
        places = {name: file for file, table in zip(files, self._tables, strict=True) for name in table}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        write_durably(self._directory / INDEX, json.dumps(index, indent=2).encode())


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Writes config.json and makes the directory durable."""
    write_durably(directory / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    flush_directory(directory)
