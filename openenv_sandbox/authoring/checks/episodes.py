"""Episodes as lists of what was seen, compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import OpenEnvError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from openenv_sandbox.authoring.checks.under_test import UnderTest

STEPS = 5
"""Steps of an episode, where one action is repeated."""
UNSTABLE = frozenset({"episode_id", "session_id", "timestamp", "created_at", "time"})
"""Names whose values are new each time by their nature."""

Trace = list[Any]


async def play(server: UnderTest, actions: Sequence[Mapping[str, Any]], *, seed: int | None) -> Trace:
    """One episode in a session of its own.

    Raises:
        OpenEnvError: What the server answered instead.
    """
    async with server.session() as client:
        trace = [await _reset(client, seed)]
        for action in _script(actions):
            if trace[-1][2]:
                break
            trace.append(await _step(client, action))
        return trace


async def interleave(clients: Sequence[Any], actions: Sequence[Mapping[str, Any]]) -> list[Trace]:
    """An episode in each session, step by step in turn; session I has seed I. Ends with the state of each."""
    traces: list[Trace] = [[await _reset(client, seed)] for seed, client in enumerate(clients)]
    for action in _script(actions):
        for client, trace in zip(clients, traces, strict=True):
            if not trace[-1][2]:
                trace.append(await _step(client, action))
    for client, trace in zip(clients, traces, strict=True):
        try:
            trace.append(("state", await client.state(), True))
        except OpenEnvError:
            trace.append(("state", None, True))
    return traces


def difference(one: Trace, other: Trace) -> str | None:
    """Where two episodes differ first, in words; None where they do not."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if stable(left) != stable(right):
            return f"{'the reset' if index == 0 else f'step {index}'} answers {_short(left)} and {_short(right)}"
    return None if len(one) == len(other) else f"one has {len(one) - 1} steps, the other {len(other) - 1}"


def mixed_up(together: Sequence[Trace], alone: Sequence[Trace]) -> list[str]:
    """What shows that sessions share something.

    Args:
        together: As `interleave` gives them.
        alone: The same episodes by themselves, where they are deterministic; else empty.
    """
    problems = []
    for index, expected in enumerate(alone):
        if index < len(together) and (different := difference(together[index][:-1], expected)) is not None:
            problems.append(f"session {index + 1} of {len(together)} goes otherwise than alone: {different}")
            break
    states = [trace[-1][1] for trace in together if isinstance(trace[-1][1], dict)]
    ids = [state["episode_id"] for state in states if state.get("episode_id")]
    if len(set(ids)) < len(ids):
        problems.append("two sessions have one episode id")
    for trace in together:
        state = trace[-1][1]
        count = state.get("step_count") if isinstance(state, dict) else None
        if isinstance(count, int) and count > len(trace) - 2:
            problems.append(f"a session of {len(trace) - 2} steps counts {count}")
            break
    return problems


def stable(value: Any) -> Any:
    """A value without what is new each time."""
    if isinstance(value, dict):
        return {name: stable(item) for name, item in value.items() if name not in UNSTABLE}
    if isinstance(value, (list, tuple)):
        return [stable(item) for item in value]
    return value


def _script(actions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list(actions) if len(actions) > 1 else list(actions) * STEPS


async def _reset(client: Any, seed: int | None) -> Any:
    result = await (client.reset() if seed is None else client.reset(seed=seed))
    return result.observation, result.reward, result.done


async def _step(client: Any, action: Mapping[str, Any]) -> Any:
    result = await client.step(dict(action))
    return result.observation, result.reward, result.done


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}…"
