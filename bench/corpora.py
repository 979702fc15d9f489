"""Real text for benchmarks: English, code and 26 languages, from Debian's packages and Python's own library.

python bench/corpora.py OUT.jsonl      about 140 MB, {"text", "kind"} a line

Needs apt-get, not root: packages are downloaded and unpacked beside the file, not installed.
"""

import argparse
import gzip
import html
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import orjson

PACKAGES = ("linux-doc-6.1", "anarchism", "perl-doc", "debian-handbook")
TAG = re.compile(r"<[^>]+>")


def unpacked(package: str, directory: Path) -> Path:
    """The files of a Debian package, downloaded when they are not there yet."""
    out = directory / package
    if not out.is_dir():
        subprocess.run(["apt-get", "download", package], cwd=directory, check=True, capture_output=True)
        (archive,) = directory.glob(f"{package}_*.deb")
        subprocess.run(["dpkg", "-x", archive, out], check=True)
        archive.unlink()
    return out


def _files(directory: Path, *endings: str) -> Iterator[bytes]:
    for path in sorted(directory.rglob("*")):
        if path.name.endswith(endings) and path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            yield gzip.decompress(content) if path.suffix == ".gz" else content


def _plain(page: bytes) -> str:
    return TAG.sub("", html.unescape(page.decode("utf-8", "replace")))


def documents(directory: Path) -> Iterator[tuple[str, str]]:
    """(kind, text) of every document, in a fixed order."""
    linux, anarchism, perl, handbook = (unpacked(package, directory) for package in PACKAGES)
    for content in _files(linux, ".rst", ".txt", ".rst.gz", ".txt.gz"):
        yield "english", content.decode("utf-8", "replace")
    for content in _files(anarchism, ".html"):
        yield "english", _plain(content)
    for content in _files(perl, ".pod"):
        yield "english", content.decode("utf-8", "replace")
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts:
            yield "code", path.read_text("utf-8", "replace")
    for content in _files(handbook, ".html"):
        yield "languages", _plain(content)


def write(path: Path) -> Path:
    """Makes the corpus when it is not there yet."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_suffix(".tmp")
        with staged.open("wb") as file:
            for kind, text in documents(path.parent):
                if text.strip():
                    file.write(orjson.dumps({"text": text, "kind": kind}) + b"\n")
        staged.replace(path)
    return path


def main() -> None:
    """Writes the corpus."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    print(write(parser.parse_args().out))


if __name__ == "__main__":
    main()
