"""`mtl-serve` from the command line, and servers of several ranks: start, answer, stop, lose a rank."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hosting import SETTINGS, InThread, serving
from mtl_common.errors import CheckpointError, RankError, ServeError
from mtl_parallel.launch import Ranks
from mtl_serve.client import Client
from mtl_serve.config import ServeSettings, plan
from serving import LLAMA, toy_model, write_checkpoint, write_tokenizer

LONG = LLAMA.model_copy(update={"seq": 8192})
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def command(*words: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mtl-serve", *map(str, words)], capture_output=True, text=True, timeout=timeout)


@contextmanager
def started(*words: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`mtl-serve run ...` as a process, and the address from its ready line."""
    process = subprocess.Popen(
        ["mtl-serve", "run", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"ready: .* on (\S+:\d+)\n", line)
        assert found, (line, process.stderr and process.stderr.read())
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def children(pid: int) -> list[int]:
    """The processes that one has started, oldest first."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(entry.parent.name))
    return sorted(found)


def ranks_of(pid: int) -> list[int]:
    """The ranks of a command: children of its fork server, in order."""
    return [rank for child in children(pid) for rank in children(child)]


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def long_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("long"), LONG)


def test_two_ranks_from_the_command_line(checkpoint: Path) -> None:
    with started(checkpoint.parent, "--tp", "2", "--port", "0") as (process, address):
        asked = command(
            "generate", "hello", "--server", address, "--temperature", "0", "--max-new-tokens", "40"
        )
        assert asked.returncode == 0, asked.stderr
        with Client(address, timeout=60) as client:
            answer = client.generate("hello", temperature=0, max_new_tokens=40)
            prompt = [258, ord("o")]
            assert answer.tokens == plain_loop(prompt, 40)
            assert asked.stdout == answer.text + "\n"
        busy = command("run", checkpoint, "--port", address.rpartition(":")[2])
        assert busy.returncode == 1
        assert re.fullmatch(rf"error: cannot listen on {address} \(address already in use\).*\n", busy.stderr)
        ranks = ranks_of(process.pid)
        assert len(ranks) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert until(lambda: gone(ranks), 5)


def plain_loop(prompt: list[int], count: int) -> tuple[int, ...]:
    import torch

    model, text = toy_model(LLAMA), list(prompt)
    with torch.inference_mode():
        while len(text) < len(prompt) + count and text[-1] != 259:
            text.append(int(model(torch.tensor([text]))[0, -1, : LLAMA.vocab].argmax()))
    return tuple(text[len(prompt) :])


def test_a_rank_killed_mid_stream_ends_the_command(long_checkpoint: Path) -> None:
    with started(long_checkpoint, "--tp", "2", "--port", "0") as (process, address):
        with Client(address, timeout=60) as client:
            texts = iter(client.stream("hello", ignore_end_of_sequence=True))
            next(texts)
            ranks = ranks_of(process.pid)
            os.kill(ranks[1], signal.SIGKILL)
            began = time.monotonic()
            with pytest.raises(ServeError):
                list(texts)
        assert process.wait(10) == 1
        assert time.monotonic() - began < 10
        assert process.stderr is not None
        assert re.fullmatch(r"error: rank 1 was killed by SIGKILL.*\n", process.stderr.read())
        assert until(lambda: gone(ranks), 5)


def watch(address: str) -> Iterator[int]:
    """The server's health, as it changes, until it goes away."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with contextlib.suppress(grpc.RpcError):
            for response in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=60):
                yield response.status


def test_a_rank_killed_while_idle_is_noticed_and_named(checkpoint: Path) -> None:
    port = free_port()
    planned = plan(checkpoint, ServeSettings(tp=2, port=port))
    with Ranks("mtl_serve.rank:main", 2, (planned,), preload=["mtl_serve.rank"]) as ranks:
        statuses = watch(f"127.0.0.1:{port}")
        assert until(lambda: next(statuses) == SERVING, 60)
        victim = ranks.pids[1]
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(RankError, match="rank 1 was killed by SIGKILL"):
            until(lambda: ranks.poll(0.1), 30)
        assert time.monotonic() - began < 10
        assert NOT_SERVING in list(statuses)
        assert ranks.alive == []


BAD_RUNS = [
    (["nowhere"], 1, "nowhere does not exist"),
    (["CHECKPOINT", "--tp", "4"], 2, "heads 6 cannot be divided by tp 4"),
    (["CHECKPOINT", "--port", "70000"], 2, "port is 70000"),
    (["CHECKPOINT", "--precision", "fp8"], 2, "precision is"),
    (["CHECKPOINT", "--host", "192.0.2.1"], 1, "cannot listen on 192.0.2.1:50051"),
    (["CHECKPOINT", "--set", "step_token=4"], 2, 'did you mean "step_tokens"'),
    (["CHECKPOINT", "--set", "step_tokens=4"], 2, "step_tokens is 4, too few for 16 sequences"),
    (["CHECKPOINT", "--set", "cache_gib=1e-6"], 2, "fewer than the context of 160"),
    (["CHECKPOINT", "--prot", "1"], 2, "--port"),
]


@pytest.mark.parametrize(("words", "code", "sentence"), BAD_RUNS, ids=lambda value: str(value)[-30:])
def test_a_server_that_cannot_be_says_why(
    checkpoint: Path, words: list[str], code: int, sentence: str
) -> None:
    ended = command("run", *[str(checkpoint) if word == "CHECKPOINT" else word for word in words])
    assert ended.returncode == code
    assert ended.stdout == ""
    assert re.fullmatch(r"error: [^\n]*\n", ended.stderr), ended.stderr
    assert sentence in ended.stderr


def test_a_damaged_checkpoint_ends_the_server_naming_the_file(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, LLAMA)
    data = next((path / "model").iterdir())
    data.write_bytes(data.read_bytes()[:-8])
    with serving(plan(path, SETTINGS)) as server:
        server.join()
    assert isinstance(server.error, CheckpointError)
    assert data.name in str(server.error)


BAD_ASKS = [
    (["--server", "127.0.0.1:1"], 1, "no server answers at 127.0.0.1:1"),
    (["--server", "127.0.0.1:1", "--wait", "0.5"], 1, "no server was ready at 127.0.0.1:1 within 0.5 s"),
    (["--server", "nowhere"], 2, "give HOST:PORT"),
    (["--max-new-tokens", "none"], 2, "--max-new-tokens"),
]


@pytest.mark.parametrize(("words", "code", "sentence"), BAD_ASKS, ids=lambda value: str(value)[-30:])
def test_an_ask_that_cannot_be_says_why(words: list[str], code: int, sentence: str) -> None:
    ended = command("generate", "hello", *words)
    assert ended.returncode == code
    assert re.fullmatch(r"error: [^\n]*\n", ended.stderr), ended.stderr
    assert sentence in ended.stderr


def test_the_client_works_without_torch(server: InThread) -> None:
    program = (
        "import sys; from mtl_serve.client import Client\n"
        f"with Client('{server.address}') as client: print(len(client.generate('a', max_new_tokens=3, "
        "ignore_end_of_sequence=True).tokens))\n"
        "print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["3", "False"], ran.stderr


def test_a_question_needs_a_chat_template(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, LLAMA)
    write_tokenizer(path / "tokenizer", chat=False)
    (path / "tokenizer" / "chat_template.jinja").unlink(missing_ok=True)
    with serving(plan(path, SETTINGS)) as server:
        ended = command("generate", "hi", "--chat", "--server", server.address)
    assert ended.returncode == 2
    assert ended.stderr == "error: this model has no chat template; send the prompt as text\n"
