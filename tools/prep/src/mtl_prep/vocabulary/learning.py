"""Learns vocabularies: byte-level BPE and WordPiece by tokenizers, unigram and another BPE by sentencepiece.

What is learnt depends on the texts and their order alone. Left to itself the WordPiece trainer of tokenizers
numbers its characters as a hash table lies in memory, and its unigram trainer is as fickle and far slower.
"""

import io
import json
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mtl_common.errors import DataError
from mtl_common.log import progress

END = "<|endoftext|>"
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALPHABET = 1000  # characters that a WordPiece vocabulary knows; rarer ones are unknown
ALPHABET_SHARE = (
    4  # of a small vocabulary at most every fourth entry; each is there twice, as a beginning too
)
SPACE = "\u2581"  # how sentencepiece writes one
NEVER = 100.0  # by how much the score of a piece that text must not spell lies below all others
LINE = 4000  # bytes of a line, at most, that sentencepiece learns from


@contextmanager
def _told(texts: Iterable[str], size: int) -> Iterator[Iterator[str]]:
    """The texts; when they are read, shows that a library is at work, which says nothing itself."""
    read, ended = threading.Event(), threading.Event()

    def reading() -> Iterator[str]:
        yield from texts
        read.set()

    def tell() -> None:
        read.wait()
        with progress(f"learn {size:,} entries", 0, "seconds") as shown:
            while not ended.wait(1.0):
                shown.advance()

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield reading()
    finally:
        ended.set()
        read.set()
        thread.join()


def spellable(token: str, kind: str) -> bool:
    """Whether a BPE or WordPiece vocabulary could learn a special token as a word of text."""
    from tokenizers import pre_tokenizers

    words = pre_tokenizers.BertPreTokenizer() if kind == "wordpiece" else pre_tokenizers.ByteLevel(False)
    return len(words.pre_tokenize_str(token)) < 2


def byte_level(texts: Iterable[str], size: int, specials: Sequence[str]) -> dict[str, Any]:
    """A tokenizer.json of GPT-2's kind: `specials` are its first ids, every byte is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    with _told(texts, size) as told:
        tokenizer.train_from_iterator(told, trainer)
    return json.loads(tokenizer.to_str())  # type: ignore[no-any-return]


def _alphabet(texts: Iterable[str], normalizer: Any, limit: int) -> list[str]:
    """The most frequent characters of texts, in the order of code points."""
    written: Counter[str] = Counter()
    for text in texts:
        written.update(text)
    counts: Counter[str] = Counter()
    for character, count in written.items():  # it normalizes them one by one, so it need not see all texts
        for part in normalizer.normalize_str(character):
            counts[part] += count
    known = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted([character for character in known if not character.isspace()][:limit])


def word_piece(texts: Iterable[str], size: int, specials: Sequence[str]) -> dict[str, Any]:
    """A tokenizer.json of BERT's kind, in small letters; reads the texts twice."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    limit = min(ALPHABET, (size - len(specials)) // ALPHABET_SHARE)
    alphabet = _alphabet(texts, tokenizer.normalizer, limit)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        # as special tokens the characters inside of words get their numbers in this order
        special_tokens=[*specials, *(f"##{character}" for character in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    with _told(texts, size) as told:
        tokenizer.train_from_iterator(told, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in specials]
    return content  # type: ignore[no-any-return]


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """The lines of texts, long ones cut, at a space where there is one."""
    for text in texts:
        for line in text.split("\n"):
            rest = line
            while len(rest.encode()) > LINE:
                at = rest.rfind(" ", LINE // 8, LINE // 4)
                cut = at if at > 0 else LINE // 4
                yield rest[:cut]
                rest = rest[cut:]
            if rest:
                yield rest


def sentence_piece(texts: Iterable[str], kind: str, size: int, specials: Sequence[str]) -> bytes:
    """A sentencepiece model, `kind` "unigram" or "bpe", that loses nothing: unknown characters are bytes."""
    import sentencepiece

    model = io.BytesIO()
    try:
        with _told(texts, size) as told:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_lines(told),
                model_writer=model,
                model_type=kind,
                vocab_size=size,
                hard_vocab_limit=False,
                byte_fallback=True,
                control_symbols=list(specials),
                # the letters of special tokens, which text may spell
                required_chars="".join(sorted(set("".join(["<unk></s>", *specials])) - {" "})),
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                allow_whitespace_only_pieces=True,  # code is indented
                max_sentence_length=LINE + 1,
                minloglevel=2,
            )
    except RuntimeError as error:
        if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            least = f"its characters, the bytes and special tokens are {int(found[1]):,}"
            raise DataError(f"{size:,} entries are too few for this sample: {least}; choose more") from None
        reason = str(error).rpartition("]")[2].strip() or str(error)
        raise DataError(f"sentencepiece cannot learn {size:,} entries from this sample: {reason}") from None
    return model.getvalue()


def _replaced(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def as_tokenizer_json(model: bytes) -> dict[str, Any]:
    """The tokenizer.json of a unigram model of `sentence_piece`: the same ids."""
    import sentencepiece

    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(library.vocab_size())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    controls = [i for i in ids if library.is_control(i) or library.is_unknown(i)]
    added = [{"id": i, "content": library.id_to_piece(i), "special": True, **flags} for i in controls]
    # text must not spell a control piece: any other way to write it is better
    scores = [library.get_score(i) for i in ids]
    never = min(scores) - NEVER
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": SPACE}, _replaced(" ", SPACE)],
        },
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+"},  # no piece goes on behind a word
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                _replaced(SPACE, " "),
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "Unigram",
            "unk_id": library.unk_id(),
            "vocab": [[library.id_to_piece(i), never if i in controls else scores[i]] for i in ids],
            "byte_fallback": True,
        },
    }
