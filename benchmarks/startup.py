"""CPU of an import and of --help, and the time from a server's start to its first /health."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import cpu_of, server

MODULES = "import sys\n{}\nprint(len(sys.modules))"


def run(reference: str | None, rounds: int) -> dict[str, Any]:
    imports = {"ours": "from openenv_sandbox.server import Action, Observation"}
    pythons = {"ours": sys.executable}
    commands = {"ours": [sys.executable, "-m", "openenv_sandbox.cli", "--help"]}
    apps = {"ours": "ours:app"}
    if reference:
        imports["reference"] = "from openenv.core.env_server.types import Action, Observation"
        pythons["reference"] = reference
        commands["reference"] = [str(Path(reference).parent / "openenv"), "--help"]
        apps["reference"] = "reference:app"
    results: dict[str, Any] = {name: {} for name in pythons}
    for name, python in pythons.items():
        row = results[name]
        row["import_cpu_s"] = cpu_of([python, "-c", imports[name]], repeat=rounds)
        run = subprocess.run([python, "-c", MODULES.format(imports[name])], capture_output=True, text=True, check=True)
        row["import_modules"] = int(run.stdout)
        row["help_cpu_s"] = cpu_of(commands[name], repeat=rounds)
        times = []
        for _ in range(rounds):
            with server(python, apps[name]) as (_, _, ready):
                times.append(ready)
        row["health_s"] = statistics.median(times)
    base = results.get("reference")
    for name, row in results.items():
        for key, value in row.items():
            ratio = f"  {value / base[key]:.3f}x" if base and name == "ours" else ""
            print(f"{name:10} {key:16} {value:8.3f}{ratio}")
    return results
