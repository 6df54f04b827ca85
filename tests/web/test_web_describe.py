"""What forms and quick starts are made from, and the shared manager."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import Field, ValidationError

from openenv_sandbox.models import Action, CallToolAction, Observation
from openenv_sandbox.server.environment import EnvironmentMetadata
from openenv_sandbox.server.web.describe import action_fields, action_schema, is_chat, reset_schema
from openenv_sandbox.server.web.episode import MAX_ACTION_LOGS, Episode, View
from openenv_sandbox.server.web.manager import WebInterfaceManager
from openenv_sandbox.server.web.quickstart import get_quick_start_markdown
from tests.server.environments import Asynchronous, Do, Inline, Recording, Saw
from tests.web.worlds import Draw, Studio

if TYPE_CHECKING:
    from pathlib import Path


class Tensor:
    """Stands for a type that has no JSON schema."""


class Typed(Action):
    message: str = Field(description="What to say", min_length=2, max_length=500)
    choice: str = Field(default="a", json_schema_extra={"enum": ["a", "b"]})
    count: int = Field(default=3, ge=1, le=9)
    yes: bool = False


class Chat(Action):
    tokens: Tensor


def test_fields_of_an_action_as_builders_get_them() -> None:
    fields = {field["name"]: field for field in action_fields(Typed)}
    assert "metadata" not in fields
    assert [field["type"] for field in fields.values()] == ["textarea", "select", "number", "checkbox"]
    message = fields["message"]
    assert (message["required"], message["min_length"], message["max_length"]) == (True, 2, 500)
    assert message["help_text"] == message["description"] == "What to say"
    assert (fields["count"]["min_value"], fields["count"]["max_value"], fields["count"]["default_value"]) == (1, 9, 3)
    assert fields["choice"]["choices"] == ["a", "b"]
    assert set(message) == {
        *("name", "type", "required", "description", "default_value", "choices", "min_value", "max_value"),
        *("min_length", "max_length", "pattern", "placeholder", "help_text"),
    }


def test_an_action_without_a_schema_is_no_error() -> None:
    assert action_schema(Chat) is None
    assert action_fields(Chat) == []
    assert is_chat(Chat)
    assert not is_chat(Draw)


def test_the_arguments_of_reset() -> None:
    studio = reset_schema(Studio)
    assert set(studio["properties"]) == {"seed", "difficulty"}
    assert studio["properties"]["difficulty"]["enum"] == ["easy", "hard"]
    assert studio["additionalProperties"] is False
    assert reset_schema(Asynchronous)["additionalProperties"] is True
    unknown = reset_schema(None)
    assert set(unknown["properties"]) == {"seed", "episode_id"}
    assert unknown["additionalProperties"] is True


def test_arguments_of_reset_that_have_no_schema() -> None:
    class Odd:
        def reset(self, board: Tensor, *, size=3) -> None:  # type: ignore[no-untyped-def]
            """Takes what no form can give."""

    assert set(reset_schema(Odd)["properties"]) == {"board", "size"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "paint_env"
    root.mkdir()
    (root / "__init__.py").write_text(
        "from .client import PaintEnv\nfrom .models import Do\nraise SystemExit('imported')\n"
    )
    (root / "client.py").write_text("class Helper: ...\nclass PaintEnv(EnvClient[Do, Saw, State]): ...\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
def test_a_quick_start_names_the_packages_client_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "me/paint")
    monkeypatch.setenv("SPACE_HOST", "me-paint.hf.space")
    text = get_quick_start_markdown(EnvironmentMetadata(name="Paint Env", description=""), Do, Saw)
    assert "pip install git+https://huggingface.co/spaces/me/paint" in text
    assert "from paint_env import Do, PaintEnv" in text
    assert 'with PaintEnv(base_url="https://me-paint.hf.space").sync() as env:' in text
    tools = get_quick_start_markdown(EnvironmentMetadata(name="paint-env", description=""), CallToolAction, Observation)
    assert 'env.call_tool("…")' in tools


def test_a_quick_start_without_a_package_uses_the_generic_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPACE_HOST", raising=False)
    text = get_quick_start_markdown(None, Typed, Saw)
    assert 'with GenericEnvClient(base_url="http://localhost:8000").sync() as env:' in text
    assert 'env.step({"message": "…"})' in text


class Socket:
    """A page that listens."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.gone = False

    async def accept(self) -> None:
        self.got.append("accepted")

    async def send_text(self, text: str) -> None:
        if self.gone:
            raise OSError("gone")
        self.got.append(json.loads(text))


@pytest.mark.anyio
@pytest.mark.parametrize("env", [Recording, Inline, Asynchronous])
async def test_the_shared_manager(env: Any) -> None:
    made: Any = env()
    manager = WebInterfaceManager(made, Do, Saw)
    assert manager.env is made
    assert manager.metadata.name == env.__name__
    socket, gone = Socket(), Socket()
    for each in (socket, gone):
        await manager.connect_websocket(each)
    gone.gone = True
    assert (await manager.reset_environment({"seed": 4, "unknown": 1}))["observation"]["text"] == "ready"
    envelope = await manager.step_environment({"what": "dab"})
    assert (envelope["observation"]["text"], envelope["reward"], envelope["done"]) == ("dab", 1, False)
    assert manager.connected_clients == [socket]
    assert [each if each == "accepted" else each["type"] for each in socket.got] == ["accepted", *["state_update"] * 3]
    assert socket.got[-1]["episode_state"]["action_logs"][0]["action"]["what"] == "dab"
    assert manager.get_state() == {"episode_id": None, "step_count": 1, "seed": 4}
    state = manager.episode_state
    assert (state.step_count, state.is_reset, len(state.action_logs)) == (1, False, 1)
    with pytest.raises(ValidationError):
        await manager.step_environment({"nothing": 1})
    await manager.disconnect_websocket(socket)
    assert manager.connected_clients == []
    await manager.aclose()
    assert made.closed


def test_an_episode_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: never drop an entry"""
    from openenv_sandbox.server.web import episode as module

    env = Recording()
    monkeypatch.setattr(module, "MAX_ACTION_LOGS", 3)
    episode = Episode()
    view = View(env, env.reset(), lambda: env.state)
    episode.begin(view, {})
    for number in range(5):
        action = Do(what=str(number))
        episode.add(View(env, env.step(action), lambda: env.state), {"what": str(number)}, {"what": str(number)})
    assert [entry["number"] for entry in episode.entries] == [3, 4, 5]
    assert episode.observation(2) is None
    assert b'"text":"4"' in (episode.observation(5) or b"")
    monkeypatch.setattr(module, "MAX_OBSERVATION_BYTES", 10)
    episode.add(view, {}, {})
    assert episode.observation(5) is None
    assert episode.observation(6) is not None
    assert [line["observation"] is None for line in episode.lines()] == [True, True, True, False]
    assert MAX_ACTION_LOGS == 1000
