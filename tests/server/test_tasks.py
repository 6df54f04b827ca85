"""Task routes and metadata."""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from openenv_sandbox.models import Action, Observation, State
from openenv_sandbox.server.app import create_app
from openenv_sandbox.server.environment import Environment, EnvironmentMetadata
from openenv_sandbox.server.metadata import find_readme, load_environment_metadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@dataclass
class Task:
    number: int


class Bare(Environment[Action, Observation, State]):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()


class Tasks(Bare):
    async def list_splits(self) -> list[Any]:
        return ["train", "hard", {"name": "own", "type": "test"}]

    def list_tasks(self, split: str) -> list[Task]:
        return [Task(n) for n in range(3)]

    def num_tasks(self, split: str) -> int:
        return len(self.list_tasks(split))

    def get_task(self, split: str, index: int) -> Task:
        return self.list_tasks(split)[index]

    async def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Task]:
        return self.list_tasks(split)[start:stop]


@asynccontextmanager
async def served(env: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(env, Action, Observation, env_name="My_Env")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1") as http:
        yield http
    await app.state.openenv_server.sessions.aclose()


@pytest.mark.anyio
async def test_task_routes() -> None:
    """Every route, plain and coroutine methods, names in any case, tasks of any serialisable type.

    Mutation: give split objects through unchanged where they are names
    """
    async with served(Tasks) as http:

        async def post(what: str, **body: Any) -> Any:
            return (await http.post(f"/my_ENV/{what}", json=body)).json()

        assert (await http.get("/list_environments")).json() == ["My_Env"]
        assert (await http.get("/My_Env/splits")).json() == [
            {"name": "train", "type": "train"},
            {"name": "hard", "type": "validation"},
            {"name": "own", "type": "test"},
        ]
        tasks = [{"number": n} for n in range(3)]
        assert await post("tasks", split="train") == {"tasks": tasks, "env_name": "my_ENV"}
        assert await post("num_tasks", split="train") == {"num_tasks": 3}
        assert await post("task", split="train", index=2) == {"task": {"number": 2}}
        assert await post("task_range", split="train", start=1) == {"tasks": tasks[1:]}
        assert await post("task_range", split="train") == {"tasks": tasks}


@pytest.mark.anyio
async def test_task_errors() -> None:
    """Unknown environment, unknown index, extra keys, and an environment without tasks.

    Mutation: answer an unknown index with 500
    """
    async with served(Tasks) as http:
        missing = await http.post("/other/tasks", json={"split": "a"})
        assert (missing.status_code, missing.json()) == (404, {"detail": "unknown environment 'other'"})
        beyond = await http.post("/my_env/task", json={"split": "a", "index": 9})
        assert (beyond.status_code, beyond.json()) == (400, {"detail": "Invalid task index"})
        extra = await http.post("/my_env/tasks", json={"split": "a", "x": 1})
        assert extra.status_code == 422
        assert extra.json()["detail"][0]["type"] == "extra_forbidden"
    async with served(Bare) as http:
        unsupported = await http.post("/my_env/task_range", json={"split": "a"})
        assert unsupported.status_code == 501
        assert unsupported.json() == {"detail": "get_task_range is not supported for this environment"}


def test_metadata_of_what_makes_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance is asked; a class, partial or function is named and not called.

    Mutation: call the factory to ask its environment
    """
    monkeypatch.chdir(tmp_path)

    class Own(Bare):
        def get_metadata(self) -> EnvironmentMetadata:
            return EnvironmentMetadata(name="own", description="mine")

    def never() -> Bare:
        raise AssertionError("called")

    assert load_environment_metadata(Own()).description == "mine"
    assert load_environment_metadata(Bare).name == "Bare"
    assert load_environment_metadata(functools.partial(never)).description == "never environment"
    assert load_environment_metadata(never, "given").name == "given"
    assert load_environment_metadata(Bare).version == "1.0.0"


def test_readme_look_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENV_README_PATH first, then the checkout's folder of that name; a name is no path.

    Mutation: look in the checkout before the variable
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envs" / "e").mkdir(parents=True)
    (tmp_path / "envs" / "e" / "README.md").write_text("of the checkout")
    (tmp_path / "README.md").write_text("not this one")
    assert find_readme("e") == "of the checkout"
    assert find_readme("..") is None
    named = tmp_path / "named.md"
    named.write_text("named")
    monkeypatch.setenv("ENV_README_PATH", str(named))
    assert load_environment_metadata(Bare, "e").readme_content == "named"
    monkeypatch.setenv("ENV_README_PATH", str(tmp_path / "gone.md"))
    assert find_readme("e") == "of the checkout"
