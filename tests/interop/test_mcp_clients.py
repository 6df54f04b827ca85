"""The official MCP client of both major versions, by URL, on our streamable-HTTP server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from openenv_sandbox.server.mcp_http import VERSIONS
from tests.interop.conftest import found
from tests.wire.serving import ROOT, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.interop, pytest.mark.anyio]
SCRIPT = Path(__file__).parent / "reference" / "mcp_agent.py"


@pytest.fixture(scope="module", params=["tools", "fastmcp"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Two slots, in production; by our decorator, and on a FastMCP server."""
    app = f"tests.interop.agentic:{request.param}"
    with serve(app, cwd=ROOT, python=sys.executable, OPENENV_MODE="production") as address:
        yield f"http://{address}/mcp"


async def drive(client: str, url: str, mode: str) -> dict[str, Any]:
    command = [found(client), str(SCRIPT), url, mode]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err.decode()
    seen: dict[str, Any] = json.loads(out)
    return seen


@pytest.mark.parametrize(("client", "mode"), [("mcp-1", "legacy"), ("mcp-2", "legacy"), ("mcp-2", "auto")])
async def test_lists_and_calls(client: str, mode: str, url: str) -> None:
    """Tools with schemas, state kept between calls, and failures that are seen as such, by two agents at once.

    Mutation: answer is_error instead of isError; share one session
    """
    for seen in await asyncio.gather(drive(client, url, mode), drive(client, url, mode)):
        assert seen["version"] in VERSIONS
        assert seen["tools"] == ["add", "boom"]
        assert seen["schemas"] == ["object", "object"]
        assert seen["values"] == [{"result": 102}, {"result": 105}]
        assert seen["texts"][0] == "102"
        assert "bad thing" in seen["texts"][1]
        assert seen["errors"] == [False, True, True]
        assert "nope" in seen["unknown"]
    async with httpx.AsyncClient() as http:
        # Both agents said good-bye: their slots are free.
        for _ in range(2):
            params = {"protocolVersion": VERSIONS[-1]}
            opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            answer = await http.post(url, json=opening)
            assert "result" in answer.json(), answer.text
            headers = {"mcp-session-id": answer.headers["mcp-session-id"]}
            assert (await http.delete(url, headers=headers)).status_code == 204
