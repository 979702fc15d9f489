"""Commands are found as a person who activated the environment finds them."""

import os
import sysconfig

import pytest


@pytest.fixture(autouse=True)
def _installed_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)
