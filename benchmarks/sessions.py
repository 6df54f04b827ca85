"""Many sessions at once on one server: time to open, steps per second, CPU per step, failures."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

from harness import TOKEN, client, median, server


def run(reference: str | None, rounds: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        contenders = {}
        for name, app in (("ours", "ours:app"), ("ours inline", "ours:inline")):
            url, pid, _ = stack.enter_context(server(sys.executable, app, token=TOKEN))
            contenders[name] = (sys.executable, "ours", url, pid)
        if reference:
            url, pid, _ = stack.enter_context(server(reference, "reference:app"))
            contenders["reference"] = (reference, "reference", url, pid)
        for count in (64, 256):
            measured: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
            for _ in range(rounds):
                for name, (python, impl, url, pid) in contenders.items():
                    args = ["--impl", impl, "--face", "many", "--url", url, "--sessions", str(count), "--seconds", "2"]
                    measured[name].append(client(python, *args, "--token", TOKEN, server_pid=pid))
            rows = {name: median(values) for name, values in measured.items()}
            results[str(count)] = rows
            base = rows.get("reference")
            for name, row in rows.items():
                ratio = (
                    f"  cpu {row['cpu_us'] / base['cpu_us']:.3f}x  open {row['open_s'] / base['open_s']:.3f}x"
                    if base
                    else ""
                )
                print(
                    f"{count:>4} {name:12} open {row['open_s']:.3f} s  {row['steps_per_s']:8.0f} steps/s"
                    f"  cpu {row['cpu_us']:6.0f} us  failed {row['failed']:.0f}{ratio}"
                )
    return results
