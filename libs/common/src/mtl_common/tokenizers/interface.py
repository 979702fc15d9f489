"""What every tokenizer offers: text to flat ids by the fastest exact engine, and back."""

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from mtl_common.errors import DataError
from mtl_common.tokenizers.engines import REFERENCE, Choice
from mtl_common.tokenizers.flat import Flat, same

TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", TEMPLATE)
NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # special tokens with a name that templates know

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
    its file is written. Of the `specials`, those of `strips_before` and `strips_after` swallow white space
    beside them; those of `words_alone` are text within a word.
    """

    vocab_size: int
    eod: int | None
    bos: int | None
    fingerprint: str
    specials: frozenset[int] = frozenset()
    strips_before: frozenset[int] = frozenset()
    strips_after: frozenset[int] = frozenset()
    words_alone: frozenset[int] = frozenset()
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
    """The tokenizer_config.json of a directory, empty when there is none.

    Where it lists no added tokens, as it did of old, special_tokens_map.json names the special ones.
    """
    config, named = directory / "tokenizer_config.json", directory / "special_tokens_map.json"
    found = read_json(config) if config.is_file() else {}
    return found if "added_tokens_decoder" in found or not named.is_file() else found | read_json(named)


def _chat_templates(directory: Path) -> dict[str, str]:
    """Name -> source, as transformers finds them: files go before what the configuration holds."""
    files = {path.stem: path for path in sorted((directory / TEMPLATES).glob("*.jinja"))}
    if (directory / TEMPLATE).is_file():
        files["default"] = directory / TEMPLATE
    if files:
        return {name: path.read_text("utf-8") for name, path in files.items()}
    found = beside(directory).get("chat_template")
    named = (
        {t.get("name"): t.get("template") for t in found} if isinstance(found, list) else {"default": found}
    )
    return {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str)}


def named_token(config: Mapping[str, Any], key: str) -> str | None:
    """The token that a configuration has under a key, written as a string or an object."""
    token = config.get(key)
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def fingerprint(*parts: bytes) -> str:
    """The xxh3-128 of byte strings, as 32 hex digits."""
    return xxhash.xxh3_128(b"\n\n".join(parts)).hexdigest()


def canonical(value: Any) -> bytes:
    """A value as JSON that does not depend on the order of keys."""
    return json.dumps(value, sort_keys=True).encode()


def is_panic(error: BaseException) -> bool:
    """Whether a library written in Rust, such as tiktoken or tokenizers, gave up; that is no Exception."""
    return type(error).__name__ == "PanicException"


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
    def chat_templates(self) -> dict[str, str]:
        """The Jinja templates that turn conversations into prompts, by name; `default` is the usual one."""
        return _chat_templates(self.path.parent)

    @property
    def chat_template(self) -> str | None:
        """The usual chat template, if there is one."""
        return self.chat_templates.get("default")

    @property
    def token_names(self) -> dict[str, str]:
        """What templates call special tokens, such as `pad_token`, and how each is written."""
        config = beside(self.path.parent)
        found = {f"{name}_token": named_token(config, f"{name}_token") for name in NAMED}
        return {name: token for name, token in found.items() if token is not None}

    @property
    def inside(self) -> "Tokenizer":
        """The tokenizer of text that does not begin a text, such as what follows a special token."""
        return self

    def files(self) -> dict[str, Path]:
        """Name -> path of every file that `save` copies."""
        place = self.path.parent
        more = [*(place / name for name in BESIDE), *sorted((place / TEMPLATES).glob("*.jinja"))]
        beside = {str(path.relative_to(place)): path for path in more if path.is_file()}
        return {self._stored_as: self.path, **beside}

    def save(self, directory: Path) -> None:
        """Copies the tokenizer's files into a directory that `load` opens."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, path in self.files().items():
            (directory / name).parent.mkdir(exist_ok=True)
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
            if not is_panic(error):
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
