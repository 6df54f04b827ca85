"""What a running server does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from openenv_sandbox.authoring.checks import episodes, static
from openenv_sandbox.authoring.checks.actions import variants
from openenv_sandbox.authoring.checks.report import Report
from openenv_sandbox.authoring.checks.under_test import UnderTest, launched, reached
from openenv_sandbox.errors import CapacityError, OpenEnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from openenv_sandbox.events import Event

SESSIONS = 8
"""Most sessions that are opened side by side, whatever is claimed."""
ROUNDS = 10
"""Sessions opened one after the other to see what they leave."""
SLOW_S = 1.0
"""How long another request may wait while an environment works, in seconds."""


async def validate_folder(
    path: Path,
    *,
    run: bool = True,
    actions: Sequence[Mapping[str, Any]] = (),
    timeout: float = 30.0,
    on_event: Callable[[Event], object] | None = None,
    **launch: Any,
) -> Report:
    """Check an environment's folder: its files, then its server in a sandbox.

    Args:
        path: The folder.
        run: Whether to start it.
        actions: Steps to take; by default one that fits the action's schema.
        timeout: For one request, in seconds.
        on_event: Called with each event of the launch.
        launch: Further arguments of `openenv_sandbox.launch`: ``provider``, ``options``, …

    Raises:
        OpenEnvError: The backend cannot be used. What is wrong with the environment is in the report.
    """
    from openenv_sandbox.errors import ConfigError, ImageError, ProviderError

    report = Report(str(path))
    await asyncio.to_thread(static.check, report, path)
    if not run or report.failed("manifest"):
        return report
    try:
        async with launched(path, timeout, on_event, launch) as server:
            report.add("start", True)
            if server.cold_start_s is not None:
                report.measured["cold_start_s"] = round(server.cold_start_s, 3)
            server.facts = await server.ask("app", *server.modules) or {}
            await _check(report, server, actions)
    except (ConfigError, ProviderError):
        raise
    except ImageError as error:
        report.add("start", False, str(error))
    except OpenEnvError as error:
        if any(one.id == "start" for one in report.criteria):
            raise
        report.add("start", False, str(error))
    return report


async def validate_url(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    actions: Sequence[Mapping[str, Any]] = (),
    timeout: float = 30.0,
) -> Report:
    """Check a server that runs already, by what can be seen from outside.

    Args:
        url: Its address.
        headers: Sent with every request.
        actions: Steps to take; by default one that fits the action's schema.
        timeout: For one request, in seconds.
    """
    report = Report(url)
    async with reached(url, headers or {}, timeout) as server:
        await _check(report, server, actions)
    return report


async def _check(report: Report, server: UnderTest, given: Sequence[Mapping[str, Any]]) -> None:
    import httpx

    try:
        schema = await _routes(report, server)
    except httpx.HTTPError as error:
        report.add("start", False, f"/health: {error or type(error).__name__}")
        return
    actions = [dict(one) for one in given]
    try:
        async with server.session() as client:
            if not actions:
                actions = await _actions(client, schema)
            await _one_episode(report, client, actions)
    except OpenEnvError as error:
        _failed_call(report, "reset", error)
    if report.failed("reset") or report.failed("step") or report.failed("serialisation"):
        return
    deterministic = await _seed(report, server, actions)
    await _side_by_side(report, server, actions, deterministic)
    for name, look in (("event-loop", _loop_stays_free), ("close", _leftovers)):
        try:
            await look(report, server, actions)
        except OpenEnvError as error:
            report.add(name, None, error.message)


async def _routes(report: Report, server: UnderTest) -> Mapping[str, Any]:
    """Health, metadata and schemas."""
    health = await server.http.get("/health")
    if health.status_code != 200 or report.failed("start"):
        report.add("start", False, f"/health answers {health.status_code}")
    elif not any(one.id == "start" for one in report.criteria):
        report.add("start", True)
    metadata = await server.http.get("/metadata")
    found = metadata.json().get("openenv_version") if metadata.status_code == 200 else None
    from openenv_sandbox.server.http import own_version

    report.add("openenv-version", found == own_version(), f"{found or 'an older one'}", required=False)
    answer = await server.http.get("/schema")
    schema: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
    lacking = [name for name in ("action", "observation", "state") if not isinstance(schema.get(name), dict)]
    report.add("schema", not lacking, f"without {', '.join(lacking)}" if lacking else "")
    return schema


async def _actions(client: Any, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Actions that should be valid; calls of every tool where actions are tool calls."""
    action = schema.get("action") or {}
    if "tool_name" not in (action.get("properties") or {}):
        return variants(action)
    await client.reset()
    listed = (await client.step({"type": "list_tools"})).observation.get("tools") or []
    calls = [
        {"type": "call_tool", "tool_name": tool["name"], "arguments": arguments}
        for tool in listed
        for arguments in variants(tool.get("input_schema") or {"type": "object"})[:1]
    ]
    return calls or [{"type": "list_tools"}]


