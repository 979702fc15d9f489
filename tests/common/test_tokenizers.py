"""Tokenizers against the libraries they stand for: ids, bytes of tokens, special text, damaged files."""

import base64
import codecs
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import EMOJI, END, stdlib_texts, train_bpe
from mtl_common.errors import DataError
from mtl_common.tokenizers import Tokenizer, load

TEXTS = (*stdlib_texts(10), EMOJI, "", " ", END, f"a{END}{END} b", "it's \r\n\t 12345  \x00", "^" * 5000)
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory a kind: bpe/, ranks/ (the same merges as tiktoken writes them), spm/."""
    root = tmp_path_factory.mktemp("tokenizers")
    for name in ("bpe", "ranks", "spm"):
        (root / name).mkdir()
    train_bpe(root / "bpe" / "tokenizer.json")
    (root / "ranks" / "own.tiktoken").write_bytes(ranks_of(root / "bpe" / "tokenizer.json"))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in stdlib_texts(8) for line in text.splitlines()),
        model_prefix=str(root / "spm" / "tokenizer"),
        vocab_size=800,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        max_sentence_length=100_000,
        minloglevel=2,
    )
    return root


def ranks_of(path: Path) -> bytes:
    """The vocabulary of a byte-level tokenizer.json as tiktoken ranks: bytes first, then merges in order."""
    library = tokenizers.Tokenizer.from_file(str(path))
    ordered = sorted(
        (id, token) for token, id in library.get_vocab(with_added_tokens=False).items() if token != END
    )
    to_bytes = {c: bytes([b]) for b, c in enumerate(byte_alphabet())}
    tokens = [b"".join(to_bytes[c] for c in token) for _, token in ordered]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def byte_alphabet() -> list[str]:
    """The character that a byte-level vocabulary writes for each byte, found by asking the library."""
    from tokenizers import pre_tokenizers

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    alphabet = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    assert set(alphabet.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    return [alphabet[b] for b in range(256)]


@pytest.fixture(scope="module", params=["bpe", "ranks", "spm"])
def tokenizer(directory: Path, request: pytest.FixtureRequest) -> Tokenizer:
    return load(directory / request.param)


def reference(directory: Path, name: str) -> Any:
    """The library's own function from text to ids, special text being text."""
    if name == "bpe":
        library = tokenizers.Tokenizer.from_file(str(directory / "bpe" / "tokenizer.json"))
        library.encode_special_tokens = True
        return lambda text: library.encode(text, add_special_tokens=False).ids
    if name == "ranks":
        lines = (directory / "ranks" / "own.tiktoken").read_bytes().split()
        ranks = {base64.b64decode(t): int(r) for t, r in zip(lines[::2], lines[1::2], strict=True)}
        return tiktoken.Encoding(
            "own", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={}
        ).encode_ordinary
    return sentencepiece.SentencePieceProcessor(model_file=str(directory / "spm" / "tokenizer.model")).encode


def split(flat: tuple[Any, Any]) -> list[list[int]]:
    ids, offsets = flat
    return [ids[a:b].tolist() for a, b in pairwise(offsets)]


@pytest.mark.parametrize("name", ["bpe", "ranks", "spm"])
def test_ids_are_those_of_the_library(directory: Path, name: str) -> None:
    encode, tokenizer = reference(directory, name), load(directory / name)
    ids, offsets = tokenizer.encode_batch(TEXTS)
    assert (ids.dtype.name, offsets.dtype.name, len(offsets)) == ("uint32", "int64", len(TEXTS) + 1)
    assert split((ids, offsets)) == [encode(text) for text in TEXTS]
    assert tokenizer.encode(TEXTS[0]) == encode(TEXTS[0])
    assert split(load(directory / name, engine="reference").encode_batch(TEXTS)) == [
        encode(text) for text in TEXTS
    ]


def test_bulk_encoding_takes_the_fast_library(directory: Path) -> None:
    assert load(directory / "bpe").engine == "fastokens"
    assert load(directory / "bpe", engine="reference").engine == "tokenizers"
    assert load(directory / "ranks").engine == "fastokens"
    assert load(directory / "spm").engine == "sentencepiece"


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_any_text_has_the_ids_of_the_library(directory: Path, text: str) -> None:
    for name in ("bpe", "ranks"):
        assert load_once(directory / name).encode(text) == reference_once(directory, name)(text)


def load_once(path: Path, kept: dict[Path, Tokenizer] = {}) -> Tokenizer:  # noqa: B006
    return kept.setdefault(path, load(path)) if path not in kept else kept[path]


