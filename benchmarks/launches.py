"""Docker: from launch to first reset, one at a time and 16 at once, beside the bare Engine API with the same image."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness import HERE

IMAGE = str(HERE.parent / "envs" / "echo_env")


def run(reference: str | None, rounds: int) -> dict[str, Any]:
    from openenv_sandbox import registry

    check = registry.get("docker").check()
    if not check.ready:
        print(f"skipped: {check.reason}")
        return {"skipped": check.reason}
    return asyncio.run(measure(max(rounds, 3)))


async def measure(rounds: int) -> dict[str, Any]:
    import docker

    from openenv_sandbox import sandbox

    api = docker.from_env(max_pool_size=32)
    async with sandbox(IMAGE, provider="docker") as box:
        image = box.info.image or ""
        execs = await exec_times(api, box, rounds)
    ours, floor = [], []
    for _ in range(rounds):
        floor.append(await asyncio.to_thread(bare, api, image))
        ours.append(await launched(image))
    # Threads of their own: the loop's default pool has fewer than 16 on a small machine, and would queue the floor.
    with ThreadPoolExecutor(16) as threads:
        loop = asyncio.get_running_loop()
        floor16 = max(await asyncio.gather(*(loop.run_in_executor(threads, bare, api, image, 0.05) for _ in range(16))))
    many = await asyncio.gather(*(launched(image) for _ in range(16)), return_exceptions=True)
    failures = [item for item in many if isinstance(item, BaseException)]
    failed = len(failures)
    for failure in failures[:3]:
        print(f"  a launch failed: {failure}", file=sys.stderr)
    ours16 = max((item for item in many if isinstance(item, float)), default=float("nan"))
    one, base = statistics.median(ours), statistics.median(floor)
    print(f"launch to first reset {one:.3f} s, floor {base:.3f} s: {one / base:.2f}x")
    print(f"16 at once {ours16:.2f} s (failed {failed}), floor {floor16:.2f} s: {ours16 / floor16:.2f}x")
    our_exec, base_exec = execs["ours_s"], execs["floor_s"]
    print(f"exec {our_exec * 1e3:.1f} ms, Engine API {base_exec * 1e3:.1f} ms: {our_exec / base_exec:.2f}x")
    return {
        "launch_s": one,
        "floor_s": base,
        "launch16_s": ours16,
        "floor16_s": floor16,
        "failed": failed,
        "exec": execs,
    }


async def launched(image: str) -> float:
    """Seconds from the call to the first reset's result; removal is not counted."""
    from openenv_sandbox import launch

    start = time.perf_counter()
    async with launch(image, provider="docker") as env:
        await env.reset()
        took = time.perf_counter() - start
    return took


def bare(api: Any, image: str, pause: float = 0.003) -> float:
    """The same by the Engine API alone: run, try one reset over the published port every ``pause`` seconds."""
    import json

    from websockets.sync.client import connect

    start = time.perf_counter()
    box = api.containers.run(image, detach=True, ports={"8000/tcp": ("127.0.0.1", None)}, init=True)
    try:
        box.reload()
        port = int(box.ports["8000/tcp"][0]["HostPort"])
        while True:
            with contextlib.suppress(OSError, EOFError, Exception):
                with connect(f"ws://127.0.0.1:{port}/ws", compression=None, proxy=None) as socket:
                    socket.send(json.dumps({"type": "reset", "data": {}}))
                    socket.recv(timeout=30)
                    break
            time.sleep(pause)
        return time.perf_counter() - start
    finally:
        box.remove(force=True, v=True)


async def exec_times(api: Any, box: Any, rounds: int) -> dict[str, float]:
    container = api.containers.get(box.ref.id)
    ours, floor = [], []
    for _ in range(rounds * 5):
        start = time.perf_counter()
        await box.exec(["true"])
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        await asyncio.to_thread(container.exec_run, ["true"], demux=True)
        floor.append(time.perf_counter() - start)
    return {"ours_s": statistics.median(ours), "floor_s": statistics.median(floor)}


if __name__ == "__main__":
    os.environ.setdefault("OPENENV_BASE_IMAGE", "openenv-base:local")
    run(None, 5)
