"""Where a corpus lies: directories, patterns, standard input, and stores that are reached by URLs."""

import gzip
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corpus import stdlib_texts
from mtl_common.bins import Bins
from mtl_common.errors import DataError, UsageError
from mtl_prep.corpus.find import check_unchanged, find
from mtl_prep.corpus.formats import Reading
from mtl_prep.corpus.records import Documents
from mtl_prep.corpus.units import documents
from preparing import Make, json_lines, prep, texts_of


def texts_in(*corpus: str | Path, part_bytes: int = 1 << 24) -> list[str]:
    found: Iterator[Documents] = documents(Reading(find(corpus).sources, "text", part_bytes))
    return [text for each in found for text in each.texts]


def names_in(*corpus: str | Path) -> list[str]:
    return [Path(source.address).name for source in find(corpus).sources]


def test_patterns(tmp_path: Path) -> None:
    for i, name in enumerate(["b/2.jsonl", "a/1.jsonl", "a/deep/3.jsonl", "a/other.txt", "a/[x].jsonl"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(json_lines([str(i)]) if name.endswith("jsonl") else b"text")
    assert names_in(f"{tmp_path}/**/?.jsonl") == ["1.jsonl", "3.jsonl", "2.jsonl"]
    assert names_in(f"{tmp_path}/a/[12].jsonl") == ["1.jsonl"]
    assert names_in(f"{tmp_path}/a/[x].jsonl") == ["[x].jsonl"]  # a file of that very name
    with pytest.raises(DataError, match=r"no file matches .*\*\.parquet; check the pattern"):
        find([f"{tmp_path}/*.parquet"])
    with pytest.raises(DataError, match=r"is in the corpus twice; name it once"):
        find([f"{tmp_path}/**/*.jsonl", tmp_path / "a" / "1.jsonl"])


IGNORED = {
    "src/.gitignore": "*.py\n!keep.py\n/build/\n# comment\n\ndocs/**/draft.md\n",
    "src/a.py": "",
    "src/keep.py": "kept",
    "src/build/x.c": "",
    "src/lib/build/y.c": "kept",
    "src/lib/.gitignore": "*.c\n!build/y.c\n!z.py\n",
    "src/lib/x.c": "",
    "src/lib/z.py": "kept",
    "src/docs/deep/draft.md": "",
    "src/docs/deep/final.md": "kept",
}


def test_gitignore_files_are_followed_as_git_does(tmp_path: Path) -> None:
    for name, content in IGNORED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    wanted = [str(tmp_path / name) for name, content in IGNORED.items() if content == "kept"]
    corpus = find([tmp_path / "src"])
    assert sorted(source.address for source in corpus.sources) == sorted(wanted)
    assert corpus.skipped["in .gitignore"] == 4
    git = ["git", "-C", str(tmp_path), "-c", "safe.directory=*"]
    subprocess.run([*git, "init", "-q"], check=True)
    tracked = subprocess.run([*git, "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True)
    assert sorted(str(tmp_path / name) for name in tracked.stdout.decode().split()) == sorted(
        [*wanted, *(str(tmp_path / name) for name in IGNORED if name.endswith(".gitignore"))]
    )
    (tmp_path / "src" / ".gitignore").write_text("*\n")
    with pytest.raises(DataError, match=r"holds no .* among \d+ files \(\d+ in .gitignore"):
        find([tmp_path / "src"])
    assert names_in(tmp_path / "src" / "lib") == ["y.c", "z.py"]  # rules above what is named do not count


def test_links(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "blob").write_text("linked")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "b.md").write_text("b")
    (tree / "a.md").symlink_to(tree / "b.md")
    (tree / "c.md").symlink_to(tree / "b.md")
    (tree / "other blob.md").symlink_to(tmp_path / "store" / "blob")
    (tree / "blob.md").symlink_to(tmp_path / "store" / "blob")
    (tree / "loop").symlink_to(tree)
    (tree / "gone.md").symlink_to(tmp_path / "nothing")
    corpus = find([tree])
    assert [Path(source.address).name for source in corpus.sources] == ["b.md", "blob.md"]
    assert corpus.skipped == {"links to others": 3}
    assert texts_in(tree) == ["b", "linked"]


def test_languages_are_told_by_suffix(tmp_path: Path) -> None:
    for name in ("a.py", "b.RS", "c.md", "d.txt.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"x") if name.endswith("gz") else b"x")
    found = find([tmp_path]).sources
    assert [source.language for source in found] == ["Python", "Rust", "Markdown", "text"]


def run_with_input(
    content: bytes | None, *arguments: object, cwd: Path
) -> subprocess.CompletedProcess[bytes]:
    command = [str(Path(sys.executable).with_name("mtl-prep")), *map(str, arguments)]
    given: Any = {"stdin": subprocess.DEVNULL} if content is None else {"input": content}
    return subprocess.run(command, capture_output=True, timeout=120, cwd=cwd, **given)


def test_standard_input(tokenizer: Path, tmp_path: Path) -> None:
    texts = list(stdlib_texts(6))
    content = gzip.compress(json_lines([*texts, b"no json"]))
    command = ("tokenize", "-", "--tokenizer", tokenizer, "--out", "bins", "--workers", 1)
    done = run_with_input(b"", *command, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"standard input is empty" in done.stderr
    done = run_with_input(content, *command, "--max-bad", 0, cwd=tmp_path)
    assert b"- line 7 is not JSON" in done.stderr
    other = run_with_input(gzip.compress(b"other"), *command, cwd=tmp_path)
    assert other.returncode == 2
    assert b"standard input is not that of the earlier run" in other.stderr
    done = run_with_input(None, *command, "--max-bad", 1, cwd=tmp_path)  # goes on with what it has
    assert done.returncode == 0, done.stderr
    bins = Bins(tmp_path / "bins")
    assert texts_of(bins) == texts
    assert bins.origin(0) == ("-", 0)
    again = run_with_input(content, *command, "--max-bad", 1, cwd=tmp_path)
    assert b"finished before" in again.stdout
    assert not (tmp_path / "bins" / "_work").exists()
    done = run_with_input(
        content + b"\0", "tokenize", "-", "--tokenizer", tokenizer, "--out", ".", cwd=tmp_path
    )
    assert b"holds something else" in done.stderr


def test_file_urls(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "a b.jsonl"
    path.write_bytes(json_lines(["one", "two"]))
    assert texts_of(make(path.as_uri())) == ["one", "two"]


@pytest.fixture
def memory() -> Iterator[Any]:
    import fsspec

    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()
    store.pseudo_dirs.clear()


def test_a_store(make: Make, memory: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(
        pa.table({"text": [f"row {i}" for i in range(500)]}), tmp_path / "a", row_group_size=50
    )
    memory.pipe("/data/b.jsonl", json_lines([f"line {i}" for i in range(300)]))
    memory.pipe("/data/c/d.md", b"markdown\r\n")
    memory.pipe("/data/c/.hidden.md", b"hidden")
    memory.pipe("/data/c/image.png", b"\x89PNG")
    memory.pipe("/data/a.parquet", (tmp_path / "a").read_bytes())
    memory.pipe("/data/e.jsonl.gz", gzip.compress(json_lines(["packed"])))
    wanted = [f"row {i}" for i in range(500)] + [f"line {i}" for i in range(300)] + ["markdown\n", "packed"]
    for part_bytes in (1 << 24, 500):
        assert texts_in("memory://data", part_bytes=part_bytes) == wanted
    assert find(["memory://data"]).skipped == {".png": 1}
    assert texts_in("memory://data/*.jsonl*") == [*wanted[500:800], "packed"]
    with pytest.raises(DataError, match=r"no file matches memory://data/\*\.csv"):
        find(["memory://data/*.csv"])
    with pytest.raises(DataError, match="no corpus at memory://nothing"):
        find(["memory://nothing"])
    bins = make("memory://data", part_bytes=500)
    assert texts_of(bins) == wanted
    assert bins.manifest.sources[1].path.endswith("data/b.jsonl")
    sources = find(["memory://data"]).sources
    memory.pipe("/data/b.jsonl", json_lines(["changed"]))
    with pytest.raises(DataError, match=r"data/b\.jsonl changed while it was read"):
        check_unchanged(sources)


def test_stores_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"no store is known by nonsense://"):
        find(["nonsense://bucket/a.jsonl"])
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UsageError, match=r"gs:// takes gcsfs; pip install gcsfs"):
        find(["gs://bucket/a.jsonl"])
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError, match=r"takes fsspec; pip install 'mtl-prep\[remote\]'"):
        find(["s3://bucket/a.jsonl"])


def test_options_of_reading_decide_the_bins(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo\nthree caf\xe9\n")
    command = ("tokenize", "a.txt", "--tokenizer", tokenizer, "--out", "bins", "--workers", 1)
    done = prep(*command, "--split", "line", "--errors", "replace", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mended" in done.stdout
    assert texts_of(Bins(tmp_path / "bins")) == ["one", "two", "three caf\ufffd"]
    done = prep(*command, "--split", "paragraph", "--errors", "replace", cwd=tmp_path)
    assert done.returncode == 2
    assert 'made with --split "line", not "paragraph"' in done.stderr
    done = prep(*command, "--split", "word", cwd=tmp_path)
    assert done.returncode == 2