def reference_once(directory: Path, name: str, kept: dict[str, Any] = {}) -> Any:  # noqa: B006
    return kept.setdefault(name, reference(directory, name)) if name not in kept else kept[name]


def test_a_batch_may_be_empty(tokenizer: Tokenizer) -> None:
    ids, offsets = tokenizer.encode_batch([])
    assert (len(ids), offsets.tolist()) == (0, [0])


def test_text_comes_back(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_pieces_joined_are_the_text(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        pieces = b"".join(map(tokenizer.piece, tokenizer.encode(text)))
        # sentencepiece begins a text with a space of its own
        assert pieces.removeprefix(b" " if tokenizer.engine == "sentencepiece" else b"") == text.encode()


def test_a_stream_of_pieces_is_the_decoded_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(EMOJI)
    stream = codecs.getincrementaldecoder("utf-8")("replace")
    parts = [stream.decode(tokenizer.piece(id)) for id in ids]
    assert "".join(parts) + stream.decode(b"", final=True) == stream_start(tokenizer) + tokenizer.decode(ids)
    assert any(part == "" for part in parts)  # some characters need several tokens


def stream_start(tokenizer: Tokenizer) -> str:
    return " " if tokenizer.engine == "sentencepiece" else ""


def test_special_text_is_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.eod is not None
    ids = tokenizer.encode(f"{END} </s> {END}")
    assert tokenizer.eod not in ids
    assert tokenizer.decode(ids) == f"{END} </s> {END}"


def test_special_tokens_have_no_bytes_unless_asked_for(tokenizer: Tokenizer) -> None:
    assert tokenizer.eod is not None
    assert tokenizer.piece(tokenizer.eod) == b""
    assert tokenizer.piece(tokenizer.eod, special=True) in (END.encode(), b"</s>")
    assert tokenizer.decode([*tokenizer.encode("x"), tokenizer.eod]) == "x"


def test_every_id_has_a_place(tokenizer: Tokenizer) -> None:
    assert all(isinstance(tokenizer.piece(id), bytes) for id in range(tokenizer.vocab_size))
    assert tokenizer.piece(tokenizer.vocab_size) == b""
    assert tokenizer.eod is not None
    assert tokenizer.eod < tokenizer.vocab_size


def test_saved_files_are_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "copy")
    copy = load(tmp_path / "copy")
    assert copy.fingerprint == tokenizer.fingerprint
    assert (copy.vocab_size, copy.eod, copy.bos) == (tokenizer.vocab_size, tokenizer.eod, tokenizer.bos)
    assert copy.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])


def edited(directory: Path, tmp_path: Path, **changes: Any) -> Path:
    """A copy of the trained tokenizer.json with some of its keys changed."""
    content = json.loads((directory / "bpe" / "tokenizer.json").read_text("utf-8"))
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content | changes, indent=1), "utf-8")
    return path


def test_the_fingerprint_is_of_the_mapping_not_of_the_file(directory: Path, tmp_path: Path) -> None:
    content = json.loads((directory / "bpe" / "tokenizer.json").read_text("utf-8"))
    same = load(directory / "bpe").fingerprint
    as_text = content["model"] | {"merges": [" ".join(pair) for pair in content["model"]["merges"]]}
    assert load(edited(directory, tmp_path, model=as_text)).fingerprint == same
    fewer = content["model"] | {"merges": content["model"]["merges"][:-1]}
    assert load(edited(directory, tmp_path, model=fewer)).fingerprint != same


def test_padding_truncation_and_dropout_of_the_file_do_not_touch_documents(
    directory: Path, tmp_path: Path
) -> None:
    content = json.loads((directory / "bpe" / "tokenizer.json").read_text("utf-8"))
    path = edited(
        directory,
        tmp_path,
        truncation={"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        padding={
            "strategy": {"Fixed": 16},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": END,
        },
        model=content["model"] | {"dropout": 0.5},
    )
    for engine in ("auto", "fastokens", "reference"):
        assert load(path, engine=engine).encode(TEXTS[0]) == load(directory / "bpe").encode(TEXTS[0])


def test_the_configuration_beside_names_end_start_and_template(directory: Path, tmp_path: Path) -> None:
    added = [
        {
            "id": id,
            "content": name,
            "special": True,
            **dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False),
        }
        for id, name in [(0, END), (1024, "<|im_end|>")]
    ]
    path = edited(directory, tmp_path, added_tokens=added)
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": END, "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load(path)
    assert (tokenizer.eod, tokenizer.bos, tokenizer.vocab_size) == (1024, 0, 1025)
    assert tokenizer.chat_template == "{{ messages }}"
    assert load(directory / "bpe").chat_template is None
    tokenizer.save(tmp_path / "copy")
    assert load(tmp_path / "copy").chat_template == "{{ messages }}"
    assert load(tmp_path / "copy").eod == 1024


