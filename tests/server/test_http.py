"""The plain HTTP routes and the making of the application."""

from __future__ import annotations

import functools
import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

from openenv_sandbox.models import Observation, State
from openenv_sandbox.server import ConcurrencyConfig, HTTPEnvServer, create_app, create_fastapi_app
from tests.server.environments import Asynchronous, Do, Recording, Saw, Single
from tests.server.peers import in_process


def client(factory: Any = Recording, **options: Any) -> Any:
    return in_process(create_app(factory, Do, Saw, **options), raise_server_exceptions=False)


def test_bodies() -> None:
    http = client()
    assert http.get("/health").json() == {"status": "healthy"}
    metadata = http.get("/metadata").json()
    version = metadata.pop("openenv_version")
    assert version.count(".") == 2
    assert metadata == {
        "name": "Recording",
        "description": "Recording environment",
        "readme_content": None,
        "version": "1.0.0",
        "author": None,
        "documentation_url": None,
    }
    schema = http.get("/schema").json()
    assert set(schema) == {"action", "observation", "state", "reset_observation"}
    assert schema["action"]["title"] == "Do"
    assert schema["observation"] == schema["reset_observation"]
    reset = http.post("/reset").json()
    assert set(reset) == {"observation", "reward", "done", "metadata"}
    assert reset["metadata"] == {"fresh": True}
    step = http.post("/step", json={"action": {"what": "a"}, "timeout_s": 3, "request_id": "r", "more": 1}).json()
    assert step["reward"] == 1.0
    assert step["metadata"] is None
    assert isinstance(json.loads(http.post("/step", json={"action": {}}).text)["reward"], float)
    assert http.post("/step", json={"action": {"what": "nan:"}}).json()["reward"] is None
    assert http.get("/state").json() == {"episode_id": None, "step_count": 0}
    assert http.get("/openapi.json").json()["info"] == {
        "title": "OpenEnv Environment HTTP API",
        "version": "1.0.0",
        "description": "Reset, step and observe Recording. Episodes run over the WebSocket /ws.",
    }


def test_errors() -> None:
    http = client()
    failed = http.post("/step", json={"action": {"what": "raise:secret"}})
    assert (failed.status_code, failed.text) == (500, "Internal Server Error")
    assert failed.headers["content-type"] == "text/plain; charset=utf-8"
    bad = http.post("/step", json={"action": {"nope": 1}})
    assert bad.status_code == 422
    assert bad.json()["detail"][0]["loc"] == ["nope"]
    assert http.post("/step", json={}).json()["detail"][0]["loc"] == ["body", "action"]
    assert http.post("/reset", json=[]).json()["detail"][0]["type"] == "model_attributes_type"
    assert http.post("/reset", json={"seed": -1}).status_code == 422
    assert http.get("/mcp").status_code == 405
    assert http.get("/web").status_code == 404


@pytest.mark.parametrize("factory", [Recording, Asynchronous])
def test_each_request_has_an_environment_of_its_own_which_is_closed(factory: Any) -> None:
    Recording.made.clear()
    http = client(factory)
    http.post("/reset", json={"episode_id": "x"})
    assert http.get("/state").json()["episode_id"] is None
    http.post("/step", json={"action": {"what": "raise:x"}})
    assert [env.closed for env in Recording.made] == [True] * 3
    assert http.app.state.openenv_server.active_sessions == 0


def test_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    production = client(mode="Production")
    assert [production.get(path).status_code for path in ("/state", "/health", "/schema")] == [404, 200, 200]
    assert production.post("/reset").status_code == production.post("/step").status_code == 404
    with production.websocket_connect("/ws") as ws:
        ws.send_json({"type": "reset"})
        assert ws.receive_json()["type"] == "observation"
    monkeypatch.setenv("OPENENV_MODE", "production")
    assert client().get("/state").status_code == 404
    assert client(mode="simulation").get("/state").status_code == 200
    monkeypatch.setenv("OPENENV_MODE", "training")
    with pytest.raises(ValueError, match="not 'training'"):
        client()


