"""Commands, files and trees never block the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_nothing_blocks(running: Callable[..., Any], tmp_path: Path, no_blocking: None) -> None:
    """The guard sees no blocking call of ours in a command, a process, a file or a tree."""
    box = await asyncio.to_thread(running)
    await asyncio.to_thread((tmp_path / "tree").mkdir)
    await asyncio.to_thread((tmp_path / "tree" / "file").touch)
    await box.exec("cat", stdin=b"x" * 100_000)
    process = await box.spawn("echo out")
    assert await process.wait(timeout=60) == 0
    await box.write("file", b"x" * 100_000)
    assert len(await box.read("file")) == 100_000
    await box.upload(tmp_path / "tree", "tree")
    await box.download("tree", tmp_path / "back")
    await box.download("file", tmp_path / "one")
    assert await asyncio.to_thread((tmp_path / "back" / "file").exists)
