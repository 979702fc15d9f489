"""A command line with our habits: one-sentence errors, exit codes, --debug, "did you mean", the next command.

A tool's cli.py is

    app = tool("mtl-prep", "From text to token bins.")

    @app.command()
    def inspect(...): ...

    def main() -> NoReturn:
        run(app)

Commands import torch, pyarrow and the like inside their functions, so that --help stays fast.
"""

import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from mtl_common.errors import MtlError


def tool(name: str, help: str) -> typer.Typer:
    """The application of one tool; `name` is the command and the distribution whose version it shows."""
    return typer.Typer(
        name=name, help=help, add_completion=False, rich_markup_mode=None, no_args_is_help=True
    )


def _habits(name: str, debug: Callable[[bool], None]) -> list[Any]:
    """The parameters that every command has, as typer makes them."""

    def show_version(asked: bool) -> None:
        if asked:
            from importlib.metadata import version  # imports a parser of e-mail

            typer.echo(f"{name} {version(name)}")
            raise typer.Exit

    def habits(
        debug: Annotated[
            bool, typer.Option("--debug", help="Show the traceback of an error.", callback=debug)
        ] = False,
        version: Annotated[
            bool, typer.Option("--version", help="Show the version.", callback=show_version, is_eager=True)
        ] = False,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(habits)
    parameters = [p for p in typer.main.get_command(app).params if p.name in ("debug", "version")]
    for parameter in parameters:
        parameter.expose_value = False
    return parameters


def _add(command: Any, parameters: list[Any]) -> None:
    command.params.extend(parameters)
    for inner in getattr(command, "commands", {}).values():
        _add(inner, parameters)


def _usage(error: typer.TyperException) -> str:
    """What was typed wrongly, in one sentence, and the help that tells what is right."""
    from mtl_common.config import nearest

    message = " ".join(error.format_message().split()).rstrip(".").replace("Input should", "it should")
    message = re.sub(r"\. Did you mean '([^']*)'.*\?$", r' (did you mean "\1"?)', message)
    typed = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if typed and hasattr(error, "possibilities") and context:
        options = [name for parameter in context.command.params for name in parameter.opts]
        message = f"no such option {typed}{nearest(typed, options)}"
    see = f"; see {context.command_path} --help" if context else ""
    return message[:1].lower() + message[1:] + see


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _explain(error: Exception) -> tuple[str, int]:
    """An exception as one sentence, and the exit code it ends the command with."""
    if isinstance(error, MtlError):
        return str(error), error.exit_code
    if isinstance(error, typer.TyperException):
        return _usage(error), error.exit_code
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'input or output'}: {error.strerror.lower()}", 1
    kind = type(error).__name__
    return f"unexpected {kind} at {_place(error)}: {error}; run again with --debug for the traceback", 1


def run(app: typer.Typer) -> NoReturn:
    """Runs the command line and exits: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted.

    An error is one line on stderr, `error: sentence`; with --debug its traceback comes first. A command that
    returns a number ends with it as the exit code.
    """
    debugging: list[bool] = []
    command = typer.main.get_command(app)
    _add(command, _habits(str(app.info.name), lambda asked: debugging.extend([asked] * asked)))
    try:
        code = command.main(prog_name=app.info.name, standalone_mode=False)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(str(error), err=True)
            sys.exit(2)
        if debugging:
            traceback.print_exception(error)
        sentence, code = _explain(error)
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(code)
    if code == 130:
        print("interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def next_command(text: str) -> None:
    """Prints the command that usually comes next."""
    print(f"next: {text}")
