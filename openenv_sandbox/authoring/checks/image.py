"""The image of a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openenv_sandbox.errors import BuildError, ImageError

if TYPE_CHECKING:
    from pathlib import Path

    from openenv_sandbox.authoring.checks.report import Report
    from openenv_sandbox.provider import LogSink


async def check(report: Report, path: Path, *, on_log: LogSink) -> None:
    """Build it and note its size.

    Raises:
        ProviderUnavailable: There is no docker daemon.
    """
    import asyncio

    from openenv_sandbox import _dockerhost, build, image
    from openenv_sandbox._engine import Engine

    try:
        parsed = await asyncio.to_thread(image.parse, str(path))
        host = await asyncio.to_thread(_dockerhost.resolve)
        built = await build.build_folder(parsed, host=host, on_log=on_log)
    except (BuildError, ImageError) as error:
        report.add("image-size", False, error.message)
        return
    async with Engine(host) as engine:
        size = (await engine.inspect(built.tag) or {}).get("Size", 0)
    report.measured["image_bytes"] = size
    report.add("image-size", True, f"{size / 1e6:.0f} MB")
