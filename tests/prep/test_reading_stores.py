"""A corpus in S3, over HTTP: the bins of local files, and one sentence for everything that stores can do."""

import gzip
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtl_common.bins import Bins
from mtl_common.errors import DataError, UsageError
from mtl_prep.corpus import far
from mtl_prep.corpus.find import check_unchanged, find
from preparing import Make, json_lines, prep, shard_bytes, texts_of
from scaling import write_tree

pytest.importorskip("s3fs")
pytest.importorskip("moto")

from werkzeug.wrappers import Request, Response

from s3 import S3, serving


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with serving() as found:
        yield found


@pytest.fixture
def s3(server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(far, "FIRST_WAIT", 0.01)
    s3fs.S3FileSystem.clear_instance_cache()
    server.empty()
    yield server
    s3fs.S3FileSystem.clear_instance_cache()


def test_the_bins_are_those_of_local_files(s3: S3, make: Make, tokenizer: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    tree = tmp_path / "tree"
    tree.mkdir()
    write_tree(tree)
    (tree / "deep").mkdir()
    table = pa.table({"text": [f"row {i}" for i in range(500)]})
    parquet.write_table(table, tree / "deep" / "e.parquet", row_group_size=50)
    (tree / "image.png").write_bytes(b"\x89PNG")
    s3.put_tree(tree, "data")
    command = ("tokenize", "s3://corpus/data", "--tokenizer", tokenizer, "--workers", 2, "--out", "far")
    done = prep(*command, "--shard-tokens", 70_000, "--max-bad", 3, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "passed over  1 .png" in done.stdout
    near = make(tree, shard_tokens=70_000)
    assert shard_bytes(Bins(tmp_path / "far")) == shard_bytes(near)
    assert len(near.manifest.shards) > 2
    names = [source.path.removeprefix(str(tree)) for source in near.manifest.sources]
    assert [f"s3://corpus/data{name}" for name in names] == [
        s.address for s in find(["s3://corpus/data"]).sources
    ]
    some = make("s3://corpus/data/*.jsonl*", "s3://corpus/data/deep/e.parquet", name="some", part_bytes=9_000)
    local = make(*sorted(tree.glob("*.jsonl*")), tree / "deep" / "e.parquet", name="local", part_bytes=9_000)
    assert shard_bytes(some) == shard_bytes(local)


@pytest.mark.parametrize(
    "command",
    [
        ("tokenize", "a.txt", "--tokenizer", "bytes", "--out", "s3://corpus/bins"),
        ("curate", "recipe.toml", "a.txt", "--out", "gs://corpus/clean"),
        ("inspect", "s3://corpus/bins"),
        ("split", "bins", "--parts", "a=1", "--out", "s3://corpus/bins"),
        ("finish", "s3://corpus/bins"),
    ],
)
def test_only_a_corpus_may_be_a_url(command: tuple[str, ...], tmp_path: Path) -> None:
    done = prep(*command, cwd=tmp_path)
    assert done.returncode == 2
    [url] = [argument for argument in command if "://" in argument]
    assert (
        done.stderr == f"error: {url} is a URL, and only a corpus may be one; use a directory, and copy it\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_of_a_clean_corpus_only_the_shards_are_read(s3: S3, tmp_path: Path) -> None:
    from mtl_prep.curate.request import Request
    from mtl_prep.curate.run import curate

    (tmp_path / "a.jsonl").write_bytes(json_lines(["kept", "kept", "also kept"]))
    (tmp_path / "recipe.toml").write_text("[exact_duplicates]")
    clean = tmp_path / "clean"
    curate(Request(tmp_path / "recipe.toml", [tmp_path / "a.jsonl"], clean, 1))
    assert (clean / "removed" / "exact_duplicates.jsonl").stat().st_size > 0
    s3.put_tree(clean, "data/clean")
    s3.put("data/other.jsonl", json_lines(["other"]))
    s3.put("data/node_modules/b.js", b"left alone")
    names = [
        source.address.removeprefix("s3://corpus/data/") for source in find(["s3://corpus/data"]).sources
    ]
    assert names == ["clean/shard-00000.jsonl.zst", "other.jsonl"]


def test_of_parquet_only_the_text_is_fetched(s3: S3, make: Make, tmp_path: Path) -> None:
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    noise = np.random.default_rng(0).bytes(8_000_000)
    columns = {"noise": [noise[i : i + 8000] for i in range(0, len(noise), 8000)]}
    columns["text"] = [f"row {i}" for i in range(1000)]
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=100)
    s3.put("a.parquet", (tmp_path / "a.parquet").read_bytes())
    assert texts_of(make("s3://corpus/a.parquet")) == columns["text"]
    assert 0 < s3.sent < 2_000_000


def test_few_requests_for_a_small_object(s3: S3, make: Make) -> None:
    for i in range(12):
        s3.put(f"data/{i:02}.md", b"text")
    s3.asked.clear()
    assert len(make("s3://corpus/data")) == 12
    assert len([path for _, path in s3.asked if path.endswith("07.md")]) <= 6


def test_a_flaky_store(s3: S3, make: Make) -> None:
    texts = [f"{i} " + "x" * (i % 50) for i in range(4000)]
    s3.put("a.jsonl", json_lines(texts))
    s3.put("b.jsonl.gz", gzip.compress(json_lines(texts)))
    faults = itertools.cycle([Response(status=500), None, 1000, None, Response(status=503), None])
    s3.trouble = lambda request: next(faults) if request.method == "GET" else None
    assert texts_of(make("s3://corpus/*.jsonl*", part_bytes=30_000)) == texts * 2


def test_a_changed_object(s3: S3, make: Make) -> None:
    s3.put("a.jsonl", json_lines(["one", b"no json"]))
    sources = find(["s3://corpus/a.jsonl"]).sources
    with pytest.raises(DataError, match="more than --max-bad"):
        make("s3://corpus/a.jsonl", max_bad="0")
    s3.put("a.jsonl", json_lines(["two", b"no json"]))
    with pytest.raises(UsageError, match=r"s3://corpus/a\.jsonl has changed since .* was begun"):
        make("s3://corpus/a.jsonl", max_bad="1")
    with pytest.raises(DataError, match=r"s3://corpus/a\.jsonl changed while it was read; remove what"):
        check_unchanged(sources)


def test_an_object_that_changes_or_goes_while_it_is_read(s3: S3) -> None:
    s3.put("a.jsonl", json_lines(["text"] * 30_000))
    [source] = find(["s3://corpus/a.jsonl"]).sources
    pieces = source.pieces()
    assert next(pieces)
    s3.put("a.jsonl", b"short")
    with pytest.raises(DataError, match=r"s3://corpus/a\.jsonl changed while it was read; remove what"):
        list(pieces)
    s3.delete("a.jsonl")
    with pytest.raises(DataError, match=r"s3://corpus/a\.jsonl is gone; bring it back and run again"):
        list(source.pieces())
    with pytest.raises(DataError, match=r"s3://corpus/a\.jsonl is gone"):
        check_unchanged([source])


def test_what_is_not_there(s3: S3, make: Make) -> None:
    for address in ("s3://nobucket/a.jsonl", "s3://corpus/a.jsonl", "s3://corpus/directory/"):
        with pytest.raises(DataError, match=f"no corpus at {address}; check the path"):
            make(address)
    with pytest.raises(DataError, match=r"no file matches s3://corpus/\*\.jsonl; check the pattern"):
        make("s3://corpus/*.jsonl")


def forbidden(_: Request) -> Response:
    return Response("<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>", status=403)


def test_what_may_not_be_read(s3: S3, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    s3.put("a.jsonl", json_lines(["text"]))
    s3.trouble = forbidden
    refused = r"may not be read \(.+\); see to the credentials for its store"
    for address in ("s3://corpus/a.jsonl", "s3://corpus/*.jsonl"):
        with pytest.raises(DataError, match=refused):
            make(address)
    assert len(s3.asked) < 8  # it was not tried again and again
    s3.trouble = lambda request: forbidden(request) if request.method == "GET" else None
    with pytest.raises(DataError, match=refused):
        make("s3://corpus/a.jsonl")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(DataError, match=rf"a\.jsonl {refused}"):
        make("s3://corpus/a.jsonl")


def test_a_store_that_does_not_answer(s3: S3, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    monkeypatch.setattr(far, "AT_FIRST", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(DataError, match=r"could not be read in .* \(Could not connect to the endpoint URL"):
        make("s3://corpus/a.jsonl")
