"""The gRPC face of the server: messages to values and back, errors to statuses, health, reflection."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mtl_common.errors import DataError
from mtl_serve.address import address, cannot_listen
from mtl_serve.engine import Delta, Finished
from mtl_serve.front import Front, QueueFull, Unavailable, with_seed
from mtl_serve.prompts import NoTemplate, Prompts
from mtl_serve.request import BadRequest, FinishReason, Sampling, Stopping, check_prompt
from mtl_serve.v1 import generation_pb2 as pb
from mtl_serve.v1 import generation_pb2_grpc as stubs

SERVICE = pb.DESCRIPTOR.services_by_name["GenerationService"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
MESSAGE_BYTES = 16 << 20
OPTIONS = (
    ("grpc.so_reuseport", 0),  # or two servers on one port would share the clients without a word
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
ROLES = {pb.ROLE_SYSTEM: "system", pb.ROLE_USER: "user", pb.ROLE_ASSISTANT: "assistant"}
REASONS = {
    FinishReason.END_OF_SEQUENCE: pb.FINISH_REASON_END_OF_SEQUENCE,
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CONTEXT: pb.FINISH_REASON_CONTEXT,
}
CODES = {
    NoTemplate: grpc.StatusCode.FAILED_PRECONDITION,
    BadRequest: grpc.StatusCode.INVALID_ARGUMENT,
    DataError: grpc.StatusCode.INVALID_ARGUMENT,
    QueueFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}

Request = pb.GenerateRequest | pb.GenerateStreamRequest


@dataclass(frozen=True)
class Model:
    """What the service must know of a model to check and encode prompts."""

    prompts: Prompts
    vocab: int
    context: int


def _sampling(options: pb.Options) -> Sampling:
    """What is not set in the message is the default of `Sampling`, whose fields have the same names."""
    return with_seed(Sampling(**{field.name: value for field, value in options.sampling.ListFields()}))


def _stopping(options: pb.Options) -> Stopping:
    asked = options.stopping
    most = asked.max_new_tokens if asked.HasField("max_new_tokens") else None
    return Stopping(most, tuple(asked.stop_strings), asked.ignore_end_of_sequence)


def _messages(dialogue: pb.Dialogue) -> list[dict[str, str]]:
    unknown = next((n for n, message in enumerate(dialogue.messages) if message.role not in ROLES), None)
    if unknown is not None:
        raise BadRequest(
            f"message {unknown} of the dialogue has no known role; use system, user or assistant"
        )
    return [{"role": ROLES[message.role], "content": message.content} for message in dialogue.messages]


def _encode(input: pb.Input, model: Model) -> list[int]:
    """The prompt's tokens; takes a while for a long text, so it runs in a thread."""
    kind = input.WhichOneof("kind")
    if kind == "dialogue":
        tokens = model.prompts.dialogue(_messages(input.dialogue))
    elif kind == "tokens":
        tokens = list(input.tokens.ids)
    else:
        tokens = model.prompts.text(input.text)
    check_prompt(tokens, model.vocab, model.context)
    return tokens


@asynccontextmanager
async def _statuses(context: Any) -> AsyncIterator[None]:
    """Turns our errors into the call's status."""
    try:
        yield
    except tuple(CODES) as error:
        code = next(code for kind, code in CODES.items() if isinstance(error, kind))
        await context.abort(code, str(error))


class Generation(stubs.GenerationServiceServicer):
    """GenerationService over the front."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._model: Model | None = None

    def open(self, model: Model) -> None:
        """Says which model answers from now on."""
        self._model = model

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        """The whole answer in one message."""
        async for response in self._respond(request, context):
            last = response.finished
        return pb.GenerateResponse(candidate=last.candidate, usage=last.usage)

    async def GenerateStream(
        self, request: pb.GenerateStreamRequest, context: Any
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        """The answer as it comes."""
        async with aclosing(self._respond(request, context)) as responses:
            async for response in responses:
                yield response

    async def _respond(
        self, request: Request, context: Any
    ) -> AsyncGenerator[pb.GenerateStreamResponse, None]:
        async with _statuses(context):
            self._front.check()
            assert self._model is not None
            sampling, stopping = _sampling(request.options), _stopping(request.options)
            prompt = await asyncio.to_thread(_encode, request.input, self._model)
            yield pb.GenerateStreamResponse(started=pb.Started(prompt_tokens=len(prompt), seed=sampling.seed))
            async with aclosing(self._front.answer(prompt, sampling, stopping)) as events:
                async for event in events:
                    yield _response(event, len(prompt), sampling)


def _response(event: Delta | Finished, prompt_tokens: int, sampling: Sampling) -> pb.GenerateStreamResponse:
    if isinstance(event, Delta):
        return pb.GenerateStreamResponse(delta=pb.Delta(text=event.text, tokens=event.tokens))
    candidate = pb.Candidate(
        text=event.text,
        finish_reason=REASONS[event.reason],
        matched_stop=event.matched_stop,
        seed=sampling.seed,
        tokens=event.tokens,
    )
    usage = pb.Usage(prompt_tokens=prompt_tokens, generated_tokens=len(event.tokens))
    return pb.GenerateStreamResponse(finished=pb.Finished(candidate=candidate, usage=usage))


class Health:
    """grpc.health.v1, told by the engine: SERVING means that requests get answers now."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        self._serving: bool | None = None

    async def tell(self, serving: bool) -> None:
        """Sets the status of the server and of its one service, when it has changed."""
        if serving != self._serving:
            self._serving = serving
            status = health_pb2.HealthCheckResponse.ServingStatus
            for name in ("", SERVICE):
                await self.servicer.set(name, status.SERVING if serving else status.NOT_SERVING)


async def listen(generation: Generation, health: Health, host: str, port: int) -> tuple[grpc.aio.Server, int]:
    """Starts the server; returns it and its port, a free one for port 0. Raises ServeError when it cannot
    have the port.
    """
    server = grpc.aio.server(options=OPTIONS)
    stubs.add_GenerationServiceServicer_to_server(generation, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer, server)
    reflection.enable_server_reflection((SERVICE, HEALTH, reflection.SERVICE_NAME), server)
    try:
        bound = server.add_insecure_port(address(host, port))
    except RuntimeError:
        raise cannot_listen(host, port, "address in use") from None
    await health.tell(False)
    await server.start()
    return server, bound
