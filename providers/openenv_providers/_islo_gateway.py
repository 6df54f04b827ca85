"""Gateway profiles: an allowlist of hosts is one, made before its sandbox and removed after it, under its name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from openenv_providers._islo_api import ONCE, Api, refused
from openenv_sandbox.errors import OpenEnvError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openenv_sandbox.values import SandboxRef

_RELEASED_S = 15.0
"""For so long a profile may count as in use after its sandbox was deleted."""


async def named(api: Api, prefix: str) -> list[Any]:
    """Profiles whose names begin with ``prefix``; there is no filter and no paging."""
    rows = await api.call(
        "listing gateway profiles", lambda client: client.gateway_profiles.list_gateway_profiles(request_options=ONCE)
    )
    return [row for row in rows if row.name.startswith(prefix)]


async def profile(api: Api, name: str) -> Any:
    """A profile that lets nothing through yet, made unless a lost attempt made it."""
    try:
        made = await api.call(
            "making a gateway profile",
            lambda client: client.gateway_profiles.create_gateway_profile(
                name=name, default_action="deny", internet_enabled=True, request_options=ONCE
            ),
        )
    except OpenEnvError as error:
        if not refused(error, 409):
            raise
        found = [row for row in await named(api, name) if row.name == name]
        if not found:
            raise
        made = found[0]
    return await api.call(
        "reading a gateway profile",
        lambda client: client.gateway_profiles.get_gateway_profile(made.id, request_options=ONCE),
    )


async def allow(api: Api, profile: Any, hosts: Sequence[str]) -> None:
    """Let these hosts through that the profile does not yet."""
    known = {rule.host_pattern for rule in profile.rules or []}
    for host in hosts:
        if host not in known:
            await _rule(api, profile.id, host)


async def _rule(api: Api, id: str, host: str) -> None:
    await api.call(
        f"allowing {host}",
        lambda client: client.gateway_profiles.create_gateway_rule(
            id, host_pattern=host, action="allow", request_options=ONCE
        ),
    )


async def remove(api: Api, name: str, ref: SandboxRef) -> None:
    """Remove the profile of that name; none is fine."""
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + _RELEASED_S, 0.1
    for profile in [row for row in await named(api, name) if row.name == name]:
        while True:
            try:
                await _drop(api, profile.id, ref)
                break
            except OpenEnvError as error:
                if refused(error, 404):
                    break
                if not refused(error, 409) or loop.time() > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)


async def _drop(api: Api, id: str, ref: SandboxRef) -> None:
    await api.call(
        "removing a gateway profile",
        lambda client: client.gateway_profiles.delete_gateway_profile(id, request_options=ONCE),
        ref=ref,
    )
