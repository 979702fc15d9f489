"""Hugging Face's tokenizer.json."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from mtl_common.errors import DataError
from mtl_common.tokenizers.engines import Build, Choice, Engine
from mtl_common.tokenizers.flat import Encode, Flat, flatten
from mtl_common.tokenizers.interface import (
    Facts,
    Tokenizer,
    beside,
    canonical,
    fingerprint,
    is_panic,
    named_token,
    read_json,
)
from mtl_common.tokenizers.libraries import fastest_first, fastokens_engine, gigatoken_engine
from mtl_common.tokenizers.pieces import byte_characters, decoders, piece_rule
from mtl_common.tokenizers.plain_bytes import bytes_engine
from mtl_common.tokenizers.word_piece import as_tokenizer_json
from mtl_common.tokenizers.words import words_engine

END_OF_DOCUMENT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


def _deciding(content: Mapping[str, Any]) -> list[Any]:
    """What decides the ids, in one form: some files write merges as pairs, some as "a b"."""
    model = dict(content.get("model", {}))
    model["merges"] = [m.split(" ") if isinstance(m, str) else m for m in model.get("merges", [])]
    added = sorted(content.get("added_tokens") or [], key=lambda token: int(token["id"]))
    return [model, added, content.get("normalizer"), content.get("pre_tokenizer")]


def _lost_bytes(content: Mapping[str, Any], vocabulary: Mapping[str, int]) -> bytes:
    """The bytes that a byte-level BPE has no token for."""
    model = content.get("model", {})
    kinds = {d["type"] for d in decoders(content.get("decoder"))}
    if model.get("type") != "BPE" or "ByteLevel" not in kinds or model.get("unk_token"):
        return b""
    return bytes(sorted(byte for character, byte in byte_characters().items() if character not in vocabulary))


def _unheeded(content: Mapping[str, Any]) -> tuple[str, ...]:
    """What a file asks for that would change documents."""
    truncation, padding = content.get("truncation") or {}, content.get("padding") or {}
    dropout = content.get("model", {}).get("dropout")
    strategy = padding.get("strategy")
    size = f" to {strategy['Fixed']} tokens" if isinstance(strategy, dict) and "Fixed" in strategy else ""
    asked = {
        f"cutting to {truncation.get('max_length')} tokens": truncation,
        f"padding{size}": padding,
        f"leaving out {dropout} of merges at random": dropout,
    }
    return tuple(what for what, is_asked in asked.items() if is_asked)


def _builders(content: Mapping[str, Any], reference: Encode) -> dict[str, Build]:
    text = json.dumps(content)
    # text never spells a special token, and gigatoken knows no such choice; other added tokens stay
    added = [token for token in content.get("added_tokens") or [] if not token.get("special")]
    if any(token.get(flag) for token in added for flag in ("single_word", "lstrip", "rstrip")):
        return {}  # engines have been seen to differ where such tokens stand side by side

    def gigatoken() -> Engine | None:
        plain = json.dumps({**content, "added_tokens": added, "post_processor": None})
        return gigatoken_engine(lambda library: library.from_json(plain))

    return {
        "bytes": lambda: bytes_engine(content),
        **fastest_first(gigatoken, lambda: fastokens_engine(lambda library: library.from_json_str(text))),
        "words": lambda: words_engine(content, reference),
    }


def _flagged(added: Sequence[Mapping[str, Any]], flag: str) -> frozenset[int]:
    return frozenset(token["id"] for token in added if token.get("special") and token.get(flag))


def _without_first_space(content: Any) -> Any:
    """A part of a tokenizer.json that puts a space before the first word of a text, without doing so."""
    if isinstance(content, list):
        return [_without_first_space(part) for part in content]
    if not isinstance(content, dict):
        return content
    inner = {key: _without_first_space(content[key]) for key in ("pretokenizers",) if key in content}
    never = {"prepend_scheme": "never"} if content.get("prepend_scheme") == "first" else {}
    return {**content, **inner, **never}


class HuggingFace(Tokenizer):
    """A tokenizer.json, or a vocab.txt that stands for one; `inner` for text inside of a text."""

    def __init__(
        self, path: Path, wanted: str, one_thread: bool, is_vocabulary: bool = False, inner: bool = False
    ) -> None:
        import tokenizers

        config = beside(path.parent)
        content = as_tokenizer_json(path, config) if is_vocabulary else read_json(path)
        first = content.get("pre_tokenizer")
        later = _without_first_space(first)
        self._inside = None if inner or later == first else partial(HuggingFace, path, wanted, one_thread)
        if inner:
            content["pre_tokenizer"] = later
        # a file may ask for padding to 128, cutting to 128 or random merges; corpora are encoded as they are
        unheeded = _unheeded(content)
        content |= {"truncation": None, "padding": None}
        content.get("model", {}).pop("dropout", None)
        text = json.dumps(content)
        try:
            self._library = tokenizers.Tokenizer.from_str(text)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise DataError(f"{path} is not a tokenizer.json that tokenizers can read: {error}") from None
        self._library.encode_special_tokens = True
        self._piece = piece_rule(content)
        facts = self._facts(content, config, unheeded)
        choice = Choice(_builders(content, self.reference), wanted, one_thread)
        spelled = [token["content"] for token in content.get("added_tokens") or []]
        stored_as = "vocab.txt" if is_vocabulary else "tokenizer.json"
        super().__init__(path, stored_as, facts, "tokenizers", choice, spelled)

    def _facts(
        self, content: Mapping[str, Any], config: Mapping[str, Any], unheeded: tuple[str, ...]
    ) -> Facts:
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise DataError("the vocabulary of tokenizer.json is empty")
        added = content.get("added_tokens") or []
        specials = {t["content"]: t["id"] for t in added if t.get("special")}
        ends = [named_token(config, "eos_token"), *(name for name in END_OF_DOCUMENT if name in specials)]
        return Facts(
            vocab_size=max(vocabulary.values()) + 1,
            eod=next((vocabulary[name] for name in ends if name in vocabulary), None),
            bos=vocabulary.get(named_token(config, "bos_token") or ""),
            fingerprint=fingerprint(canonical(_deciding(content))),
            specials=frozenset(specials.values()),
            strips_before=_flagged(added, "lstrip"),
            strips_after=_flagged(added, "rstrip"),
            words_alone=_flagged(added, "single_word"),
            lost_bytes=_lost_bytes(content, vocabulary),
            unknown=vocabulary.get(content.get("model", {}).get("unk_token") or ""),
            unheeded=unheeded,
        )

    @cached_property
    def inside(self) -> Tokenizer:  # noqa: D102
        return self if self._inside is None else self._inside(inner=True)

    def reference(self, texts: Sequence[str]) -> Flat:  # noqa: D102
        found = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return flatten([encoding.ids for encoding in found])

    def with_specials(self, text: str) -> list[int] | None:  # noqa: D102
        self._library.encode_special_tokens = False
        try:
            return list(self._library.encode(text, add_special_tokens=False).ids)
        finally:
            self._library.encode_special_tokens = True

    def decode(self, ids: Sequence[int]) -> str:  # noqa: D102
        return str(self._library.decode(list(ids), skip_special_tokens=True))

    def piece(self, id: int, special: bool = False) -> bytes:  # noqa: D102
        token = self._library.id_to_token(id)
        if token is None:
            return b""
        if id in self.facts.specials:
            return token.encode() if special else b""
        return self._piece(token)

    def token_id(self, token: str) -> int | None:  # noqa: D102
        return self._library.token_to_id(token)
