"""From a token, as a vocabulary writes it, to the exact bytes it stands for."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def byte_characters() -> dict[str, int]:
    """GPT-2's printable character for every byte, reversed (openai/gpt-2, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(rest)}


def bytes_written() -> Callable[[bytes], str]:
    """How a byte-level vocabulary writes bytes: a printable character for each."""
    table = "".join(sorted(byte_characters(), key=byte_characters().__getitem__))
    return lambda token: token.decode("latin-1").translate(table)


def decoders(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The decoders of a tokenizer.json, those inside sequences too."""
    for inner in (decoder or {}).get("decoders", []):
        yield from decoders(inner)
    if decoder:
        yield decoder


def piece_rule(content: Mapping[str, Any]) -> Callable[[str], bytes]:
    """How a token, as the vocabulary writes it, becomes bytes in the middle of a text."""
    kinds = {d["type"]: d for d in decoders(content.get("decoder") or content.get("pre_tokenizer"))}
    if "ByteLevel" in kinds:
        table = byte_characters()
        # an added token is written as it is, and may hold characters that stand for no byte
        return lambda token: bytes(table[c] for c in token) if table.keys() >= set(token) else token.encode()
    if "WordPiece" in kinds:
        mark = kinds["WordPiece"].get("prefix", "##")
        return lambda token: token[len(mark) :].encode() if token.startswith(mark) else f" {token}".encode()
    return marked_piece


def marked_piece(token: str) -> bytes:
    """A token of a vocabulary that writes a space as U+2581 and a lone byte as <0x0A>."""
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()
