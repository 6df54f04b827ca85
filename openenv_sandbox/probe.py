"""One small GET through an endpoint, over the same way the client's WebSocket takes."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openenv_sandbox.errors import ConnectError, EndpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.client.target import Target
    from openenv_sandbox.provider import Endpoint

LONGEST_BODY = 2048


@dataclass(frozen=True)
class Answer:
    """What came back: status, headers with lower-case names, and the beginning of the body."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


async def get(endpoint: Endpoint, path: str, *, token: str | None, timeout: float) -> Answer:
    """GET ``path``.

    Args:
        endpoint: The way.
        path: Below the endpoint's own path.
        token: The server's.
        timeout: For everything, in seconds.

    Raises:
        ConfigError: Token or headers would travel unencrypted over a public network; nothing was sent.
        OSError: Nobody answered (DNS, refused, reset, TLS).
        EndpointError: What answered speaks no HTTP.
        TimeoutError: The time is over.
    """
    from openenv_sandbox.client import target as targets

    where = targets.resolve(endpoint.url, path=path, headers={}, endpoint=endpoint, token=token)
    try:
        return await asyncio.wait_for(_get(where), timeout)
    except ConnectError as error:
        raise EndpointError(error.message, hint=error.hint) from error
    except (ValueError, EOFError) as error:
        raise EndpointError(str(error) or "it closed the connection before answering") from error


async def _get(where: Target) -> Answer:
    from openenv_sandbox.client.handshake import connect_request

    tls = where.tls if where.proxy is None else None
    reader, writer = await asyncio.open_connection(
        *where.dial, ssl=tls, server_hostname=where.host if tls is not None else None
    )
    try:
        if where.proxy is not None and where.tls is not None:
            writer.write(connect_request(where))
            head = await _head(reader)
            if head.status != 200:
                raise EndpointError(f"the proxy answered {head.status} to CONNECT")
            await _start_tls(writer, where)
        lines = {"Host": where.netloc, "User-Agent": "openenv", "Accept": "*/*", "Connection": "close", **where.headers}
        target = where.path if where.proxy is None or where.tls is not None else f"http://{where.netloc}{where.path}"
        request = "\r\n".join([f"GET {target} HTTP/1.1", *(f"{k}: {v}" for k, v in lines.items()), "", ""])
        writer.write(request.encode("latin-1", "replace"))
        head = await _head(reader)
        body = b""
        if head.status not in (204, 304):
            length = head.headers.get("content-length", "")
            wanted = min(int(length), LONGEST_BODY) if length.isdigit() else LONGEST_BODY
            with contextlib.suppress(ConnectionError):
                while len(body) < wanted and (more := await reader.read(wanted - len(body))):
                    body += more
        return Answer(head.status, head.headers, body)
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader) -> Answer:
    from openenv_sandbox.client.handshake import parse_head

    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            parse_head(error.partial)
        raise EOFError("it closed the connection before answering") from error
    except asyncio.LimitOverrunError as error:
        raise ValueError("what answered does not speak HTTP") from error
    parsed = parse_head(raw)
    assert parsed is not None
    return Answer(parsed[0].status, parsed[0].headers)


async def _start_tls(writer: asyncio.StreamWriter, where: Target) -> None:
    assert where.tls is not None
    if hasattr(writer, "start_tls"):
        await writer.start_tls(where.tls, server_hostname=where.host)
        return
    # 3.10 has it on the loop only.
    loop = asyncio.get_running_loop()
    transport = writer.transport
    protocol = transport.get_protocol()
    fresh = await loop.start_tls(transport, protocol, where.tls, server_hostname=where.host)
    writer._transport = fresh  # type: ignore[attr-defined]  # what StreamWriter.start_tls of 3.11 does
    protocol._replace_writer(writer)  # type: ignore[attr-defined]