def test_older_directories_name_special_tokens_in_a_map(directory: Path, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    names = [(0, END), (1024, "<|im_end|>"), (1025, "<pad>")]
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    added = [{"id": id, "content": name, "special": True, **flags} for id, name in names]
    edited(directory, tmp_path, added_tokens=added)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    named = {"eos_token": {"content": "<|im_end|>", **flags}, "pad_token": "<pad>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(named))
    library = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert load(tmp_path).eod == library.eos_token_id == 1024
    assert load(tmp_path).token_names == library.special_tokens_map


def test_a_vocabulary_without_some_bytes_tells_which(directory: Path, tmp_path: Path) -> None:
    content = json.loads((directory / "bpe" / "tokenizer.json").read_text("utf-8"))
    lost = [byte_alphabet()[b] for b in (0x04, 0x13)]
    vocabulary = {token: id for token, id in content["model"]["vocab"].items() if token not in lost}
    merges = [pair for pair in content["model"]["merges"] if not set("".join(pair)) & set(lost)]
    path = edited(directory, tmp_path, model=content["model"] | {"vocab": vocabulary, "merges": merges})
    assert load(path).facts.lost_bytes == b"\x04\x13"
    assert load(path).decode(load(path).encode("a\x04b")) == "ab"
    assert load(directory / "bpe").facts.lost_bytes == b""


def test_wordpiece_is_encoded_a_word_at_a_time(tmp_path: Path) -> None:
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "token", "##ization", "is", "fun", ",", "[", "]", "sep"]
    library = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    library.decoder = decoders.WordPiece()
    library.add_special_tokens(words[:4])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(tmp_path)
    assert tokenizer.engine == "words"
    assert tokenizer.encode("Tokenization, is fun [SEP]") == [4, 5, 8, 6, 7, 9, 11, 10]
    assert tokenizer.eod == 3
    assert b"".join(map(tokenizer.piece, [4, 5, 6])) == b" tokenization is"


def word_piece_files(directory: Path, **config: Any) -> Path:
    """A small vocab.txt with its tokenizer_config.json."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "caf\u00e9",
        "cafe",
        "Hello",
        "hello",
        "##s",
        ",",
        "\u4f60",
    ]
    (directory / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_a_vocab_txt_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    from transformers import BertTokenizerFast

    texts = [
        "Hello, cafes",
        "caf\u00e9s CAF\u00c9",
        "\u4f60\u4f60 x",
        "[SEP] hello\x0bhello\x1c hello\x85s",
        "",
    ]
    for small in (True, False):
        path = word_piece_files(tmp_path, do_lower_case=small)
        library: Any = BertTokenizerFast(str(path / "vocab.txt"), do_lower_case=small)
        expected = [
            library(t, add_special_tokens=False, split_special_tokens=True)["input_ids"] for t in texts
        ]
        for engine in ("quick", "reference"):
            assert [load(path, engine=engine).encode(text) for text in texts] == expected
    tokenizer = load(path)
    assert (tokenizer.engine, tokenizer.eod, tokenizer.facts.unknown) == ("words", 3, 1)
    tokenizer.save(tmp_path / "copy")
    assert load(tmp_path / "copy").fingerprint == tokenizer.fingerprint
    assert load(word_piece_files(tmp_path, do_lower_case=True)).fingerprint != tokenizer.fingerprint


def test_bytes_are_their_own_ids(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library

    tokenizer, text = load("bytes"), f"h\u00e9\x00\n {END} \U0001f600"
    assert (tokenizer.engine, tokenizer.vocab_size, tokenizer.eod) == ("bytes", 257, 256)
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode([*text.encode(), 256]) == text
    assert [tokenizer.piece(id) for id in range(257)] == [*(bytes([b]) for b in range(256)), b""]
    tokenizer.save(tmp_path)
    assert load(tmp_path).fingerprint == tokenizer.fingerprint
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    library.encode_special_tokens = True
    assert library.encode(text).ids == list(text.encode())


def test_what_would_change_documents_is_named(directory: Path, tmp_path: Path) -> None:
    cut = {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    tokenizer = load(edited(directory, tmp_path, truncation=cut))
    assert tokenizer.facts.unheeded == ("cutting to 8 tokens",)
    assert load(directory / "bpe").facts.unheeded == ()


def test_added_tokens_that_are_not_special_are_found_in_text_by_every_engine(
    directory: Path, tmp_path: Path
) -> None:
    added = json.loads((directory / "bpe" / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    word = {**added[0], "id": 1024, "content": "   ", "special": False}
    path = edited(directory, tmp_path, added_tokens=[*added, word])
    for engine in ("auto", "quick", "reference"):
        assert 1024 in load(path, engine=engine).encode("a   b")


def test_gigatoken_is_built_anew_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    from mtl_common.tokenizers.libraries import Renewed

    class Library:
        def encode_batch(self, texts: list[str], parallel: bool) -> Any:
            assert not parallel
            return gigatoken.Tokenizer.from_json((Path(tokenizers_bytes)).read_bytes()).encode_batch(texts)

    import gigatoken

    from mtl_common.tokenizers.plain_bytes import FILE as tokenizers_bytes

    built: list[Library] = []

    def build() -> Library:
        built.append(Library())
        return built[-1]

    encode = Renewed(build, characters=10)
    flats = [encode(["abc", "defgh"]) for _ in range(4)]
    assert len(built) == 2
    assert all(split(flat) == [[97, 98, 99], [100, 101, 102, 103, 104]] for flat in flats)
    Renewed(build, memory=-(1 << 60))(["a"])
    assert len(built) == 4


def test_words_are_forgotten_when_they_are_many() -> None:
    from mtl_common.tokenizers.flat import flatten
    from mtl_common.tokenizers.words import WordMemory

    asked: list[str] = []

    def reference(texts: Any) -> Any:
        asked.extend(texts)
        return flatten([list(text.encode()) for text in texts])

    encode = WordMemory(reference, kept=6)
    for _ in range(3):
        assert split(encode(["ab cd", "", "ab,ef"])) == [[97, 98, 99, 100], [], [97, 98, 44, 101, 102]]
    assert asked == ["ab", "cd", ",", "ef"] * 3


def test_one_thread_leaves_the_process_its_cores(directory: Path) -> None:
    import os

    allowed = os.sched_getaffinity(0)
    tokenizer = load(directory / "bpe", one_thread=True)
    assert os.sched_getaffinity(0) == allowed
    assert tokenizer.encode(TEXTS[0]) == load(directory / "bpe").encode(TEXTS[0])


FORKED = """
import multiprocessing, os, sys
from mtl_common.tokenizers import load
tokenizer = load(sys.argv[1], engine=sys.argv[2])
texts = [line * 50 for line in open(sys.argv[3])]
ids = tokenizer.encode_batch(texts)[0].tolist()
def again():
    assert tokenizer.engine == sys.argv[2]
    os._exit(7 if tokenizer.encode_batch(texts)[0].tolist() == ids else 1)
child = multiprocessing.get_context("fork").Process(target=again)
child.start()
child.join(60)
child.kill()
os._exit(0 if child.exitcode == 7 else 1)
"""


@pytest.mark.parametrize("engine", ["gigatoken", "fastokens"])
def test_a_process_forked_off_after_encoding_encodes_too(directory: Path, engine: str) -> None:
    # gigatoken hangs there once it has threads of its own
    command = [sys.executable, "-c", FORKED, directory / "bpe" / "tokenizer.json", engine, __file__]
    assert subprocess.run(command, timeout=120).returncode == 0


def test_a_lone_surrogate_is_one_sentence(tokenizer: Tokenizer) -> None:
    if tokenizer.engine == "sentencepiece":
        pytest.skip("sentencepiece replaces a lone surrogate itself")
    with pytest.raises(DataError, match="not valid Unicode"):
        tokenizer.encode("a\ud800")


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("tokenizer.json", b"", "is not a tokenizer"),
        ("tokenizer.json", b'{"model":', "is not JSON"),
        ("tokenizer.json", b"[1]", "no object"),
        ("tokenizer.json", b'{"model": {}}', "tokenizers can read"),
        ("x.tiktoken", b"YQ== 0\n", "all 256 bytes"),
        ("x.tiktoken", b"YQ== 0\n!! x\n", "line 2"),
        ("x.model", b"\x00\x01\x02 nonsense", "is not a tokenizer"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, part: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=part) as caught:
        load(tmp_path)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_place_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no tokenizer at .*absent"):
        load(tmp_path / "absent")
    with pytest.raises(DataError, match="holds no tokenizer"):
        load(tmp_path)
    for name in ("a.model", "b.model"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=r"several tokenizers: a\.model, b\.model"):
        load(tmp_path)
