"""What modal's two gRPC services share here: strict requests, refusals in modal's own form, dropped connections."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
from typing import TYPE_CHECKING, Any

from google.protobuf.unknown_fields import UnknownFieldSet
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import drop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

# UNVERIFIED: which status modal gives to what. The texts are ours, from a status to an exception is the SDK's way.
STATUS = {
    400: Status.INVALID_ARGUMENT,
    401: Status.UNAUTHENTICATED,
    402: Status.RESOURCE_EXHAUSTED,
    403: Status.PERMISSION_DENIED,
    404: Status.NOT_FOUND,
    409: Status.ALREADY_EXISTS,
    412: Status.FAILED_PRECONDITION,
    429: Status.RESOURCE_EXHAUSTED,
    500: Status.INTERNAL,
    503: Status.UNAVAILABLE,
}


def refusal(error: FakeApiError) -> GRPCError:
    """An engine's error as a gRPC status; a wait is told by the detail that the SDK reads."""
    text = "this workspace has reached its spend limit" if error.status == 402 else error.message
    details = None
    if error.retry_after is not None:
        details = [api_pb2.RPCRetryPolicy(retry_after_secs=error.retry_after)]
    return GRPCError(STATUS.get(error.status, Status.UNKNOWN), text, details)


def strict(message: Message, where: str = "") -> None:
    """Refuse fields that the stubs do not know, at any depth."""
    if len(UnknownFieldSet(message)):
        raise GRPCError(Status.INVALID_ARGUMENT, f"unknown field in {where or message.DESCRIPTOR.name}")
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if field.message_type.GetOptions().map_entry:
            values = [item for item in value.values() if hasattr(item, "ListFields")]
        else:
            values = list(value) if hasattr(value, "append") or hasattr(value, "add") else [value]
        for item in values:
            strict(item, field.message_type.name)


def jwt(expires_at: float, **claims: Any) -> str:
    """Three parts, unsigned: what the SDK reads of a JWT is ``exp``."""

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({**claims, 'exp': expires_at})}.{part('unsigned')}"


class Cut(Exception):
    """The connection was cut: there is nobody to answer."""


class Calls:
    """Runs handlers: checks first, and an error that the engine's faults raised stays with the call.

    The SDK repeats a call under one idempotency key. A fault is about the call, so every repetition of it meets the
    same end; the rule counts one hit. With ``forgets`` it is about one attempt.
    """

    def __init__(self) -> None:
        self._failed: dict[str, FakeApiError] = {}
        self.attempts: list[tuple[str, str]] = []
        self.forgets = False

    async def run(self, stream: Any, name: str, work: Callable[[Any], Awaitable[Any]], *, once: bool = False) -> None:
        """Receive, check, work, answer."""
        request = await stream.recv_message()
        if request is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "no message")
        strict(request)
        key = str(stream.metadata.get("x-idempotency-key", ""))
        self.attempts.append((name, key))
        transport = stream._stream.connection._transport
        token = drop.set(transport.abort)
        try:
            if once and key in self._failed and not self.forgets:
                error = self._failed[key]
                if error.status == 0:
                    transport.abort()
                raise error
            # What has arrived is done, also when whoever asked is gone before the reply.
            reply = await asyncio.shield(asyncio.ensure_future(self._whole(request, work, key if once else "")))
        except FakeApiError as error:
            if error.status == 0:
                await _never_answered(stream)
            raise refusal(error) from None
        finally:
            drop.reset(token)
        await stream.send_message(reply)

    async def _whole(self, request: Any, work: Callable[[Any], Awaitable[Any]], key: str) -> Any:
        try:
            return await work(request)
        except FakeApiError as error:
            if key:
                self._failed[key] = error
            raise


async def _never_answered(stream: Any) -> None:
    """Wait for grpclib to notice that the connection is gone; it ends the handler by itself."""
    await asyncio.sleep(5)
    raise Cut(str(stream))


def unary(name: str, *, once: bool = False) -> Callable[[Any], Any]:
    """A unary handler ``(self, request, metadata) -> reply``."""

    def decorate(fn: Any) -> Any:
        @functools.wraps(fn)
        async def handler(self: Any, stream: Any) -> None:
            async def work(request: Any) -> Any:
                self.authorize(name, stream.metadata, request)
                return await fn(self, request)

            await self.calls.run(stream, name, work, once=once)

        return handler

    return decorate


def concrete(base: Any) -> type:
    """A stub base class in which every call that is not overridden answers UNIMPLEMENTED."""

    def unimplemented(name: str) -> Any:
        async def handler(self: Any, stream: Any) -> None:
            raise GRPCError(Status.UNIMPLEMENTED, f"{name} is not part of this emulator")

        return handler

    return type(base.__name__, (base,), {name: unimplemented(name) for name in base.__abstractmethods__})
