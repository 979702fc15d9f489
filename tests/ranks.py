"""Runs a test's function on several gloo ranks: `run_ranks(2, function, argument)` gives two results.

The function is a top-level function of a test module. Inside, `mtl_parallel.launch.start(layout, "cpu")`
gives the mesh. One fork server, with torch imported, serves the whole test session: a call costs a few tenths
of a second. A rank re-imports the test module, so modules that take long to import belong inside the
functions that need them.
"""

import importlib.util
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from mtl_parallel.launch import launch

# What ranks of any test would otherwise import one by one; the first backward imports the last of them.
PRELOAD = ("pytest", "numpy", "mtl_train.loop", "torch.fx.experimental.symbolic_shapes")


def _load(name: str, path: str) -> None:
    if name not in sys.modules:
        for end in (i for i, letter in enumerate(name) if letter == "."):
            sys.modules.setdefault(name[:end], ModuleType(name[:end]))  # pickle imports the parents too
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def call(module: str, path: str, payload: bytes) -> Any:
    """The rank's side: loads the test module by its file, under the name it has in pytest, and calls the
    function.
    """
    _load(module, path)
    function, arguments = pickle.loads(payload)
    return function(*arguments)


def warm() -> None:
    """Starts the session's fork server, if it is not up, with all that ranks of any test need.

    Whoever launches first decides what it has imported; a test that runs a command in this process calls this
    before.
    """
    launch("os:getpid", 1, preload=PRELOAD)


def run_ranks(world: int, function: Callable[..., Any], *arguments: Any, limit: float = 120.0) -> list[Any]:
    """Results of `function(*arguments)` by rank. Raises what the first failing rank raised, with its
    traceback.
    """
    module = sys.modules[function.__module__]
    path = str(Path(module.__file__ or "").resolve())
    payload = pickle.dumps((function, arguments))
    return launch(call, world, (module.__name__, path, payload), limit=limit, grace=2.0, preload=PRELOAD)
