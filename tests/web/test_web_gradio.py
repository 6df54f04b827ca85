"""A page of the environment's own, built with Gradio and mounted beside ours."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.server import create_app
from openenv_sandbox.server.web import custom
from openenv_sandbox.server.web.app import create_web_interface_app
from tests.server.environments import Do, Recording, Saw
from tests.server.peers import serving

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.anyio,
    # what gradio does to itself while it is imported is not ours to mend
    pytest.mark.filterwarnings("ignore"),
]


def needs_gradio(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gradio has so many dependencies that it is tested in an environment of its own: make gradio."""
    missing = pytest.mark.skipif(find_spec("gradio") is None, reason="gradio is not installed")
    marked: Callable[..., Any] = pytest.mark.interop(missing(function))
    return marked


def builder(seen: dict[str, Any], fails: bool = False) -> Callable[..., Any]:
    def build(
        web_manager: Any, action_fields: Any, metadata: Any, is_chat_env: bool, title: str, quick_start_md: str
    ) -> Any:
        seen.update(manager=web_manager, fields=action_fields, metadata=metadata, chat=is_chat_env, title=title)
        seen["calls"] = seen.get("calls", 0) + 1
        seen["at_building"] = type(web_manager.env).__name__
        if fails:
            raise RuntimeError("the brushes are dry")
        gradio: Any = import_module("gradio")
        with gradio.Blocks() as blocks:
            gradio.Markdown("# painted by hand")
        return blocks

    return build


def page(monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any], **options: Any) -> Any:
    monkeypatch.setenv("ENABLE_WEB_INTERFACE", "true")
    return create_app(Recording, Do, Saw, env_name="paint_env", gradio_builder=build, **options)


def test_what_builders_look_for_before_they_pass_anything() -> None:
    wanted = {"gradio_builder", "custom_tab_name", "custom_tab_primary", "show_default_tab", "title_override"}
    for function in (create_app, create_web_interface_app):
        assert wanted <= set(inspect.signature(function).parameters)
        assert "Callable" in str(inspect.signature(function).parameters["env"].annotation)


async def test_without_gradio_one_error_is_logged_and_all_else_is_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(custom, "find_spec", lambda name: None)
    app = page(monkeypatch, builder({}))
    assert [record.levelname for record in caplog.records if record.name == "openenv.server"] == ["ERROR"]
    assert "pip install gradio" in caplog.text
    async with serving(app) as server:
        assert (await server.request("GET", "/web"))[0] == 200
        peer = await server.connect()
        assert (await peer.reset())["type"] == "observation"


async def test_the_builder_is_not_called_where_the_page_is_off() -> None:
    seen: dict[str, Any] = {}
    create_app(Recording, Do, Saw, gradio_builder=builder(seen))
    assert seen == {}


@needs_gradio
async def test_the_page_is_built_once_and_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    app = page(monkeypatch, builder(seen), custom_tab_name="REPL", title_override="Painting")
    assert (seen["calls"], seen["at_building"], seen["chat"], seen["title"]) == (1, "Recording", False, "Painting")
    assert [field["name"] for field in seen["fields"]] == ["what", "size", "seconds"]
    assert {"type": "number", "required": False, "default_value": 0}.items() <= seen["fields"][1].items()
    async with serving(app) as server:
        assert server.sessions.active_sessions == 0
        status, headers, text = await server.request("GET", "/web/custom/")
        assert status == 200
        assert "painted by hand" in text
        assert "content-security-policy" not in headers
        assert (await server.request("GET", "/web"))[0] == 200
        config = json.loads((await server.request("POST", "/web/session"))[2])
        assert [tab["label"] for tab in config["tabs"]] == ["Playground", "REPL"]
        assert config["title"] == "Painting"
        manager = seen["manager"]
        assert (await manager.reset_environment({"seed": 3}))["observation"]["text"] == "ready"
        assert (await manager.step_environment({"what": "dab"}))["observation"]["text"] == "dab"
        assert manager.get_state()["step_count"] == 1
        assert [log.action["what"] for log in manager.episode_state.action_logs] == ["dab"]
        env = manager.env
    assert env.closed


@needs_gradio
async def test_the_page_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: ignore show_default_tab"""
    app = page(monkeypatch, builder({}), show_default_tab=False, custom_tab_primary=True)
    async with serving(app) as server:
        status, headers, _ = await server.request("GET", "/web")
        assert (status, headers["location"]) == (307, "/web/custom/")
        config = json.loads((await server.request("POST", "/web/session"))[2])
        assert [tab["id"] for tab in config["tabs"]] == ["custom", "playground"]


@needs_gradio
@pytest.mark.parametrize("kind", ["raises", "returns something else"])
async def test_a_builder_that_fails_is_one_logged_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Mutation: let the error of a builder through"""
    app = page(monkeypatch, builder({}, fails=True) if kind == "raises" else lambda *given: "no blocks")
    errors = [record for record in caplog.records if record.name == "openenv.server"]
    assert len(errors) == 1
    assert ("the brushes are dry" if kind == "raises" else "must return a gradio.Blocks") in caplog.text
    assert Recording.made[-1].closed
    async with serving(app) as server:
        assert (await server.request("GET", "/web"))[0] == 200
        assert (await server.request("GET", "/web/custom/"))[0] == 404
        peer = await server.connect()
        assert (await peer.reset())["type"] == "observation"


@needs_gradio
async def test_the_plain_page_for_builders_to_add_to(monkeypatch: pytest.MonkeyPatch) -> None:
    from openenv.core.env_server.gradio_ui import build_gradio_app, get_gradio_display_title

    app = page(monkeypatch, lambda *given: build_gradio_app(*given))
    async with serving(app) as server:
        status, _, text = await server.request("GET", "/web/custom/")
        assert status == 200
        assert "paint_env" in text
    assert get_gradio_display_title(None) == "OpenEnv Agentic Environment: OpenEnv Environment"


@needs_gradio
async def test_a_token_guards_the_page_as_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_AUTH_TOKEN", "sesame")
    async with serving(page(monkeypatch, builder({}))) as server:
        assert (await server.request("GET", "/web/custom/"))[0] == 401
        _, headers, _ = await server.request("GET", "/web?token=sesame")
        cookie = {"Host": "localhost", "Cookie": headers["set-cookie"].partition(";")[0]}
        assert (await server.request("GET", "/web/custom/", headers=cookie))[0] == 200
