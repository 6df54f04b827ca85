"""The streams of one command of modal, told apart from what the caller does with them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

_CHUNK = 1 << 20
_DRAIN_S = 5.0
"""How long output may pause after the command's end, when a process it left behind holds the stream open."""


class Broken(Exception):
    """The SDK gave a stream up; everything else that a stream's task raises is the caller's own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def code(process: Any) -> int:
    """The exit code."""
    try:
        return int(await process.wait.aio())
    except Exception as error:
        raise Broken(error) from error


async def feed(writer: Any, data: bytes | AsyncIterator[bytes] | None) -> None:
    """Send all input and its end. That the command reads no more of it is no error."""
    if isinstance(data, bytes):
        for start in range(0, len(data), _CHUNK):
            if not await _sent(writer, data[start : start + _CHUNK]):
                return
    elif data is not None:
        async for chunk in data:
            for start in range(0, len(chunk), _CHUNK):
                if not await _sent(writer, chunk[start : start + _CHUNK]):
                    return
    await _sent(writer, None)


async def _sent(writer: Any, chunk: bytes | None) -> bool:
    """Whether the command took it; None is the end of input."""
    import modal.exception as theirs

    try:
        if chunk is None:
            writer.write_eof()
        else:
            writer.write(chunk)
        await writer.drain.aio()
    except (theirs.ConflictError, theirs.NotFoundError):
        return False
    except Exception as error:
        raise Broken(error) from error
    return True


async def pump(stream: Any, name: str, sink: Any) -> None:
    """Hand every chunk to ``sink``."""
    chunks = stream.__aiter__()
    while True:
        try:
            chunk = await chunks.__anext__()
        except StopAsyncIteration:
            return
        except Exception as error:
            raise Broken(error) from error
        sink(name, chunk)


async def drained(pumps: Sequence[asyncio.Future[None]], seen: list[int]) -> None:
    """Wait until both streams end, or say nothing more for a while; ``seen`` counts bytes."""
    before, waiting = -1, [one for one in pumps if not one.done()]
    while waiting and seen[0] != before:
        before = seen[0]
        _, left = await asyncio.wait(waiting, timeout=_DRAIN_S)
        waiting = list(left)


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """End them all."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
