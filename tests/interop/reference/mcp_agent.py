"""Drives a server with the official MCP client of either major version: mcp_agent.py URL MODE; prints what it saw."""

import asyncio
import json
import sys
from importlib.metadata import version


async def main(url: str, mode: str) -> dict[str, object]:
    """Open a session, list the tools, call them, and leave."""
    if version("mcp").startswith("1."):
        from mcp import ClientSession
        from mcp.client.streamable_http import streamablehttp_client

        async with streamablehttp_client(url) as (read, write, _), ClientSession(read, write) as session:
            opened = await session.initialize()
            return {"version": opened.protocolVersion, **await use(session)}
    from mcp import Client

    async with Client(url, mode=mode) as client:
        return {"version": client.protocol_version, **await use(client)}


async def use(client) -> dict[str, object]:
    """What both kinds of client do alike; their results differ in the case of their names."""
    listed = (await client.list_tools()).tools
    first = await client.call_tool("add", {"amount": 2})
    second = await client.call_tool("add", {"amount": 3})
    raised = await client.call_tool("boom", {})
    invalid = await client.call_tool("add", {"amount": "much"})
    try:
        unknown = (await client.call_tool("nope", {})).content[0].text
    except Exception as error:
        unknown = f"{type(error).__name__}: {error}"
    return {
        "tools": [tool.name for tool in listed],
        "schemas": [either(tool, "input_schema")["type"] for tool in listed],
        "values": [either(first, "structured_content"), either(second, "structured_content")],
        "texts": [first.content[0].text, raised.content[0].text],
        "errors": [either(one, "is_error") for one in (first, raised, invalid)],
        "unknown": unknown,
    }


def either(thing, name: str):
    """An attribute by its name in version 2 or 1."""
    head, *rest = name.split("_")
    camel = head + "".join(part.title() for part in rest)
    return getattr(thing, name) if hasattr(thing, name) else getattr(thing, camel)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(asyncio.wait_for(main(sys.argv[1], sys.argv[2]), 60))))
