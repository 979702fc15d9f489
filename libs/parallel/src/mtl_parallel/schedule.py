"""Pipeline schedules as data: what every stage does, in which order. No torch.

A schedule is a pure function of the numbers of stages and micro-batches that returns a list of actions a
stage. `gpipe` is Huang et al. 2019 (arXiv 1811.06965), `one_f_one_b` is PipeDream-Flush (Narayanan et al.
2021, arXiv 2104.04473, section 2.2.1). Both go backward in the order of the micro-batches, so that they sum
gradients in the same order and agree to the bit. `simulate` proves a schedule, `Timeline.draw` shows it,
`mtl_parallel.pipeline` runs it. Left out: several chunks a stage (interleaving) and a backward split in two
(zero bubble).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["forward", "backward"]


@dataclass(frozen=True)
class Action:
    """One pass of a stage over one micro-batch, written F3 or B3."""

    kind: Kind
    micro: int

    def __str__(self) -> str:
        return f"{self.kind[0].upper()}{self.micro}"


Actions = list[Action]
Schedule = Callable[[int, int], list[Actions]]


class ScheduleError(ValueError):
    """A list of actions that could not run, or would compute something else than one process."""


def forward_only(pp: int, micro: int) -> list[Actions]:
    """Every micro-batch forward, for a loss without gradients."""
    return [[Action("forward", i) for i in range(micro)] for _ in range(pp)]


def gpipe(pp: int, micro: int) -> list[Actions]:
    """All forward passes, then all backward passes; every stage holds all micro-batches at once.

    >>> [str(a) for a in gpipe(2, 2)[0]]
    ['F0', 'F1', 'B0', 'B1']
    """
    return [[Action(kind, i) for kind in ("forward", "backward") for i in range(micro)] for _ in range(pp)]


def one_f_one_b(pp: int, micro: int) -> list[Actions]:
    """One forward, one backward in turn, so that stage s of pp holds at most pp - s micro-batches.

    >>> [" ".join(map(str, stage)) for stage in one_f_one_b(2, 3)]
    ['F0 F1 B0 F2 B1 B2', 'F0 B0 F1 B1 F2 B2']
    """
    return [_one_f_one_b(min(pp - 1 - stage, micro), micro) for stage in range(pp)]


def _one_f_one_b(ahead: int, micro: int) -> Actions:
    warm_up = [Action("forward", i) for i in range(ahead)]
    steady = [
        action
        for i in range(ahead, micro)
        for action in (Action("forward", i), Action("backward", i - ahead))
    ]
    cool_down = [Action("backward", i) for i in range(micro - ahead, micro)]
    return warm_up + steady + cool_down


SCHEDULES: Mapping[str, Schedule] = {"gpipe": gpipe, "1f1b": one_f_one_b}


@dataclass(frozen=True)
class Event:
    """An action with the times at which its computation starts and stops."""

    action: Action
    start: float
    stop: float


@dataclass(frozen=True)
class Timeline:
    """What a simulation found: every stage's events, and the most micro-batches each stage held at once."""

    events: tuple[tuple[Event, ...], ...]
    peaks: tuple[int, ...]

    @property
    def duration(self) -> float:
        """When the last stage to finish has finished."""
        return max(event.stop for stage in self.events for event in stage)

    @property
    def bubble(self) -> float:
        """The share of the stages' time spent waiting; `(pp - 1) / (micro + pp - 1)` for gpipe and 1F1B."""
        busy = sum(event.stop - event.start for stage in self.events for event in stage)
        return 1 - busy / (self.duration * len(self.events))

    def draw(self, unit: float = 1.0) -> str:
        """The timeline as text, one line a stage and one cell every `unit` of time.

        >>> print(simulate(one_f_one_b(2, 2)).draw())
        stage 0  F0 F1 .. .. B0 -- .. B1 --
        stage 1  .. F0 B0 -- F1 B1 -- .. ..
        """
        cells = round(self.duration / unit)
        width = max(len(str(event.action)) for stage in self.events for event in stage)
        lines = []
        for number, stage in enumerate(self.events):
            row = ["." * width] * cells
            for event in stage:
                first, last = round(event.start / unit), round(event.stop / unit)
                row[first:last] = [str(event.action).ljust(width), *["-" * width] * (last - first - 1)]
            lines.append(f"stage {number}  {' '.join(row)}")
        return "\n".join(lines)


@dataclass
class _Link:
    """One direction between two neighbours, as the executor uses it: ordered, one send in flight."""

    name: str
    sent: list[tuple[int, float]] = field(default_factory=list)
    posted: list[tuple[int, float]] = field(default_factory=list)

    def met(self, index: int) -> float | None:
        """When message `index` went over, or None while one of the two sides has not come."""
        if index >= min(len(self.sent), len(self.posted)):
            return None
        (out, when), (into, since) = self.sent[index], self.posted[index]
        if out != into:
            raise ScheduleError(f"{self.name} carries micro-batch {out} when {into} is expected")
        return max(when, since)


