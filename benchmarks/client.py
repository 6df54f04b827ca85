"""One client process: steps a server for a while and prints what it measured as JSON.

Runs under either implementation's interpreter, so it imports only what it is told to use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any


def make(impl: str, url: str, token: str | None) -> Any:
    if impl == "ours":
        from openenv_sandbox import GenericEnvClient
    else:
        from openenv.core.generic_client import GenericEnvClient
    headers = {"Authorization": f"Bearer {token}"} if token and impl == "ours" else None
    return GenericEnvClient(base_url=url, message_timeout_s=60.0, headers=headers)


def action_of(kind: str) -> dict[str, Any]:
    if kind == "tool":
        return {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "x" * 40}}
    return {"kind": kind}


def report(times: list[float], cpu: float) -> dict[str, float]:
    return {"p50_us": statistics.median(times) * 1e6, "cpu_us": cpu / len(times) * 1e6, "steps": len(times)}


def run_sync(impl: str, url: str, token: str | None, kind: str, seconds: float) -> dict[str, float]:
    action, times = action_of(kind), []
    with make(impl, url, token).sync() as env:
        env.reset()
        for _ in range(5):
            env.step(action)
        cpu, end = time.process_time(), time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            env.step(action)
            times.append(time.perf_counter() - start)
        return report(times, time.process_time() - cpu)


async def run_async(impl: str, url: str, token: str | None, kind: str, seconds: float) -> dict[str, float]:
    action, times = action_of(kind), []
    async with make(impl, url, token) as env:
        await env.reset()
        for _ in range(5):
            await env.step(action)
        cpu, end = time.process_time(), time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            await env.step(action)
            times.append(time.perf_counter() - start)
        return report(times, time.process_time() - cpu)


async def run_many(impl: str, url: str, token: str | None, kind: str, seconds: float, n: int) -> dict[str, float]:
    action = action_of(kind)
    clients = [make(impl, url, token) for _ in range(n)]
    start = time.perf_counter()
    opened = await asyncio.gather(*(_open(client) for client in clients), return_exceptions=True)
    opening = time.perf_counter() - start
    ready = [client for client, result in zip(clients, opened, strict=True) if not isinstance(result, BaseException)]
    cpu, began, end, steps = time.process_time(), time.perf_counter(), time.perf_counter() + seconds, 0
    failures = [str(result)[:120] for result in opened if isinstance(result, BaseException)]

    async def loop(client: Any) -> int:
        done = 0
        while time.perf_counter() < end:
            await client.step(action)
            done += 1
        return done

    for outcome in await asyncio.gather(*(loop(client) for client in ready), return_exceptions=True):
        if isinstance(outcome, BaseException):
            failures.append(str(outcome)[:120])
        else:
            steps += outcome
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    await asyncio.gather(*(client.close() for client in ready), return_exceptions=True)
    return {
        "open_s": opening,
        "steps_per_s": steps / wall,
        "cpu_us": cpu / max(steps, 1) * 1e6,
        "steps": steps,
        "failed": len(failures),
        "failures": failures[:3],
    }


async def _open(client: Any) -> None:
    await client.connect()
    await client.reset()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--impl", choices=["ours", "reference"], required=True)
    parser.add_argument("--face", choices=["async", "sync", "many"], required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--token")
    parser.add_argument("--kind", default="100B")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--sessions", type=int, default=64)
    args = parser.parse_args()
    common = (args.impl, args.url, args.token, args.kind, args.seconds)
    if args.face == "sync":
        result = run_sync(*common)
    elif args.face == "async":
        result = asyncio.run(run_async(*common))
    else:
        result = asyncio.run(run_many(*common, args.sessions))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
