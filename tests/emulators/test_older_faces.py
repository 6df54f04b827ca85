"""A script as it is written for the older provider classes, against an emulated vendor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("daytona_api_client_async", reason="needs the daytona SDK: pip install 'openenv[daytona]'")

from echo_env import EchoEnv
from openenv.core.containers.runtime.daytona_provider import DaytonaProvider
from openenv.core.env_server.mcp_types import CallToolAction

from tests.emulators.daytona_bench import emulated
from tests.emulators.faces.daytona_api import KEY
from tests.emulators.proof_guard import MayBlock

if TYPE_CHECKING:
    from tests.emulators.engine import Engine

# A coroutine method of a client used through `.sync()` runs in a loop of its own, in which nothing else waits.
MAY_BLOCK = tuple(
    MayBlock(f"socket.socket.{call}", "client/blocking.py", "_exchange", "the loop of one call")
    for call in ("send", "sendall", "recv", "recv_into")
)


def test_a_script_of_the_older_kind(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is text; the client made with it sends the headers and the token of the private port.

    Mutation: hand out the address without its headers
    """
    with emulated(engine, monkeypatch):
        provider = DaytonaProvider(api_key=KEY, env_vars={"MARK": "x"})
        base_url = provider.start_container(engine.image("echo-env"))
        try:
            provider.wait_for_ready(base_url)
            with EchoEnv(base_url=base_url).sync() as env:
                assert env.reset().observation.echoed_message == "Echo environment ready!"
                result = env.step(CallToolAction(tool_name="echo_message", arguments={"message": "hi"}))
                assert result.observation.result == "hi"
                assert env.call_tool("echo_message", message="again") == "again"
            assert engine.alive() == 1
        finally:
            provider.stop_container()
        assert engine.alive() == 0