class _Stage:
    """A stage that runs its actions in order and can only wait for its neighbours."""

    def __init__(self, links: Mapping[tuple[Kind, str], _Link], costs: Mapping[Kind, float]) -> None:
        self.links = links
        self.costs = costs
        self.clock = 0.0
        self.events: list[Event] = []
        self.blocked = ""

    def run(self, actions: Sequence[Action]) -> Iterator[None]:
        """Runs as far as possible, yielding whenever it must wait."""
        self._post(actions[:1])
        for i, action in enumerate(actions):
            self._post(actions[i + 1 : i + 2])
            yield from self._meet(action, "in", self._count(action.kind))
            self.events.append(Event(action, self.clock, self.clock + self.costs[action.kind]))
            self.clock += self.costs[action.kind]
            if outgoing := self.links.get((action.kind, "out")):
                yield from self._meet(action, "out", len(outgoing.sent) - 1)
                outgoing.sent.append((action.micro, self.clock))

    def _post(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if incoming := self.links.get((action.kind, "in")):
                incoming.posted.append((action.micro, self.clock))

    def _count(self, kind: Kind) -> int:
        return sum(event.action.kind == kind for event in self.events)

    def _meet(self, action: Action, way: str, index: int) -> Iterator[None]:
        link = self.links.get((action.kind, way))
        if link is None or index < 0:
            return
        self.blocked = f"{link.name} at {action}"
        while (when := link.met(index)) is None:
            yield
        self.clock = max(self.clock, when)


def _check(stage: int, actions: Sequence[Action]) -> int:
    """The most micro-batches held at once, after a check that each goes forward once, then backward once."""
    held: set[int] = set()
    done: set[int] = set()
    peak = 0
    for action in actions:
        if action.kind == "forward":
            if action.micro in held | done:
                raise ScheduleError(f"stage {stage} runs {action} twice")
            held.add(action.micro)
        else:
            if action.micro not in held:
                raise ScheduleError(f"stage {stage} runs {action} without its forward, or twice")
            held.remove(action.micro)
            done.add(action.micro)
        peak = max(peak, len(held))
    if held and done:
        raise ScheduleError(f"stage {stage} never runs the backward of micro-batches {sorted(held)}")
    return peak


def _stages(pp: int, costs: Mapping[Kind, float]) -> list[_Stage]:
    down = [_Link(f"activations from stage {s} to {s + 1}") for s in range(pp - 1)]
    up = [_Link(f"gradients from stage {s + 1} to {s}") for s in range(pp - 1)]
    links: list[dict[tuple[Kind, str], _Link]] = [{} for _ in range(pp)]
    for s in range(pp - 1):
        links[s]["forward", "out"] = links[s + 1]["forward", "in"] = down[s]
        links[s]["backward", "in"] = links[s + 1]["backward", "out"] = up[s]
    return [_Stage(mine, costs) for mine in links]


def _messages(stages: Sequence[_Stage]) -> int:
    return sum(len(link.sent) + len(link.posted) for stage in stages for link in stage.links.values())


def simulate(schedule: Sequence[Sequence[Action]], forward: float = 1.0, backward: float = 2.0) -> Timeline:
    """Runs a schedule on paper; `forward` and `backward` are what one pass costs in units of time.

    Sending costs nothing, but obeys the executor's rules: messages of a link arrive in the order they are
    sent, a stage asks for the next action's message before it computes the present one, and a second send
    on a link waits until the first was taken. Raises ScheduleError when a pass is missing, doubled or out
    of order, when two stages disagree about the order on their link, and when stages wait for each other
    for ever.
    """
    peaks = tuple(_check(stage, actions) for stage, actions in enumerate(schedule))
    if len({frozenset(actions) for actions in schedule}) > 1:
        raise ScheduleError("the stages do not all run the same passes")
    stages = _stages(len(schedule), {"forward": forward, "backward": backward})
    running = [(stage, stage.run(actions)) for stage, actions in zip(stages, schedule, strict=True)]
    while running:
        before = _messages(stages)
        going = [(stage, process) for stage, process in running if next(process, "end") != "end"]
        if len(going) == len(running) and _messages(stages) == before:
            waits = "; ".join(f"stage {stages.index(stage)} waits for {stage.blocked}" for stage, _ in going)
            raise ScheduleError(f"the schedule cannot go on: {waits}")
        running = going
    return Timeline(tuple(tuple(stage.events) for stage in stages), peaks)
