"""What every tokenizer offers: text to flat ids by the fastest exact engine, and back."""

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from mtl_common.errors import DataError
from mtl_common.tokenizers.engines import REFERENCE, Choice
from mtl_common.tokenizers.flat import Flat, same

BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")

SPELLED = 300  # tokens of a vocabulary that engines are tried on

# Strings on which tokenizer libraries have been seen to differ.
AWKWARD = (
    "It's they'll I'M WE'VE  don't 'S",
    "  leading,   inner \t and trailing   \n\n \r\n x\n",
    "1234567 3.14 1e-5 0x1F \u00b2 \u0664\u0662",
    "caf\u00e9 cafe\u0301 \u00df\u1e9e \u0130i \uff21\uff11 \u4f60\u597d\u4e16\u754c \u3053 \u0e2a\u0e31",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2028 \u00a0\u3000 \u200b \ufeff \ufffd",
    "\x00\x1f\x7f\x85 \x1b[0m",
    "def f(x):\n    return x[0]**2  # ok\n\n\n\tif not x:\n",
    "<|endoftext|> <s>[INST]</s> [SEP] <|im_start|>",
    "a" * 70 + "=" * 70 + " " * 70 + "\u00e9" * 70,
    "a\u180eb \u180e",
    "x\u0295y \ua7ce\ua7d2 \u0c5c1 \U00010940\U00016ea0 \U0001e6c1 \U0001faea",
    "",
)


@dataclass(frozen=True)
class Facts:
    """What is known of a vocabulary.

    `vocab_size` is the largest id plus one; `eod` ends a document; `lost_bytes` have no token and vanish from
    text; `unknown` stands for any text without tokens; `unheeded` is what the file asks for that would change
    documents (cutting, padding); `fingerprint` names the mapping from text to ids, and does not depend on how
    its file is written.
    """

    vocab_size: int
    eod: int | None
    bos: int | None
    fingerprint: str
    specials: frozenset[int] = frozenset()
    lost_bytes: bytes = b""
    unknown: int | None = None
    unheeded: tuple[str, ...] = ()


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; raises DataError, naming the file, for anything else."""
    try:
        content = json.loads(path.read_text("utf-8-sig"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a tokenizer: its JSON is no object")
    return content


def beside(directory: Path) -> dict[str, Any]:
    """The tokenizer_config.json of a directory, empty when there is none."""
    path = directory / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def _chat_template(directory: Path) -> str | None:
    alone = directory / "chat_template.jinja"
    if alone.is_file():
        return alone.read_text("utf-8")
    template = beside(directory).get("chat_template")
    if isinstance(template, list):  # several named ones
        template = {t.get("name"): t.get("template") for t in template}.get("default")
    return template if isinstance(template, str) else None


def fingerprint(*parts: bytes) -> str:
    """The xxh3-128 of byte strings, as 32 hex digits."""
    return xxhash.xxh3_128(b"\n\n".join(parts)).hexdigest()


def canonical(value: Any) -> bytes:
    """A value as JSON that does not depend on the order of keys."""
    return json.dumps(value, sort_keys=True).encode()


class Tokenizer(ABC):
    """Text to ids and back."""

    def __init__(
        self,
        path: Path,
        stored_as: str,
        facts: Facts,
        library: str,
        choice: Choice,
        spelled: Sequence[str] = (),
    ) -> None:
        """The reference `library` encodes unless an engine of the choice gives its ids on awkward strings.

        `spelled` are tokens that may be spelled in text, on which engines are tried too.
        """
        self.path, self.facts, self._stored_as, self._library_name = path, facts, stored_as, library
        tried = [*AWKWARD, *(f"x{token}y {token} z{token}" for token in spelled[:SPELLED])]
        self._engines, self._encode = choice.make(tried, self.reference)

    @property
    def engine(self) -> str:
        """The library that encodes."""
        return self._engines[0] if self._engines else self._library_name

    @property
    def choices(self) -> list[str]:
        """The engine that encodes and the slower ones behind it, as `load` takes them."""
        return [*self._engines, REFERENCE]

    @property
    def library(self) -> str:
        """The library whose ids are right by definition."""
        return self._library_name

    @property
    def vocab_size(self) -> int:
        """The largest possible id plus one, special tokens included."""
        return self.facts.vocab_size

    @property
    def eod(self) -> int | None:
        """The id that ends a document, if the tokenizer names one."""
        return self.facts.eod

    @property
    def bos(self) -> int | None:
        """The id that a sequence begins with, if the tokenizer names one."""
        return self.facts.bos

    @property
    def fingerprint(self) -> str:
        """A hash (xxh3-128) of the mapping from text to ids."""
        return self.facts.fingerprint

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that turns a conversation into a prompt, if one lies beside the tokenizer."""
        return _chat_template(self.path.parent)

    def files(self) -> dict[str, Path]:
        """Name -> path of every file that `save` copies."""
        beside = {name: self.path.parent / name for name in BESIDE}
        return {self._stored_as: self.path, **{name: path for name, path in beside.items() if path.is_file()}}

    def save(self, directory: Path) -> None:
        """Copies the tokenizer's files into a directory that `load` opens."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, path in self.files().items():
            shutil.copyfile(path, directory / name)

    def encode(self, text: str) -> list[int]:
        """The ids of one text, nothing added to them."""
        return self.encode_batch([text])[0].tolist()  # type: ignore[no-any-return]

    def encode_batch(self, texts: Sequence[str]) -> Flat:
        """The ids of all texts end to end, and the `len(texts) + 1` offsets where each begins.

        Raises DataError when the library cannot encode one of them (a lone surrogate, a crash inside it).
        """
        try:
            return self._encode(texts)
        except UnicodeEncodeError as error:
            raise DataError(f"a text is not valid Unicode: {error.reason}") from None
        except BaseException as error:
            # tiktoken and tokenizers are written in Rust; their panics are no Exception
            if type(error).__name__ != "PanicException":
                raise
            raise DataError(f"{self.engine} cannot encode a text: {error}") from None

    def exact_on(self, texts: Sequence[str]) -> bool:
        """Whether these texts have the ids that the reference library gives them."""
        return not self._engines or same(self._encode(texts), self.reference(texts))

    @abstractmethod
    def reference(self, texts: Sequence[str]) -> Flat:
        """What `encode_batch` gives, by the library that defines it."""

    def with_specials(self, text: str) -> list[int] | None:
        """The ids of one text whose special tokens are taken as such; None where the library cannot."""
        return None

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens are left out, bytes that are not UTF-8 become U+FFFD."""

    @abstractmethod
    def piece(self, id: int, special: bool = False) -> bytes:
        """The exact bytes that one id adds to a text in progress; a special token adds none unless asked."""

    @abstractmethod
    def token_id(self, token: str) -> int | None:
        """The id of the token written so in the vocabulary."""