async def _one_episode(report: Report, client: Any, actions: Sequence[dict[str, Any]]) -> None:
    try:
        result = await client.reset()
    except OpenEnvError as error:
        _failed_call(report, "reset", error)
        return
    shown = isinstance(result.observation, dict)
    report.add("reset", shown, "" if shown else f"the observation is {type(result.observation).__name__}")
    try:
        result = await client.step(actions[0])
    except OpenEnvError as error:
        _failed_call(report, "step", error, f" (action {actions[0]}; --action gives another)")
        return
    number = result.reward is None or isinstance(result.reward, (int, float))
    report.add("step", number, "" if number else f"the reward is {result.reward!r}")
    try:
        state = await client.state()
    except OpenEnvError as error:
        _failed_call(report, "state", error)
        return
    counted = isinstance(state, dict) and state.get("step_count") is not None and state.get("episode_id") is not None
    report.add("state", counted, "" if counted else f"{state!r}", required=False)
    report.add("serialisation", True)


def _failed_call(report: Report, call: str, error: OpenEnvError, more: str = "") -> None:
    if getattr(error, "code", None) == "SERIALIZATION_ERROR":
        report.add("serialisation", False, f"{call}: {error.message}")
    else:
        report.add(call, False, f"{error.message}{more}")


async def _seed(report: Report, server: UnderTest, actions: Sequence[dict[str, Any]]) -> bool:
    """Whether the same seed is the same episode; True also where two episodes without a seed are alike."""
    accepted = server.facts.get("seed")
    first, second = [await episodes.play(server, actions, seed=7) for _ in range(2)]
    different = episodes.difference(first, second)
    if different is None:
        text = "the environment takes no seed; its episodes are alike" if accepted is False else "deterministic"
        report.add("seed", True, text)
        return True
    if accepted is False:
        report.add("seed", True, f"the environment takes no seed; its episodes differ: {different}")
    else:
        how = "accepted and ignored" if accepted else "without effect"
        report.add("seed", False, f"a seed is {how}: two episodes with seed 7 differ: {different}")
    return False


async def _side_by_side(
    report: Report, server: UnderTest, actions: Sequence[dict[str, Any]], deterministic: bool
) -> None:
    claimed = server.facts.get("max_sessions")
    wanted = min(int(claimed or 2), SESSIONS)
    clients: list[Any] = []
    alone = [await episodes.play(server, actions, seed=seed) for seed in range(wanted)] if deterministic else []
    try:
        refused: OpenEnvError | None = None
        for _ in range(wanted):
            try:
                clients.append(await server.origin.new_session())
                await clients[-1].reset()  # a session may exist before its environment
            except OpenEnvError as error:
                refused = error
                break
        if claimed is None and isinstance(refused, CapacityError) and len(clients) == 1:
            report.add("capacity", True, "one session")
        else:
            ready = len(clients) - (refused is not None and len(clients) > 0)
            text = f"{ready} of {wanted} sessions opened" + (f": {refused.message}" if refused else "")
            report.add("capacity", refused is None, text)
        if refused is not None or len(clients) < 2:
            report.add("concurrency", None, "fewer sessions than were wanted are open")
            return
        together = await episodes.interleave(clients, actions)
        problems = episodes.mixed_up(together, alone)
        report.add("concurrency", not problems, "; ".join(problems) or f"{len(clients)} sessions")
    except OpenEnvError as error:
        report.add("concurrency", False, error.message)
    finally:
        for client in clients:
            await client.close()


async def _loop_stays_free(report: Report, server: UnderTest, actions: Sequence[dict[str, Any]]) -> None:
    """Ask /health again and again while a session is opened, reset and stepped."""
    import httpx

    slowest = 0.0
    work = asyncio.ensure_future(episodes.play(server, actions, seed=None))
    loop = asyncio.get_running_loop()
    try:
        while not work.done():
            begin = loop.time()
            try:
                await server.http.get("/health")
            except httpx.HTTPError as error:
                report.add("event-loop", False, f"/health failed meanwhile: {error or type(error).__name__}")
                return
            slowest = max(slowest, loop.time() - begin)
            await asyncio.wait([work], timeout=0.02)
    finally:
        await asyncio.gather(work, return_exceptions=True)
    text = f"/health took up to {slowest:.2f} s" if slowest > SLOW_S else ""
    report.add("event-loop", slowest <= SLOW_S, text)


async def _leftovers(report: Report, server: UnderTest, actions: Sequence[dict[str, Any]]) -> None:
    """What the server's process holds before and after some sessions."""
    before = await server.ask("usage", *map(str, server.ports))
    if before is None:
        report.add("close", None, "the server's process cannot be looked at from here")
        return
    for _ in range(ROUNDS):
        await episodes.play(server, actions[:1], seed=None)
    grown: list[str] = []
    for _ in range(20):
        after = await server.ask("usage", *map(str, server.ports)) or before
        grown = [
            f"{after[name] - count} more {name} after {ROUNDS} sessions"
            for name, count in before.items()
            if after[name] - count >= ROUNDS - 2
        ]
        if not grown:
            break
        await asyncio.sleep(0.1)
    report.add("close", not grown, "; ".join(grown))
