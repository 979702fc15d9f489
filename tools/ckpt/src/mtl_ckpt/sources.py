"""What a model is imported from: a shape, named tensors, a tokenizer, wherever they are stored."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path

from mtl_ckpt.dtypes import Array
from mtl_ckpt.families import Family
from mtl_common.shapes import ModelShape


class ModelSource(ABC):
    """A model as another program stores it; tensors have the family's names, their prefix included."""

    path: Path
    shape: ModelShape
    family: Family
    dtype: str
    """What most tensors are read as."""

    @abstractmethod
    def names(self) -> Collection[str]:
        """The names of all tensors."""

    @abstractmethod
    def read(self, name: str) -> tuple[Array, str]:
        """One full tensor and its dtype; raises CheckpointError when the file is damaged."""

    @abstractmethod
    def save_tokenizer(self, directory: Path) -> bool:
        """Writes the tokenizer's files into a directory; False when the source has no tokenizer."""
