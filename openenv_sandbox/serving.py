"""Clients of a server in a sandbox that somebody holds already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from openenv_sandbox.lifecycle import finish
from openenv_sandbox.owner import quietly
from openenv_sandbox.ready import wait_ready
from openenv_sandbox.starting import CreatedServer

if TYPE_CHECKING:
    from openenv_sandbox.client.base import EnvClient
    from openenv_sandbox.running import RunningSandbox

ClientT = TypeVar("ClientT", bound="EnvClient[Any, Any, Any]")


async def bound(running: RunningSandbox, cls: type[ClientT] | None = None) -> ClientT:
    """A client of ``running``, whose server answers, that has not connected yet. Its end leaves the sandbox.

    Raises:
        OpenEnvError: What `openenv_sandbox.ready.wait_ready` raises.
    """
    from openenv_sandbox.client.generic import GenericEnvClient

    spec, server = running.spec, running._owner.server or CreatedServer(running._sandbox)
    endpoint = await wait_ready(
        running._way,
        server,
        timeout=spec.timeouts.ready,
        token=running._token,
        command=spec.command,
        port=spec.port,
        logs=server.logs,
    )
    try:
        kind = cls or cast("type[ClientT]", GenericEnvClient)
        client = kind(base_url=endpoint.url, message_timeout_s=spec.timeouts.step)
        client._bind(
            endpoint,
            refresh=running._way,
            token=running._token,
            sandbox=running,
            on_close=endpoint.aclose,
            death=running._owner.serves(client),
        )
    except BaseException:
        await finish(quietly(endpoint.aclose()), timeout=5)
        raise
    return client


async def connected(running: RunningSandbox, cls: type[ClientT] | None = None) -> ClientT:
    """The same, connected.

    Raises:
        ConnectError: The server gives no session.
    """
    client = await bound(running, cls)
    try:
        await client._connect_async()
    except BaseException:
        await finish(quietly(client._close_async()), timeout=running.spec.timeouts.cleanup)
        raise
    return client
