"""Files of tiktoken ranks."""

import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mtl_common.errors import DataError
from mtl_common.tokenizers.engines import QUICK, Build, Choice, Engine
from mtl_common.tokenizers.flat import Flat, flatten
from mtl_common.tokenizers.interface import Facts, Tokenizer, beside, canonical, fingerprint
from mtl_common.tokenizers.libraries import fastest_first, fastokens_engine, gigatoken_engine
from mtl_common.tokenizers.pieces import bytes_written


@dataclass(frozen=True)
class Encoding:
    """What a file of ranks does not say: how text is cut before merging, and which special ids follow."""

    pattern: str
    specials: Mapping[str, int]


END = "<|endoftext|>"
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
O200K_WORD_END = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
O200K_PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + O200K_WORD_END,
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + O200K_WORD_END,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
# The same cutting in the words that fastokens knows.
FASTOKENS_PATTERNS = {
    CL100K_PATTERN: r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"""
    r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
}
# gigatoken knows how text is cut by a name.
GIGATOKEN_NAMES = {GPT2_PATTERN: "gpt2", CL100K_PATTERN: "cl100k", O200K_PATTERN: "o200k"}

# Published rank files, known by how many ranks they hold (openai/tiktoken, openai_public.py).
PUBLISHED: Mapping[int, Encoding] = {
    50256: Encoding(GPT2_PATTERN, {"<|endoftext|>": 50256}),
    50280: Encoding(GPT2_PATTERN, {"<|endoftext|>": 50256}),
    100256: Encoding(
        CL100K_PATTERN,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    199998: Encoding(O200K_PATTERN, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
}


def _read_ranks(path: Path) -> dict[bytes, int]:
    """`base64 rank` lines; raises DataError at the first other line."""
    ranks = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            token, rank = line.split()
            # Whisper's multilingual ranks hold an empty token
            ranks[b"" if token == b"=" else binascii.a2b_base64(token, strict_mode=True)] = int(rank)
        except (binascii.Error, ValueError):
            if line.strip():
                raise DataError(f"{path} line {number} is not a token and a rank") from None
    return ranks


def _written(ranks: Mapping[bytes, int]) -> bytes:
    """The ranks as a file of theirs would list them."""
    ordered = sorted(ranks, key=ranks.__getitem__)
    return b"".join(binascii.b2a_base64(token) + b"%d\n" % ranks[token] for token in ordered)


def _following(path: Path, ranks: Mapping[bytes, int]) -> dict[str, int]:
    """The special tokens of unpublished ranks: those of tokenizer_config.json, or one that follows."""
    named = beside(path.parent).get("added_tokens_decoder") or {}
    specials = {str(token["content"]): int(id) for id, token in named.items() if token.get("special")}
    if set(specials.values()) & set(ranks.values()):
        raise DataError(f"special tokens in {path.parent}/tokenizer_config.json have ids of {path.name}")
    return specials if END in specials else {END: max(*ranks.values(), *specials.values(), 0) + 1, **specials}


def _halves(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The two tokens whose merge makes a token."""
    rank, limit, size = ranks.get, ranks[token], len(token)
    # most often two lower ranks make up a token in one way only
    ways = [i for i in range(1, size) if rank(token[:i], limit) < limit and rank(token[i:], limit) < limit]
    if len(ways) == 1:
        return [token[: ways[0]], token[ways[0] :]]
    parts = [token[i : i + 1] for i in range(size)]
    while len(parts) > 2:
        _, at = min((rank(a + b, limit), i) for i, (a, b) in enumerate(pairwise(parts)))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _as_json(ranks: Mapping[bytes, int]) -> str:
    """Ranks with GPT-2's pattern as a tokenizer.json."""
    written = bytes_written()
    ordered = sorted(ranks, key=ranks.__getitem__)
    merges = [list(map(written, _halves(token, ranks))) for token in ordered if len(token) > 1]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {written(token): ranks[token] for token in ordered}, "merges": merges}
    return json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": byte_level, "model": model})


def _fastokens(path: str, encoding: Encoding, ranks: Mapping[bytes, int], quick: bool) -> Engine | None:
    """Fastokens cuts text itself where it knows the pattern: GPT-2's only as a tokenizer.json has it.

    Else it goes through its regular expressions, at a third of the speed but with nothing to prepare.
    """
    if encoding.pattern == GPT2_PATTERN and not quick and b"" not in ranks:
        return fastokens_engine(lambda library: library.from_json_str(_as_json(ranks)))
    pattern = FASTOKENS_PATTERNS.get(encoding.pattern, encoding.pattern)
    return fastokens_engine(lambda library: library.from_tiktoken(path, pattern, dict(encoding.specials)))


def _builders(path: str, encoding: Encoding, ranks: Mapping[bytes, int], quick: bool) -> dict[str, Build]:
    name = GIGATOKEN_NAMES[encoding.pattern]
    both: dict[str, Build] = {
        "gigatoken": lambda: gigatoken_engine(lambda library: library.from_tiktoken(path, name, {})),
        "fastokens": lambda: _fastokens(path, encoding, ranks, quick),
    }
    # what fastokens needs to start with GPT-2's pattern, gigatoken takes for a gigabyte of text
    return both if encoding.pattern == GPT2_PATTERN else fastest_first(both["gigatoken"], both["fastokens"])


class Ranks(Tokenizer):
    """A file of ranks; one that is not published gets GPT-2's pattern, and <|endoftext|> as the next id."""

    def __init__(self, path: Path, wanted: str, one_thread: bool) -> None:
        import tiktoken

        ranks = _read_ranks(path)
        if not all(bytes([b]) in ranks for b in range(256)):
            raise DataError(f"{path} is not a file of byte-level ranks: it does not hold all 256 bytes")
        encoding = PUBLISHED.get(len(ranks)) or Encoding(GPT2_PATTERN, _following(path, ranks))
        self._specials = dict(encoding.specials)
        self._library = tiktoken.Encoding(
            path.stem, pat_str=encoding.pattern, mergeable_ranks=ranks, special_tokens=self._specials
        )
        self._ranks, self._bytes = ranks, {rank: token for token, rank in ranks.items()}
        facts = Facts(
            vocab_size=max(*ranks.values(), *self._specials.values()) + 1,
            eod=self._specials[END],
            bos=None,
            fingerprint=fingerprint(encoding.pattern.encode(), canonical(self._specials), _written(ranks)),
            specials=frozenset(self._specials.values()),
        )
        builders = _builders(str(path), encoding, ranks, wanted == QUICK)
        super().__init__(path, "ranks.tiktoken", facts, "tiktoken", Choice(builders, wanted, one_thread))

    def reference(self, texts: Sequence[str]) -> Flat:  # noqa: D102
        return flatten([self._library.encode_ordinary(text) for text in texts])

    def decode(self, ids: Sequence[int]) -> str:  # noqa: D102
        return b"".join(map(self.piece, ids)).decode("utf-8", "replace")

    def piece(self, id: int, special: bool = False) -> bytes:  # noqa: D102
        if id in self.facts.specials:
            return self._library.decode_single_token_bytes(id) if special else b""
        return self._bytes.get(id, b"")

    def token_id(self, token: str) -> int | None:  # noqa: D102
        return self._specials.get(token, self._ranks.get(token.encode()))
