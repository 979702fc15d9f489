"""Byte-level BPE tokenizers built from their parts, for models that come without a tokenizer.json."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtl_common.config import nearest
from mtl_common.errors import CheckpointError
from mtl_common.tensorfile import write_durably

# Before byte-level splitting: SmolLM cuts every digit off (llama.cpp, llama-vocab.cpp).
_DIGITS = {"type": "Digits", "individual_digits": True}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PRE_TOKENIZERS: Mapping[str, Sequence[Mapping[str, Any]]] = {"gpt-2": [_BYTES], "smollm": [_DIGITS, _BYTES]}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, merges in order, which ids are never text, and what tokenizer_config.json says."""

    tokens: Sequence[str]
    merges: Sequence[str]
    special: Sequence[int] = ()
    splitting: str = "gpt-2"
    settings: Mapping[str, Any] = field(default_factory=dict)


def _content(vocabulary: Vocabulary) -> dict[str, Any]:
    if vocabulary.splitting not in PRE_TOKENIZERS:
        name = vocabulary.splitting
        raise CheckpointError(
            f'the tokenizer splits text by "{name}"{nearest(name, PRE_TOKENIZERS)}, '
            f"which is not known; known are {', '.join(PRE_TOKENIZERS)}"
        )
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": vocabulary.tokens[i], **flags, "special": True} for i in vocabulary.special
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[vocabulary.splitting]},
        "decoder": _BYTES,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(vocabulary.tokens)},
            "merges": vocabulary.merges,
        },
    }


def save(vocabulary: Vocabulary, directory: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json; raises CheckpointError for an unknown splitting."""
    directory.mkdir(parents=True, exist_ok=True)
    content = json.dumps(_content(vocabulary), ensure_ascii=False)
    write_durably(directory / "tokenizer.json", content.encode())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **vocabulary.settings}
    write_durably(directory / "tokenizer_config.json", (json.dumps(settings, indent=2) + "\n").encode())


def from_vocabulary_files(source: Path, directory: Path) -> None:
    """Makes a tokenizer.json of GPT-2's vocab.json and merges.txt."""
    ids = json.loads((source / "vocab.json").read_text("utf-8"))
    lines = (source / "merges.txt").read_text("utf-8").split("\n")
    tokens = sorted(ids, key=ids.__getitem__)
    merges = [line for line in lines if line and not line.startswith("#version")]
    end = "<|endoftext|>"
    special = [ids[end]] if end in ids else []
    settings = {"bos_token": end, "eos_token": end} if special else {}
    save(Vocabulary(tokens, merges, special, settings=settings), directory)
