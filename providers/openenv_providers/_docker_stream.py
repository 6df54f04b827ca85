"""The Engine API's long answers over a connection of our own: no thread is parked, and cancelling simply hangs up.

The SDK reads these in a blocking way, and its attach needs private attributes that differ between unix sockets, TLS and
ssh.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from openenv_providers import _docker_tls
from openenv_sandbox import _dockerhost, _dockerssh
from openenv_sandbox.errors import ProviderUnavailable
from openenv_sandbox.lifecycle import daemon_call, keep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openenv_sandbox._dockerhost import DockerHost
    from openenv_sandbox.provider import OutputSink

_CONNECT_S = 20.0
_REFUSALS = (b"OCI runtime exec failed", b"unable to find user", b"unable to find group")


class Refused(Exception):
    """The daemon answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotStarted(Exception):
    """The command was never started; the message says why."""


class Reply:
    """An open answer: its body is read until the daemon ends it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def __aenter__(self) -> Reply:
        return self

    async def __aexit__(self, *_: object) -> None:
        await _hang_up(self.writer)

    async def json(self) -> Any:
        """The whole body, parsed."""
        return json.loads(await self.reader.read())


async def request(host: DockerHost, method: str, path: str, body: Any = None, *, hijack: bool = False) -> Reply:
    """Send one request and return when its status has arrived.

    Args:
        host: The daemon.
        method: ``GET`` or ``POST``.
        path: Path and query.
        body: Sent as JSON.
        hijack: Turn the connection into a byte stream in both directions; else the answer is read to its end.

    Raises:
        Refused: With the daemon's message.
        ProviderUnavailable: The daemon cannot be reached.
    """
    content = b"" if body is None else json.dumps(body).encode()
    # HTTP/1.0 makes the daemon end the body by closing instead of sending chunks.
    head = [f"{method} {path} HTTP/1.{1 if hijack else 0}", "Host: docker", "Content-Type: application/json"]
    head += [f"Content-Length: {len(content)}", *(["Connection: Upgrade", "Upgrade: tcp"] if hijack else [])]
    try:
        reader, writer = await asyncio.wait_for(_connect(host), _CONNECT_S)
        reply = Reply(reader, writer)
        try:
            writer.write("\r\n".join([*head, "", ""]).encode() + content)
            status = await reader.readuntil(b"\r\n\r\n")
            code = int(status.split(None, 2)[1])
            if code >= 400:
                text = (await asyncio.wait_for(reader.read(), _CONNECT_S)).decode("utf-8", "replace")
                raise Refused(code, _message(text))
        except BaseException:
            await _hang_up(writer)
            raise
    except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, ValueError, IndexError) as error:
        raise ProviderUnavailable(
            f"the docker daemon at {host.url} ({host.source}) cannot be reached: {type(error).__name__}",
            provider="docker",
            retryable=True,
            hint="is it running? openenv providers docker --check",
        ) from error
    return reply


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    """The socket is closed in the loop's next turn: give it one, the loop may be about to end."""
    writer.transport.abort()
    await asyncio.sleep(0)


async def _connect(host: DockerHost) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if host.url.startswith("ssh://"):
        host = await daemon_call(_dockerssh.reached, host)
    if host.socket_path is not None:
        return await asyncio.open_unix_connection(host.socket_path)
    parts = urlsplit(host.url)
    context = await asyncio.to_thread(_dockerhost.tls_context, host) if host.tls is not None else None
    port = parts.port or (2376 if context is not None else 2375)
    name = parts.hostname or "127.0.0.1"
    if context is not None:
        return await _docker_tls.connect(name, port, context)
    return await asyncio.open_connection(name, port)


def _message(text: str) -> str:
    body = text.partition("\r\n\r\n")[2] or text
    try:
        return str(json.loads(body[body.index("{") : body.rindex("}") + 1])["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:300]


async def run(
    host: DockerHost, exec_id: str, stdin: bytes | AsyncIterator[bytes] | None, on_output: OutputSink
) -> None:
    """Start an exec that was created, feed it and pass on what it writes until it ends.

    Raises:
        NotStarted: The program does not exist or cannot be run.
        Refused: The daemon does not start it.
        ProviderUnavailable: The daemon cannot be reached.
        ConnectionError: The connection broke in mid-way.
    """
    body = {"Detach": False, "Tty": False}
    async with await request(host, "POST", f"/exec/{exec_id}/start", body, hijack=True) as reply:
        feeder = keep(_feed(reply.writer, stdin), name="openenv-docker-stdin")
        try:
            await _demux(reply.reader, on_output)
        finally:
            feeder.cancel()


async def _feed(writer: asyncio.StreamWriter, stdin: bytes | AsyncIterator[bytes] | None) -> None:
    try:
        if isinstance(stdin, bytes):
            writer.write(stdin)
        elif stdin is not None:
            async for chunk in stdin:
                writer.write(chunk)
                await writer.drain()
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except (ConnectionError, RuntimeError):
        return  # the command ended without reading all of it


async def _demux(reader: asyncio.StreamReader, on_output: OutputSink) -> None:
    """Frames of one byte stream number, three of nothing, four of length; a refusal is the only frame of its exec."""
    held = b""
    while True:
        try:
            header = await reader.readexactly(8)
            data = await reader.readexactly(int.from_bytes(header[4:], "big"))
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise ConnectionResetError("the exec stream broke off in the middle of a frame") from None
            break
        if held:
            on_output("stdout", held)
            held = b""
        if header[0] == 1 and data.startswith(_REFUSALS):
            held = data
        else:
            on_output("stderr" if header[0] == 2 else "stdout", data)
    if held:
        raise NotStarted(held.decode("utf-8", "replace").strip())
