"""Routes that tell which tasks an environment offers: splits, and the tasks of each.

An environment offers them by having the methods ``list_splits``, ``list_tasks``, ``num_tasks``, ``get_task`` and
``get_task_range``, plain or coroutine functions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel, ConfigDict

from openenv_sandbox.server.worker import settle
from openenv_sandbox.wire import codec

SPLIT_TYPES = ("train", "validation", "test")


@runtime_checkable
class TaskProvider(Protocol):
    """What an environment with tasks implements."""

    def list_splits(self) -> list[Any]:
        """Names of the splits, or objects with ``name`` and ``type``."""
        ...

    def list_tasks(self, split: str) -> list[Any]:
        """Every task of a split."""
        ...

    def num_tasks(self, split: str) -> int:
        """How many tasks a split has."""
        ...

    def get_task(self, split: str, index: int) -> Any:
        """One task; IndexError where there is none."""
        ...

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        """The tasks from ``start`` up to ``stop``, both as in a slice."""
        ...


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SplitRequest(_Body):
    """Body of the routes that take a split."""

    split: str


class TaskRequest(_Body):
    """Body of ``/task``."""

    split: str
    index: int


class TaskRangeRequest(_Body):
    """Body of ``/task_range``."""

    split: str
    start: int | None = None
    stop: int | None = None


class _Callable(Protocol):
    async def call(self, function: Callable[[Any], Any]) -> Any: ...


Throwaway = Callable[[], AbstractAsyncContextManager[_Callable]]


def add_task_routes(app: FastAPI, env_name: str, throwaway: Throwaway) -> None:
    """Add ``/list_environments`` and the task routes.

    Args:
        app: Gets the routes, flat at its top level.
        env_name: The name they answer to, whatever its case.
        throwaway: Makes an environment for one request; what it yields has ``call(function)``, which calls
            ``function(environment)`` where the environment lives.
    """

    async def ask(name: str, method: str, *args: Any) -> Any:
        if name.lower() != env_name.lower():
            raise HTTPException(404, f"unknown environment '{name}'")

        def here(env: Any) -> tuple[bool, Any]:
            found = getattr(env, method, None)
            return (True, found(*args)) if callable(found) else (False, None)

        try:
            async with throwaway() as session:
                known, value = await session.call(here)
                value = await settle(lambda: value)
        except IndexError:
            raise HTTPException(400, "Invalid task index") from None
        if not known:
            raise HTTPException(501, f"{method} is not supported for this environment")
        return value

    @app.get("/list_environments", tags=["Tasks"])
    async def list_environments() -> list[str]:
        """Names of the environments served here: always one."""
        return [env_name]

    @app.get("/{env_name}/splits", tags=["Tasks"])
    async def list_splits(env_name: str) -> Response:
        """The splits of the environment."""
        return _json([_split(item) for item in await ask(env_name, "list_splits")])

    @app.post("/{env_name}/tasks", tags=["Tasks"])
    async def list_tasks(env_name: str, body: SplitRequest) -> Response:
        """Every task of a split."""
        return _json({"tasks": list(await ask(env_name, "list_tasks", body.split)), "env_name": env_name})

    @app.post("/{env_name}/num_tasks", tags=["Tasks"])
    async def num_tasks(env_name: str, body: SplitRequest) -> Response:
        """How many tasks a split has."""
        return _json({"num_tasks": await ask(env_name, "num_tasks", body.split)})

    @app.post("/{env_name}/task", tags=["Tasks"])
    async def get_task(env_name: str, body: TaskRequest) -> Response:
        """One task."""
        return _json({"task": await ask(env_name, "get_task", body.split, body.index)})

    @app.post("/{env_name}/task_range", tags=["Tasks"])
    async def get_task_range(env_name: str, body: TaskRangeRequest) -> Response:
        """Some tasks of a split."""
        tasks = await ask(env_name, "get_task_range", body.split, body.start, body.stop)
        return _json({"tasks": list(tasks)})


def _split(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"name": item, "type": item if item in SPLIT_TYPES else "validation"}
    return codec.fields_of(item)


def _json(value: Any) -> Response:
    return Response(codec.dumps(value), media_type="application/json")
