"""The listener before a backend's own port-forward: bytes, ends and errors of single connections."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from openenv_sandbox.errors import EndpointError, SandboxGone
from openenv_sandbox.provider import SandboxRef
from openenv_sandbox.tunnel import forward

pytestmark = pytest.mark.anyio
REF = SandboxRef("cloud", "here", "pod1")


class Forwarded:
    """What a backend gives for one connection; the test is the server."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[bytes] = asyncio.Queue()
        self.answers: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.closed = 0

    async def receive(self) -> bytes:
        data = await self.answers.get()
        if isinstance(data, Exception):
            raise data
        return data

    async def send(self, data: bytes) -> None:
        self.got.put_nowait(data)

    async def send_eof(self) -> None:
        self.got.put_nowait(b"")

    async def aclose(self) -> None:
        self.closed += 1


async def dial(endpoint: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = endpoint.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def ended(reader: asyncio.StreamReader) -> None:
    """The connection is over, however that looks from here."""
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(1), 10) == b""


async def one() -> tuple[Any, Forwarded]:
    stream = Forwarded()

    async def connect() -> Forwarded:
        return stream

    return await forward(connect, ref=REF, port=8000), stream


async def test_bytes_and_ends_pass_both_ways() -> None:
    """Each side's end reaches the other, while the other direction goes on.

    Mutation: the end of what the client sends ends the connection
    """
    endpoint, stream = await one()
    reader, writer = await dial(endpoint)
    writer.write(b"ask")
    assert await asyncio.wait_for(stream.got.get(), 10) == b"ask"
    writer.write_eof()
    assert await asyncio.wait_for(stream.got.get(), 10) == b""
    big = b"x" * 3_000_000
    stream.answers.put_nowait(big)
    stream.answers.put_nowait(b"")
    assert await asyncio.wait_for(reader.read(-1), 30) == big
    assert stream.closed
    assert endpoint.failure() is None
    writer.close()
    await endpoint.aclose()
    await endpoint.aclose()


@pytest.mark.parametrize("when", ["connecting", "in use"])
async def test_what_broke_is_the_endpoints_failure(when: str) -> None:
    """The client sees a closed connection; why is on the endpoint until a connection works again.

    Mutation: `_Listener._accepted` swallows the error
    """
    stream, broken = Forwarded(), when == "connecting"

    async def connect() -> Forwarded:
        if broken:
            raise EndpointError("nothing listens", ref=REF)
        return stream

    endpoint = await forward(connect, ref=REF, port=8000)
    reader, writer = await dial(endpoint)
    if not broken:
        stream.answers.put_nowait(SandboxGone("the pod is gone", ref=REF))
    await ended(reader)
    assert isinstance(endpoint.failure(), EndpointError if broken else SandboxGone)
    writer.close()
    broken, stream = False, Forwarded()
    reader, writer = await dial(endpoint)
    stream.answers.put_nowait(b"on")
    stream.answers.put_nowait(b"")
    assert await asyncio.wait_for(reader.read(-1), 10) == b"on"
    while endpoint.failure() is not None:  # noqa: ASYNC110  # there is no event
        await asyncio.sleep(0.01)
    writer.close()
    await endpoint.aclose()


async def test_closing_the_endpoint_ends_its_connections() -> None:
    """Mutation: aclose only stops listening"""
    endpoint, stream = await one()
    reader, writer = await dial(endpoint)
    writer.write(b"hi")
    await asyncio.wait_for(stream.got.get(), 10)
    await endpoint.aclose()
    assert stream.closed
    await ended(reader)
    with pytest.raises(OSError, match="Connect"):
        await dial(endpoint)
    writer.close()
