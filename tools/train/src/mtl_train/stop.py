"""Being asked to stop: SIGTERM and Ctrl-C set a mark that the run looks at after every step."""

import contextlib
import signal
from collections.abc import Iterator

import torch

from mtl_parallel import collectives
from mtl_parallel.mesh import Mesh


class StopRequest:
    """The signal that asked this process to stop, 0 while none has."""

    def __init__(self) -> None:
        self.signal = 0

    def agreed(self, mesh: Mesh) -> int:
        """The signal that asked any rank to stop; every rank gets the same answer."""
        asked = torch.tensor(self.signal, device=mesh.device)
        return int(collectives.all_reduce(asked, mesh.world, "max").item())


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Collects requests inside the `with`. A second Ctrl-C interrupts at once; SIGTERM never does."""
    request = StopRequest()

    def handle(number: int, _: object) -> None:
        request.signal = number
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    heard = [s for s in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
