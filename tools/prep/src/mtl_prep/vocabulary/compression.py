"""What a tokenizer makes of text: bytes a token and tokens a word, for each kind of text."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mtl_common.tokenizers import Tokenizer

ALL = "all"


@dataclass(frozen=True)
class Compression:
    """Some text of one kind, and the tokens it became; words are what stands between white space."""

    kind: str
    documents: int
    size: int
    words: int
    tokens: int
    unknown: int

    @property
    def bytes_per_token(self) -> float:
        """How much text a token stands for."""
        return self.size / max(self.tokens, 1)

    @property
    def tokens_per_word(self) -> float:
        """The fertility of the vocabulary."""
        return self.tokens / max(self.words, 1)

    def written(self) -> dict[str, Any]:
        """As JSON."""
        ratios = {"bytes_per_token": self.bytes_per_token, "tokens_per_word": self.tokens_per_word}
        return asdict(self) | {name: round(value, 4) for name, value in ratios.items()}


def _of_kind(tokenizer: Tokenizer, kind: str, texts: Sequence[str]) -> Compression:
    ids, _ = tokenizer.encode_batch(texts)
    unknown = tokenizer.facts.unknown
    return Compression(
        kind=kind,
        documents=len(texts),
        size=sum(len(text.encode()) for text in texts),
        words=sum(len(text.split()) for text in texts),
        tokens=len(ids),
        unknown=0 if unknown is None else int((ids == unknown).sum()),
    )


def measured(tokenizer: Tokenizer, kept: Mapping[str, Sequence[str]]) -> list[Compression]:
    """A row for each kind, the one with most text first, and then one for all."""
    rows = [_of_kind(tokenizer, kind, texts) for kind, texts in kept.items()]
    rows.sort(key=lambda row: (-row.size, row.kind))
    total = {
        name: sum(getattr(row, name) for row in rows)
        for name in ("documents", "size", "words", "tokens", "unknown")
    }
    return [*rows, Compression(ALL, **total)]


def table(rows: Sequence[Compression]) -> str:
    """The rows as aligned text."""
    width = max(len(row.kind) for row in rows)
    head = f"{'':<{width}}  {'documents':>9}  {'MB':>6}  {'bytes a token':>13}  {'tokens a word':>13}"
    lines = [
        f"{row.kind:<{width}}  {row.documents:>9,}  {row.size / 1e6:>6.2f}  {row.bytes_per_token:>13.2f}"
        f"  {row.tokens_per_word:>13.2f}" + (f"  {row.unknown:,} unknown" if row.unknown else "")
        for row in rows
    ]
    return "\n".join([head, *lines])