def test_arguments() -> None:
    with pytest.raises(TypeError, match="callable"):
        create_app(Recording(), Do, Saw)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not both"):
        create_app(Recording, Do, Saw, max_concurrent_envs=1, concurrency_config=ConcurrencyConfig())
    assert HTTPEnvServer(Recording, Do, Saw).max_concurrent_envs == 64
    assert HTTPEnvServer(functools.partial(Recording), Do, Saw).max_concurrent_envs == 64
    assert HTTPEnvServer(Single, Do, Saw).max_concurrent_envs == 1
    server = HTTPEnvServer(lambda: Recording(), Do, Saw, env_name="named")
    assert (server.max_concurrent_envs, server.is_concurrency_safe, server.env_name) == (1, False, "named")
    assert server.get_capacity_status().available_slots == 1
    assert server.get_session_info("nope") is None


def test_signatures_are_those_that_packages_inspect() -> None:
    parameters = list(inspect.signature(create_app).parameters.values())
    assert [p.name for p in parameters] == (
        "env action_cls observation_cls env_name max_concurrent_envs concurrency_config gradio_builder "
        "custom_tab_name custom_tab_primary show_default_tab title_override state_cls mode reset_observation_cls"
    ).split()
    assert [p.kind.name for p in parameters] == ["POSITIONAL_OR_KEYWORD"] * 12 + ["KEYWORD_ONLY"] * 2
    text = str(parameters[0].annotation)
    assert "Environment" in text
    assert "Callable[[]," in text
    assert list(inspect.signature(create_fastapi_app).parameters)[:7] == (
        "env action_cls observation_cls max_concurrent_envs concurrency_config env_name state_cls".split()
    )


def test_the_routes_are_a_flat_list_that_may_be_changed() -> None:
    app = create_app(Recording, Do, Saw)
    paths = [getattr(route, "path", None) for route in app.routes]
    assert {"/ws", "/mcp", "/health", "/reset", "/step", "/state", "/schema", "/metadata"} <= set(paths)
    for route in list(app.routes):
        if getattr(route, "path", None) == "/schema":
            app.routes.remove(route)

    @app.get("/schema")
    async def own() -> dict[str, bool]:
        return {"mine": True}

    assert in_process(app).get("/schema").json() == {"mine": True}


def test_states_and_observations_go_by_their_own_class() -> None:
    class Deep(State):
        board: list[int]

    class Odd(Recording):
        def reset(self) -> Any:  # type: ignore[override]
            return Observation(metadata={"bare": True})

        @property
        def state(self) -> Any:
            return Deep(board=[1, 2], more="kept")

    http = client(Odd)
    assert http.post("/reset", json={"seed": 1}).json()["observation"] == {"metadata": {"bare": True}}
    assert http.get("/state").json() == {"episode_id": None, "step_count": 0, "board": [1, 2], "more": "kept"}


def test_a_state_that_is_not_there() -> None:
    class Early(Recording):
        state = None  # type: ignore[assignment]

    class Raising(Recording):
        @property
        def state(self) -> State:
            raise RuntimeError("reset first")

    assert client(Early).get("/state").json() is None
    with client(Raising).websocket_connect("/ws") as ws:
        ws.send_json({"type": "state"})
        assert ws.receive_json()["data"] == {"message": "reset first", "code": "EXECUTION_ERROR"}


def test_types_cost_no_web_framework_and_the_application_no_thread() -> None:
    script = """
import sys, threading
from openenv_sandbox.server import Environment, Action, Observation, State, ConcurrencyConfig, Transform
bad = {"fastapi", "starlette", "uvicorn", "websockets", "httpx"} & set(sys.modules)
assert not bad, bad
from tests.server.apps import app
assert threading.active_count() == 1, threading.enumerate()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
