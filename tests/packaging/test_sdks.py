"""SDKs of several backends in one process: none of them breaks another, or Python's own settings."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

SDKS = ["azure.containerapps.sandbox", "azure.identity", "daytona", "docker", "e2b", "modal", "novita_sandbox.core"]
SDKS += ["islo", "kubernetes.aio.client", "runloop_api_client"]
CHECK = """
import importlib, logging, signal, sys, threading
before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    if name == "daytona":
        module.AsyncDaytona
assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before, "a signal handler was installed"
assert not logging.getLogger().handlers, logging.getLogger().handlers
assert threading.active_count() == 1, threading.enumerate()
"""


@pytest.mark.full
@pytest.mark.parametrize("order", ["forward", "backward"])
def test_every_sdk_in_one_process(order: str) -> None:
    """In two orders, with warnings as errors.

    Scenario: N03
    Mutation: one of them is replaced by a version that warns or installs a handler at import
    """
    names = [name for name in SDKS if find_spec(name.partition(".")[0]) is not None]
    if len(names) < 5:
        pytest.skip("the clouds' SDKs are not installed")
    names = names if order == "forward" else names[::-1]
    done = subprocess.run([sys.executable, "-W", "error", "-c", CHECK, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
