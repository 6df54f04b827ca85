"""The tunnel of commands: bytes both ways, ends of connections, what is missing."""

from __future__ import annotations

import asyncio
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import tunnel
from openenv_sandbox.errors import CapabilityError, EndpointError, SandboxGone
from openenv_sandbox.tunnel import open_tunnel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio


class Echo:
    """A server on the loopback that answers what it reads, in capitals, and says how connections ended."""

    def __init__(self) -> None:
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.port = 0
        self.say_goodbye = False

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data.upper())
                await writer.drain()
                if self.say_goodbye:
                    break
            else:
                writer.write(b"|end")
                await writer.drain()
            self.ended.put_nowait("end")
        except ConnectionError:
            self.ended.put_nowait("reset")
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    server = Echo()
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    yield server
    listener.close()


async def dial(endpoint: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = endpoint.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize("tool", ["python3", "socat", "nc"])
async def test_bytes_both_ways(
    child: Callable[..., Any], tools: Callable[..., str], echo: Echo, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes go both ways, and the client's end of sending reaches the server, which still answers."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    path = tools(without=("python3",), more=(tool,)) if tool != "python3" else tools()
    monkeypatch.setattr(tunnel, "_RELAY", re.sub(r"python3 .*;", "python3;", tunnel._RELAY, count=1))
    box = child(path=path)
    endpoint = await open_tunnel(box, echo.port, box.caps)
    reader, writer = await dial(endpoint)
    data = b"abc\0xyz" * 200_000
    writer.write(data)
    writer.write_eof()
    got = await asyncio.wait_for(reader.read(-1), 60)
    assert got == data.upper() + b"|end"
    assert endpoint.failure() is None
    writer.close()
    await endpoint.aclose()
    await endpoint.aclose()


async def test_end_of_server_is_seen(child: Callable[..., Any], echo: Echo) -> None:
    """A server that closes ends the client's connection at once, not at some timeout."""
    echo.say_goodbye = True
    box = child()
    endpoint = await open_tunnel(box, echo.port, box.caps)
    reader, writer = await dial(endpoint)
    writer.write(b"x")
    assert await asyncio.wait_for(reader.read(-1), 60) == b"X"
    writer.close()
    await endpoint.aclose()


async def test_end_of_client_is_seen(child: Callable[..., Any], echo: Echo) -> None:
    """A client that goes away ends the server's connection."""
    box = child()
    endpoint = await open_tunnel(box, echo.port, box.caps)
    reader, writer = await dial(endpoint)
    writer.write(b"x")
    assert await asyncio.wait_for(reader.readexactly(1), 60) == b"X"
    writer.transport.abort()
    assert await asyncio.wait_for(echo.ended.get(), 60) in ("end", "reset")
    await endpoint.aclose()


async def test_many_connections(child: Callable[..., Any], echo: Echo) -> None:
    """Connections run side by side."""
    box = child()
    endpoint = await open_tunnel(box, echo.port, box.caps)

    async def talk(word: bytes) -> bytes:
        reader, writer = await dial(endpoint)
        writer.write(word)
        writer.write_eof()
        got = await reader.read(-1)
        writer.close()
        return got

    words = [b"word%d" % n for n in range(6)]
    got = await asyncio.wait_for(asyncio.gather(*map(talk, words)), 60)
    assert got == [word.upper() + b"|end" for word in words]
    await endpoint.aclose()


async def test_nobody_listens_yet(child: Callable[..., Any]) -> None:
    """A refused connection is cut, and is no failure of the tunnel: the server may come."""
    box = child()
    endpoint = await open_tunnel(box, 1, box.caps)
    reader, writer = await dial(endpoint)
    try:
        assert await asyncio.wait_for(reader.read(-1), 60) == b""
    except ConnectionError:
        pass
    assert endpoint.failure() is None
    writer.close()
    await endpoint.aclose()


async def test_no_relay(
    child: Callable[..., Any], tools: Callable[..., str], echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without python3, socat and nc the tunnel says what is missing."""
    box = child(path=tools(without=("python3",)))
    monkeypatch.setattr(tunnel, "_RELAY", re.sub(r"python3 .*;", "python3;", tunnel._RELAY, count=1))
    endpoint = await open_tunnel(box, echo.port, box.caps)
    reader, writer = await dial(endpoint)
    try:
        await asyncio.wait_for(reader.read(-1), 60)
    except ConnectionError:
        pass
    failure = endpoint.failure()
    assert isinstance(failure, EndpointError)
    assert "python3, socat or nc" in str(failure)
    writer.close()
    await endpoint.aclose()


async def test_sandbox_gone(child: Callable[..., Any], echo: Echo) -> None:
    """When the sandbox is gone the tunnel says so, and the client's connection ends."""
    box = child()

    async def gone(*args: Any, **kw: Any) -> Any:
        raise SandboxGone("it ended", ref=box.ref)

    box.exec_raw = gone
    endpoint = await open_tunnel(box, echo.port, box.caps)
    reader, writer = await dial(endpoint)
    try:
        assert await asyncio.wait_for(reader.read(-1), 60) == b""
    except ConnectionError:
        pass
    assert isinstance(endpoint.failure(), SandboxGone)
    writer.close()
    await endpoint.aclose()


async def test_close_ends_connections(child: Callable[..., Any], echo: Echo) -> None:
    """Closing the endpoint ends its connections and its relays."""
    box = child(kill=True)
    endpoint = await open_tunnel(box, echo.port, box.caps)
    reader, writer = await dial(endpoint)
    writer.write(b"x")
    await asyncio.wait_for(reader.readexactly(1), 60)
    await endpoint.aclose()
    try:
        assert await asyncio.wait_for(reader.read(-1), 60) == b""
    except ConnectionError:
        pass
    await asyncio.gather(*(process.wait() for process in box.children))
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await dial(endpoint)
    writer.close()


async def test_backend_that_cannot(child: Callable[..., Any], running: Callable[..., Any], echo: Echo) -> None:
    """A backend whose commands do not stream is refused; one that declares tunnels gets one."""
    box = child(stdin_stream=False)
    with pytest.raises(CapabilityError):
        await open_tunnel(box, echo.port, box.caps)
    endpoint = await running(ports="tunnel").endpoint(echo.port)
    reader, writer = await dial(endpoint)
    writer.write(b"q")
    assert await asyncio.wait_for(reader.readexactly(1), 60) == b"Q"
    writer.close()
    await endpoint.aclose()
