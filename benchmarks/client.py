"""One client process: steps a server for a while and prints what it measured as JSON.

Runs under either implementation's interpreter, so it imports only what it is told to use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

WARM_S = 0.2
WARM_STEPS = 5


class Cpu:
    """CPU of this process and of the server's, all threads of each, between two moments.

    The server's comes from /proc in ticks of 10 ms, read at the ends of the measured loop: opening, warming up and
    closing are not in it.
    """

    def __init__(self, server_pid: int) -> None:
        self._stat = Path(f"/proc/{server_pid}/stat")
        self._began = self._read()

    def _read(self) -> tuple[float, float]:
        fields = self._stat.read_text().rsplit(")", 1)[1].split()
        return time.process_time(), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def per_step(self, steps: int) -> dict[str, float]:
        ends = zip(self._read(), self._began, strict=True)
        client, server = ((now - then) / max(steps, 1) * 1e6 for now, then in ends)
        return {"client_cpu_us": client, "server_cpu_us": server, "cpu_us": client + server}


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


def report(times: list[float], cpu: Cpu) -> dict[str, float]:
    used = cpu.per_step(len(times))
    return {"p50_us": statistics.median(times) * 1e6, "steps": len(times), **used}


def cold(begun: float, done: int) -> bool:
    return done < WARM_STEPS or time.perf_counter() - begun < WARM_S


def run_sync(impl: str, url: str, token: str | None, kind: str, seconds: float, server_pid: int) -> dict[str, float]:
    action, times = action_of(kind), []
    with make(impl, url, token).sync() as env:
        env.reset()
        begun, done = time.perf_counter(), 0
        while cold(begun, done):
            env.step(action)
            done += 1
        cpu, end = Cpu(server_pid), time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            env.step(action)
            times.append(time.perf_counter() - start)
        return report(times, cpu)


async def run_async(
    impl: str, url: str, token: str | None, kind: str, seconds: float, server_pid: int
) -> dict[str, float]:
    action, times = action_of(kind), []
    async with make(impl, url, token) as env:
        await env.reset()
        begun, done = time.perf_counter(), 0
        while cold(begun, done):
            await env.step(action)
            done += 1
        cpu, end = Cpu(server_pid), time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            await env.step(action)
            times.append(time.perf_counter() - start)
        return report(times, cpu)


async def run_many(
    impl: str, url: str, token: str | None, kind: str, seconds: float, server_pid: int, n: int
) -> dict[str, Any]:
    action = action_of(kind)
    clients = [make(impl, url, token) for _ in range(n)]
    start = time.perf_counter()
    opened = await asyncio.gather(*(_open(client) for client in clients), return_exceptions=True)
    opening = time.perf_counter() - start
    ready = [client for client, result in zip(clients, opened, strict=True) if not isinstance(result, BaseException)]
    failures = [str(result)[:120] for result in opened if isinstance(result, BaseException)]
    end = 0.0

    async def loop(client: Any) -> int:
        done = 0
        while time.perf_counter() < end:
            await client.step(action)
            done += 1
        return done

    end = time.perf_counter() + WARM_S
    await asyncio.gather(*(loop(client) for client in ready), return_exceptions=True)
    cpu, began, steps = Cpu(server_pid), time.perf_counter(), 0
    end = began + seconds
    for outcome in await asyncio.gather(*(loop(client) for client in ready), return_exceptions=True):
        if isinstance(outcome, BaseException):
            failures.append(str(outcome)[:120])
        else:
            steps += outcome
    wall, used = time.perf_counter() - began, cpu.per_step(steps)
    await asyncio.gather(*(client.close() for client in ready), return_exceptions=True)
    return {
        "open_s": opening,
        "steps_per_s": steps / wall,
        "steps": steps,
        "failed": len(failures),
        "failures": failures[:3],
        **used,
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
    parser.add_argument("--server-pid", type=int, required=True)
    parser.add_argument("--kind", default="100B")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--sessions", type=int, default=64)
    args = parser.parse_args()
    common = (args.impl, args.url, args.token, args.kind, args.seconds, args.server_pid)
    if args.face == "sync":
        result = run_sync(*common)
    elif args.face == "async":
        result = asyncio.run(run_async(*common))
    else:
        result = asyncio.run(run_many(*common, args.sessions))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
