"""The client of a server: needs gRPC and protobuf, and no torch.

with Client("127.0.0.1:50051") as client:
    print(client.generate("Once upon a time", max_new_tokens=20).text)
    for text in client.stream("Once upon a time", temperature=0.7, seed=1):
        print(text, end="", flush=True)
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mtl_common.errors import MtlError, ServeError, UsageError
from mtl_serve.v1 import generation_pb2 as pb
from mtl_serve.v1 import generation_pb2_grpc as stubs

MESSAGE_BYTES = 16 << 20
POLL_SECONDS = 0.1
ROLES = {"system": pb.ROLE_SYSTEM, "user": pb.ROLE_USER, "assistant": pb.ROLE_ASSISTANT}

Messages = Sequence[Mapping[str, str]]
Prompt = str | Sequence[int] | Messages
"""Text, token ids, or a dialogue of {"role": "user", "content": "..."} messages."""


class Choices(TypedDict, total=False):
    """How to generate; what is left out or None is the server's default, see generation.proto."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    max_new_tokens: int | None
    stop: Sequence[str]
    ignore_end_of_sequence: bool


@dataclass(frozen=True)
class Answer:
    """A complete answer. `finish_reason` is end_of_sequence, stop, length or context."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    matched_stop: str
    seed: int
    prompt_tokens: int


def _answer(candidate: pb.Candidate, usage: pb.Usage) -> Answer:
    reason = pb.FinishReason.Name(candidate.finish_reason).removeprefix("FINISH_REASON_").lower()
    tokens = tuple(candidate.tokens)
    return Answer(candidate.text, tokens, reason, candidate.matched_stop, candidate.seed, usage.prompt_tokens)


def _message(message: Mapping[str, str]) -> pb.Message:
    role = message.get("role", "")
    if role not in ROLES:
        raise UsageError(f'a message has the role "{role}"; use system, user or assistant')
    return pb.Message(role=ROLES[role], content=message.get("content", ""))


def _input(prompt: Prompt) -> pb.Input:
    if isinstance(prompt, str):
        return pb.Input(text=prompt)
    messages = [_message(item) for item in prompt if isinstance(item, Mapping)]
    if messages:
        return pb.Input(dialogue=pb.Dialogue(messages=messages))
    return pb.Input(tokens=pb.Tokens(ids=[item for item in prompt if isinstance(item, int)]))


def _options(choices: Choices) -> pb.Options:
    sampling = pb.Sampling(
        temperature=choices.get("temperature"),
        top_k=choices.get("top_k"),
        top_p=choices.get("top_p"),
        seed=choices.get("seed"),
    )
    stopping = pb.Stopping(
        max_new_tokens=choices.get("max_new_tokens"),
        stop_strings=choices.get("stop", ()),
        ignore_end_of_sequence=choices.get("ignore_end_of_sequence", False),
    )
    return pb.Options(sampling=sampling, stopping=stopping)


class Stream:
    """The texts of an answer as they come; `answer` is there after the last one. Leaving it early cancels
    the request.
    """

    def __init__(self, client: "Client", request: pb.GenerateStreamRequest, timeout: float | None) -> None:
        self.answer: Answer | None = None
        self._client = client
        self._call = client.stubs.GenerateStream(request, timeout=timeout)

    def __iter__(self) -> Iterator[str]:
        try:
            with self._client.errors():
                for response in self._call:
                    kind = response.WhichOneof("event")
                    if kind == "delta":
                        yield response.delta.text
                    elif kind == "finished":
                        self.answer = _answer(response.finished.candidate, response.finished.usage)
        finally:
            self._call.cancel()


class Client:
    """A connection to one server.

    Every call raises UsageError when the server says that the request cannot be right, ServeError when
    there is no server, or when it is full, stopping or too late.

    Args:
        address: "host:port".
        timeout: seconds that an answer may take; the server stops working on it then.
    """

    def __init__(self, address: str, *, timeout: float | None = None) -> None:
        if not address.rpartition(":")[2].isdigit():
            raise UsageError(f'"{address}" is not the address of a server; give HOST:PORT')
        self.address, self._timeout = address, timeout
        self._channel = grpc.insecure_channel(address, [("grpc.max_receive_message_length", MESSAGE_BYTES)])
        self.stubs: Any = stubs.GenerationServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def wait(self, seconds: float) -> None:
        """Returns when the server says that it serves; raises ServeError when it has not by then."""
        health: Any = health_pb2_grpc.HealthStub(self._channel)
        deadline = time.monotonic() + seconds
        status = health_pb2.HealthCheckResponse.UNKNOWN
        while status != health_pb2.HealthCheckResponse.SERVING:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ServeError(f"no server was ready at {self.address} within {seconds:g} s")
            try:
                question = health_pb2.HealthCheckRequest()
                status = health.Check(question, timeout=left, wait_for_ready=True).status
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise self._told(error.code(), error.details() or "") from None
            time.sleep(POLL_SECONDS)

    def generate(self, prompt: Prompt, **choices: Unpack[Choices]) -> Answer:
        """The complete answer."""
        with self.errors():
            request = pb.GenerateRequest(input=_input(prompt), options=_options(choices))
            response = self.stubs.Generate(request, timeout=self._timeout)
        return _answer(response.candidate, response.usage)

    def stream(self, prompt: Prompt, **choices: Unpack[Choices]) -> Stream:
        """The answer's text as it comes."""
        with self.errors():
            request = pb.GenerateStreamRequest(input=_input(prompt), options=_options(choices))
        return Stream(self, request, self._timeout)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what gRPC and protobuf raise into our errors."""
        try:
            yield
        except grpc.RpcError as error:
            raise self._told(error.code(), error.details() or "") from None
        except (ValueError, TypeError) as error:
            raise UsageError(f"a choice cannot be sent: {error}") from None

    def _told(self, code: grpc.StatusCode, details: str) -> MtlError:
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
            return UsageError(details)
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServeError(f"{self.address} gave no complete answer within {self._timeout:g} s")
        if code == grpc.StatusCode.UNAVAILABLE and not details.startswith("the server"):
            why = details.rpartition(": ")[2].lower()
            start = "start one with mtl-serve run CHECKPOINT, or give another --server"
            return ServeError(f"no server answers at {self.address} ({why}); {start}")
        return ServeError(f"{self.address}: {details or code.name.lower()}")
