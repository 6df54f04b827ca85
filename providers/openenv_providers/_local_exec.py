"""One command in a local sandbox: its pipes go to the supervisor, its output comes back without a detour."""

from __future__ import annotations

import asyncio
import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Literal

from openenv_providers import _local_frames as wire
from openenv_providers._local_link import Link

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from openenv_sandbox.provider import OutputSink

CHUNK = 2**16
# What a pipe can hold after its writer ended; whoever inherited it may write for ever.
LEFT_IN_PIPE = 17


async def run(
    folder: Path, payload: bytes, stdin: bytes | AsyncIterator[bytes] | None, on_output: OutputSink
) -> tuple[int, bytes]:
    """Run it and return the supervisor's last frame. Leaving early ends the command with all its descendants.

    Raises:
        OSError: The sandbox cannot be reached.
        EOFError: It ended meanwhile.
    """
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[tuple[int, bytes]] = loop.create_future()
    with contextlib.ExitStack() as stack:
        link = await Link.open(folder)
        stack.callback(link.close)
        with contextlib.ExitStack() as theirs:
            if stdin is None or stdin == b"":
                fds, feed = [os.open(os.devnull, os.O_RDONLY)], -1
            else:
                reading, feed = os.pipe()
                fds = [reading]
            theirs.callback(os.close, fds[0])
            if feed >= 0:
                os.set_blocking(feed, False)
            pumps: list[Callable[[], bool]] = []
            names: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
            for name in names:
                reading, writing = os.pipe()
                os.set_blocking(reading, False)
                theirs.callback(os.close, writing)
                fds.append(writing)
                pump: Callable[[], bool] = partial(_pump, loop, reading, partial(on_output, name), failed)
                stack.callback(_close, loop, reading)
                loop.add_reader(reading, pump)
                pumps.append(pump)
            link.send(wire.EXEC, payload, fds)
        tasks: list[asyncio.Future[tuple[int, bytes]]] = [failed, asyncio.ensure_future(link.reply())]
        if feed >= 0:
            writer = asyncio.ensure_future(_feed(loop, feed, stdin if stdin is not None else b""))
            writer.add_done_callback(partial(_tell, failed))
            stack.callback(writer.cancel)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                return failed.result()
            frame = tasks[1].result()
            for pump in pumps:
                for _ in range(LEFT_IN_PIPE):
                    if not pump():
                        break
            return failed.result() if failed.done() else frame
        finally:
            for task in tasks:
                task.cancel()


def _pump(
    loop: asyncio.AbstractEventLoop, fd: int, sink: Callable[[bytes], None], failed: asyncio.Future[tuple[int, bytes]]
) -> bool:
    """Hand over what there is; False when there is nothing more now."""
    try:
        data = os.read(fd, CHUNK)
    except BlockingIOError:
        return False
    except OSError:
        data = b""
    if not data:
        loop.remove_reader(fd)
        return False
    try:
        sink(data)
    except Exception as error:
        if not failed.done():
            failed.set_exception(error)
        return False
    return True


def _tell(failed: asyncio.Future[tuple[int, bytes]], task: asyncio.Future[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None and not failed.done():
        failed.set_exception(error)


def _close(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    if not loop.is_closed():
        loop.remove_reader(fd)
    os.close(fd)


async def _feed(loop: asyncio.AbstractEventLoop, fd: int, data: bytes | AsyncIterator[bytes]) -> None:
    """Write everything, then end-of-file. A command that stops reading is no error."""
    try:
        with contextlib.suppress(BrokenPipeError):
            if isinstance(data, bytes):
                await _write(loop, fd, data)
            else:
                async for chunk in data:
                    await _write(loop, fd, chunk)
    finally:
        os.close(fd)


async def _write(loop: asyncio.AbstractEventLoop, fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            ready = asyncio.Event()
            loop.add_writer(fd, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_writer(fd)
