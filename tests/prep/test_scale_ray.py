"""Units on Ray: the same bytes with two processes of which one is killed, and plain words without Ray."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from mtl_common.errors import UsageError
from mtl_prep.running.tokenize import tokenize
from preparing import all_bytes
from scaling import descendants, done, gone, in_process, request, wait_until, write_tree


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("tree"), 60)


def doers(pid: int) -> list[int]:
    """The processes of Ray's that do pieces of work."""
    found = []
    for below in descendants(pid):
        try:
            name = Path(f"/proc/{below}/cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::Doer"):
            found.append(below)
    return found


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_killed_process_is_replaced_and_the_bytes_are_the_same(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    out, plain = tmp_path / "bins", tmp_path / "plain"
    process = in_process(
        corpus, tokenizer, out, workers=2, runs_on="ray", shuffle_documents=2, part_bytes=15_000
    )
    assert wait_until(
        lambda: process.poll() is not None or (done(out) > 0 and len(doers(process.pid)) > 0), 120
    )
    victims = doers(process.pid)[:1]
    below = descendants(process.pid)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    _, told = process.communicate(timeout=150)
    assert process.returncode == 0, told.decode()
    assert victims
    assert gone(below)
    tokenize(request(corpus, tokenizer, plain, shuffle_documents=2, part_bytes=15_000))
    assert all_bytes(out) == all_bytes(plain)


def test_without_ray_the_command_to_install_it_is_told(
    corpus: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"needs Ray; pip install 'mtl-prep\[ray\]'"):
        tokenize(request(corpus, tokenizer, tmp_path / "bins", runs_on="ray"))
    with pytest.raises(UsageError, match=r'no --engine is called rey \(did you mean "ray"\?\)'):
        tokenize(request(corpus, tokenizer, tmp_path / "bins", runs_on="rey"))
    assert not (tmp_path / "bins").exists()


def test_an_address_where_no_ray_is_is_told_at_once(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match=rf"no Ray at {address}: connection refused; see --ray-address"):
            tokenize(request(corpus, tokenizer, tmp_path / "bins", runs_on="ray", ray_address=address))
