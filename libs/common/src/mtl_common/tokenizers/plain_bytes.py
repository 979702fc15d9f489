"""The tokenizer of bytes: a byte is its own id, and 256 ends a document.

It is a tokenizer.json like others (`bytes.json`), so every reader of those opens bins made with it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtl_common.tokenizers.engines import Engine
from mtl_common.tokenizers.flat import Flat
from mtl_common.tokenizers.pieces import byte_characters

SPEC = "bytes"
FILE = Path(__file__).with_name("bytes.json")


def _encode(texts: Sequence[str]) -> Flat:
    raw = [text.encode() for text in texts]
    offsets = np.zeros(len(raw) + 1, np.int64)
    np.cumsum([len(text) for text in raw], out=offsets[1:])
    return np.frombuffer(b"".join(raw), np.uint8).astype(np.uint32), offsets


def bytes_engine(content: Mapping[str, Any]) -> Engine | None:
    """The engine for a tokenizer.json whose ids are the bytes of text; None for any other."""
    model = content.get("model", {})
    plain = not content.get("normalizer") and (content.get("pre_tokenizer") or {}).get("type") == "ByteLevel"
    if not plain or model.get("merges") or model.get("vocab") != byte_characters():
        return None
    return Engine("bytes", _encode)
