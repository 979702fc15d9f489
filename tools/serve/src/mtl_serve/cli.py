"""The command line of mtl-serve: `run` a server, ask it to `generate`."""

import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mtl_common.command import run as run_app
from mtl_common.command import tool

if TYPE_CHECKING:
    from mtl_serve.config import Plan

app = tool("mtl-serve", "From a checkpoint to generated text over gRPC.")

SERVER = "127.0.0.1:50051"


def _check_port(host: str, port: int) -> None:
    """Raises ServeError for a port that cannot be had, before ranks are started and a model is loaded."""
    import socket

    from mtl_serve.address import cannot_listen

    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server itself does
            probe.bind(where)
    except OSError as error:
        raise cannot_listen(host, port, str(error.strerror)) from None


def _start(plan: "Plan") -> None:
    from mtl_parallel.launch import joined, launch

    if joined():  # by torchrun or srun
        from mtl_serve.rank import main as rank

        rank(plan)
        return
    try:
        launch(
            "mtl_serve.rank:main",
            plan.settings.tp,
            (plan,),
            threads=plan.threads,
            patience=plan.settings.drain_seconds + 30,
            preload=["mtl_serve.rank"],
        )
    except SystemExit as leaving:
        if leaving.code != 128 + signal.SIGTERM:  # to be asked to stop, and to stop, is success for a server
            raise


@app.command()
def run(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint, a directory of checkpoints or a run directory.")
    ],
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel ranks [default: 1].")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; 0 takes a free one [default: 50051].")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [default: 127.0.0.1].")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16 [default: as stored].")] = None,
    context: Annotated[
        int | None, typer.Option(help="Longest prompt and answer together [default: the model's].")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads a rank [default: leaves one core free].")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    set: Annotated[list[str] | None, typer.Option(help="key=value of any setting; may be repeated.")] = None,
) -> None:
    """Serve a checkpoint until SIGTERM or Ctrl-C, which let requests under way finish."""
    from mtl_common.config import resolve
    from mtl_serve.config import ServeSettings, plan

    options = {
        "tp": tp,
        "port": port,
        "host": host,
        "precision": precision,
        "context": context,
        "threads": threads,
    }
    settings = resolve(ServeSettings, file=config, options=options, sets=set or ())
    planned = plan(checkpoint, settings)
    _check_port(settings.host, settings.port)
    if settings.host not in ("127.0.0.1", "localhost", "::1"):
        print(
            f"warning: {settings.host} is open to the network, and the server asks nobody who they are",
            file=sys.stderr,
        )
    _start(planned)


def _show(texts: Iterable[str]) -> None:
    """Prints texts as they come, and a line's end behind the last one, come what may."""
    shown = False
    try:
        for text in texts:
            print(text, end="", flush=True)
            shown = True
    finally:
        if shown:
            print(flush=True)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    server: Annotated[str, typer.Option(help="HOST:PORT of the server.")] = SERVER,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a question in the model's own form.")
    ] = False,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Most new tokens [default: what the context holds].")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 always takes the likeliest token [default: 1].")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sample among the k likeliest tokens [default: all].")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample among the likeliest with this probability [default: 1].")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same text [default: drawn].")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for the whole answer [default: no limit].")
    ] = None,
    wait: Annotated[
        float | None, typer.Option(help="Seconds to wait for a server to be ready [default: 0].")
    ] = None,
) -> None:
    """Ask a server to continue a text, and show the answer as it comes."""
    from mtl_serve.client import Client

    with Client(server, timeout=timeout) as client:
        if wait:
            client.wait(wait)
        stream = client.stream(
            [{"role": "user", "content": prompt}] if chat else prompt,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            max_new_tokens=max_new_tokens,
            stop=stop or (),
        )
        _show(stream)
    if stream.answer:
        answer, greedy = stream.answer, temperature == 0 or top_k == 1
        drawn = "" if greedy else f", seed {answer.seed}"
        print(f"({len(answer.tokens)} tokens, {answer.finish_reason}{drawn})", file=sys.stderr)


def main() -> NoReturn:
    """The `mtl-serve` command."""
    run_app(app)
