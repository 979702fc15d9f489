"""Commands are found as a person who activated the environment finds them."""

import os
import sysconfig
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _installed_commands() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)
        yield
