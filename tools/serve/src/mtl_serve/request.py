"""What a request asks for, and how it ended: plain values without torch or gRPC.

Limits are checked when a value is made, before anything is queued: an impossible request raises BadRequest
with the sentence that its sender should read.
"""

import math
from dataclasses import dataclass
from enum import Enum

from mtl_common.errors import UsageError

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024  # characters
MAX_SEED = 2**64 - 1


class BadRequest(UsageError):
    """A request that can never be answered, whatever the server's state."""


class FinishReason(Enum):
    """Why no more text comes."""

    END_OF_SEQUENCE = "end_of_sequence"
    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"


def _demand(right: bool, sentence: str) -> None:
    if not right:
        raise BadRequest(sentence)


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. `top_k` 0 is no limit; `seed` None is one that the server draws."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        warm = math.isfinite(self.temperature) and self.temperature >= 0
        _demand(warm, f"temperature is {self.temperature}; give 0 (greedy) or a positive number")
        _demand(self.top_k >= 0, f"top_k is {self.top_k}; give a number of tokens, or 0 for no limit")
        _demand(0 < self.top_p <= 1, f"top_p is {self.top_p}; give a probability above 0 and up to 1")
        known = self.seed is None or 0 <= self.seed <= MAX_SEED
        _demand(known, f"seed is {self.seed}; give a whole number from 0 to 2^64 - 1")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True)
class Stopping:
    """When to end. `max_new_tokens` None is as many as the context holds."""

    max_new_tokens: int | None = None
    stop_strings: tuple[str, ...] = ()
    ignore_end_of_sequence: bool = False

    def __post_init__(self) -> None:
        most, stops = self.max_new_tokens, self.stop_strings
        _demand(most is None or most > 0, f"max_new_tokens is {most}; give 1 or more")
        _demand(len(stops) <= MAX_STOP_STRINGS, f"{len(stops)} stop strings; give at most {MAX_STOP_STRINGS}")
        _demand(all(stops), "a stop string is empty; leave it out")
        longest = max(map(len, stops), default=0)
        _demand(
            longest <= MAX_STOP_LENGTH,
            f"a stop string has {longest} characters; give at most {MAX_STOP_LENGTH}",
        )


@dataclass(frozen=True)
class Request:
    """One prompt to continue. `number` is unique in the server's life; `sampling.seed` is drawn by now."""

    number: int
    prompt: tuple[int, ...]
    sampling: Sampling
    stopping: Stopping


def check_prompt(tokens: list[int], vocab: int, context: int) -> None:
    """Raises BadRequest for an empty prompt, an unknown token id, or one that leaves no room for a new
    token.
    """
    _demand(bool(tokens), "the prompt is empty; give at least one token of text")
    unknown = next((t for t in tokens if not 0 <= t < vocab), None)
    _demand(unknown is None, f"token {unknown} is not in the vocabulary of {vocab} tokens")
    _demand(
        len(tokens) < context,
        f"the prompt has {len(tokens)} tokens and the context is {context}, new tokens included; shorten it",
    )
