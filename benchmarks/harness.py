"""Starting servers, running clients, counting CPU: what the benchmarks share."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
TOKEN = "benchmark-token"


def reference_python() -> str | None:
    """The interpreter of the published package's environment, None when it was not made."""
    folder = os.environ.get("OPENENV_INTEROP_DIR")
    candidates = [Path(folder)] if folder else []
    candidates.append(Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "openenv" / "interop")
    for base in candidates:
        for path in (base / "bin/python", base / "0.10.0/bin/python", base / "openenv-0.10.0/bin/python"):
            if path.exists():
                return str(path)
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(python: str, app: str, *, token: str | None = None) -> Iterator[tuple[str, int, float]]:
    """Run ``uvicorn app``; yields its URL, its pid and the seconds from start to the first /health."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(HERE / "servers")}
    environment.pop("OPENENV_AUTH_TOKEN", None)
    if token:
        environment["OPENENV_AUTH_TOKEN"] = token
    argv = [python, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port), "--log-level", "info"]
    start = time.perf_counter()
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        ready = wait_healthy(url, process, start)
        yield url, process.pid, ready
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_healthy(url: str, process: subprocess.Popen[bytes], start: float) -> float:
    while time.perf_counter() - start < 120:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return time.perf_counter() - start
        except OSError:
            time.sleep(0.01)
    raise RuntimeError("the server never answered /health")


def client(python: str, *args: str, server_pid: int) -> dict[str, Any]:
    """Run one client process, which measures both ends; ``cpu_us`` is client + server CPU per step."""
    argv = [python, str(HERE / "client.py"), *args, "--server-pid", str(server_pid)]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    if run.returncode:
        raise RuntimeError(run.stderr[-2000:])
    result: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    for failure in result.get("failures", ()):
        print(f"  a session failed: {failure}", file=sys.stderr)
    return result


def median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Field by field over the rounds of one contender."""
    numbers = {
        key: statistics.median(r[key] for r in rounds)
        for key, value in rounds[0].items()
        if isinstance(value, (int, float))
    }
    return {key: round(value, 3) for key, value in numbers.items()}


def cpu_of(argv: list[str], *, repeat: int = 5, env: dict[str, str] | None = None) -> float:
    """Median CPU seconds of a command."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True);"
        "u = resource.getrusage(resource.RUSAGE_CHILDREN); print(u.ru_utime + u.ru_stime)"
    )
    times = []
    for _ in range(repeat):
        run = subprocess.run(
            [sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True, env=env, timeout=300
        )
        times.append(float(run.stdout))
    return statistics.median(times)


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
