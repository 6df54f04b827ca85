"""One session, one step at a time: p50 and CPU (client + server) per step."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

from harness import TOKEN, client, median, server

KINDS = ("100B", "10kB", "1MB", "ints")


def run(reference: str | None, rounds: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        ours, ours_pid, _ = stack.enter_context(server(sys.executable, "ours:app", token=TOKEN))
        inline, inline_pid, _ = stack.enter_context(server(sys.executable, "ours:inline", token=TOKEN))
        echo, echo_pid, _ = stack.enter_context(server(sys.executable, "echo_env.server.app:app", token=TOKEN))
        # The environment of the published package, unmodified, on ours: its tools are FastMCP's.
        fast, fast_pid, _ = stack.enter_context(server(sys.executable, "reference_echo:app", token=TOKEN))
        contenders = {
            "ours async": (sys.executable, "ours", "async", ours, ours_pid),
            "ours sync": (sys.executable, "ours", "sync", ours, ours_pid),
            "ours inline async": (sys.executable, "ours", "async", inline, inline_pid),
            "ours inline sync": (sys.executable, "ours", "sync", inline, inline_pid),
        }
        tools = {
            "ours async": (sys.executable, "ours", "async", echo, echo_pid),
            "ours sync": (sys.executable, "ours", "sync", echo, echo_pid),
            "ours on FastMCP async": (sys.executable, "ours", "async", fast, fast_pid),
            "ours on FastMCP sync": (sys.executable, "ours", "sync", fast, fast_pid),
        }
        if reference:
            ref, ref_pid, _ = stack.enter_context(server(reference, "reference:app"))
            ref_echo, ref_echo_pid, _ = stack.enter_context(server(reference, "reference_echo:app"))
            contenders |= {
                "reference async": (reference, "reference", "async", ref, ref_pid),
                "reference sync": (reference, "reference", "sync", ref, ref_pid),
                "our async client, reference server": (sys.executable, "ours", "async", ref, ref_pid),
                "our sync client, reference server": (sys.executable, "ours", "sync", ref, ref_pid),
            }
            tools |= {
                "reference async": (reference, "reference", "async", ref_echo, ref_echo_pid),
                "reference sync": (reference, "reference", "sync", ref_echo, ref_echo_pid),
            }
        for kind in (*KINDS, "tool"):
            chosen = tools if kind == "tool" else contenders
            measured: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
            for _ in range(rounds):
                for name, (python, impl, face, url, pid) in chosen.items():
                    args = ["--impl", impl, "--face", face, "--url", url, "--kind", kind, "--seconds", "1"]
                    measured[name].append(client(python, *args, "--token", TOKEN, server_pid=pid))
            results[kind] = {name: median(values) for name, values in measured.items()}
            show(kind, results[kind])
    return results


def show(kind: str, rows: dict[str, dict[str, Any]]) -> None:
    for name, row in rows.items():
        base = rows.get("reference sync" if "sync" in name.replace("async", "") else "reference async")
        ratio = ""
        if base and not name.startswith("reference"):
            ratio = (
                f"  p50 {row['p50_us'] / base['p50_us']:.3f}x  cpu {row['cpu_us'] / base['cpu_us']:.3f}x"
                f"  client cpu {row['client_cpu_us'] / base['client_cpu_us']:.3f}x"
            )
        print(f"{kind:>5} {name:36} p50 {row['p50_us']:10.0f} us  cpu {row['cpu_us']:10.0f} us{ratio}")
