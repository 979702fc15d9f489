"""Settings of the whole test session."""

import os
import sysconfig
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is not a failure.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session", autouse=True)
def _installed_commands() -> Iterator[None]:
    """Commands are found as a person who activated the environment finds them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)
        yield
