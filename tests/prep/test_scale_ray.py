"""Units on Ray: the same bytes when a process or a machine is lost, and plain words without Ray."""

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtl_common.errors import UsageError
from mtl_prep.running import on_ray
from mtl_prep.running.tokenize import tokenize
from preparing import all_bytes
from scaling import descendants, doers, done, gone, in_process, request, wait_until, write_tree


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("tree"), 60)


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


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process and all that is below it, as when a machine is lost."""
    below = descendants(process.pid)
    for pid in (process.pid, *below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    assert gone(below)


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """The address of a cluster, and two machines of a core each, as Ray sees them."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    start = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1"]
    start += ["--object-store-memory=80000000", "--disable-usage-stats"]
    head = ["--head", "--include-dashboard=false", "--node-ip-address=127.0.0.1", f"--port={address[10:]}"]
    found: list[subprocess.Popen[bytes]] = []
    for how in (head, [f"--address={address}", "--node-ip-address=127.0.0.2"]):
        found.append(subprocess.Popen([*start, *how], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        assert wait_until(lambda: on_ray.unhealthy(address) is None, 60)
    yield address, found
    for process in found:
        end(process)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_lost_machine_changes_nothing(
    machines: tuple[str, list["subprocess.Popen[bytes]"]], corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    out, plain = tmp_path / "bins", tmp_path / "plain"
    address, (head, other) = machines
    options: dict[str, Any] = {"shuffle_documents": 2, "part_bytes": 15_000}
    process = in_process(corpus, tokenizer, out, workers=2, runs_on="ray", ray_address=address, **options)
    assert wait_until(lambda: process.poll() is not None or (done(out) > 0 and bool(doers(other.pid))), 120)
    assert doers(head.pid)
    end(other)
    _, told = process.communicate(timeout=150)
    assert process.returncode == 0, told.decode()
    tokenize(request(corpus, tokenizer, plain, **options))
    assert all_bytes(out) == all_bytes(plain)


def test_a_machine_that_does_not_see_the_bins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(on_ray, "LATE", 0)
    shared = on_ray.Shared(None, None, str(tmp_path), tmp_path / "bins" / "_work" / "seen-1")
    pytest.importorskip("ray")
    error = on_ray.do_task(shared, None)
    assert isinstance(error, UsageError)
    assert re.fullmatch(r"on machine .+: .+/bins is not the same there; choose an --out .*", str(error))


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
