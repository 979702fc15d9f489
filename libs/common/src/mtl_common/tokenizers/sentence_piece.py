"""Sentencepiece models."""

import re
from collections.abc import Sequence
from pathlib import Path

from mtl_common.errors import DataError
from mtl_common.tokenizers.engines import Build, Choice, Engine, matching
from mtl_common.tokenizers.flat import Flat, flatten
from mtl_common.tokenizers.interface import Facts, Tokenizer, fingerprint
from mtl_common.tokenizers.libraries import gigatoken_engine
from mtl_common.tokenizers.pieces import marked_piece


def _builders(path: str, controls: Sequence[str]) -> dict[str, Build]:
    def gigatoken() -> Engine | None:
        # it takes the spelling of a control piece for the piece
        doubts = matching("|".join(map(re.escape, controls)))
        return gigatoken_engine(lambda library: library.from_sentencepiece(path), doubts)

    return {"gigatoken": gigatoken}


class SentencePiece(Tokenizer):
    """A sentencepiece .model, BPE or unigram."""

    def __init__(self, path: Path, wanted: str, one_thread: bool) -> None:
        import sentencepiece

        try:
            self._library = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError):
            raise DataError(
                f"{path} is not a tokenizer: neither JSON, ranks nor a sentencepiece model"
            ) from None
        size = self._library.vocab_size()
        controls = frozenset(i for i in range(size) if self._library.is_control(i))
        facts = Facts(
            vocab_size=size,
            eod=self._id(self._library.eos_id()),
            bos=self._id(self._library.bos_id()),
            fingerprint=fingerprint(self._library.serialized_model_proto()),
            specials=controls,
            unknown=self._id(self._library.unk_id()),
        )
        spelled = [self._library.id_to_piece(i) for i in sorted(controls)]
        choice = Choice(_builders(str(path), spelled), wanted, one_thread)
        super().__init__(path, "tokenizer.model", facts, "sentencepiece", choice, spelled)

    @staticmethod
    def _id(found: int) -> int | None:
        return found if found >= 0 else None

    def reference(self, texts: Sequence[str]) -> Flat:  # noqa: D102
        return flatten(self._library.encode(list(texts)))

    def decode(self, ids: Sequence[int]) -> str:  # noqa: D102
        return str(self._library.decode(list(ids)))

    def piece(self, id: int, special: bool = False) -> bytes:  # noqa: D102
        if not 0 <= id < self.vocab_size:
            return b""
        token = self._library.id_to_piece(id)
        if id in self.facts.specials:
            return token.encode() if special else b""
        if self._library.is_unknown(id):
            return self._library.decode([id]).encode()  # type: ignore[no-any-return]
        return marked_piece(token)

    def token_id(self, token: str) -> int | None:  # noqa: D102
        found = self._library.piece_to_id(token)
        return found if self._library.id_to_piece(found) == token else None
