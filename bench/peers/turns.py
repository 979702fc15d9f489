"""A peer's side of a measurement in turns: it makes one step for every line it reads, and answers with its
time.

Standard library only, since every peer runs in an environment of its own.
"""

import json
import resource
import sys
import time
from collections.abc import Callable


def serve(step: Callable[[], float], *, before: Callable[[], object] = lambda: None) -> None:
    """Answers each line of stdin with one step's seconds, CPU seconds, loss and peak memory in MB.

    `before` runs ahead of the clock, and once more before it stops: a barrier over ranks.
    """
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        before()
        began, worked = time.perf_counter(), time.process_time()
        loss = step()
        before()
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({"seconds": seconds, "cpu": cpu, "loss": loss, "peak": peak}), flush=True)
