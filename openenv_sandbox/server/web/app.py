"""Adding the page to an application."""

import logging
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from openenv_sandbox.models import Action, Observation, State
from openenv_sandbox.server.access import AccessRules
from openenv_sandbox.server.app import HTTPEnvServer, create_fastapi_app
from openenv_sandbox.server.calls import environment_class
from openenv_sandbox.server.environment import Environment, EnvironmentMetadata
from openenv_sandbox.server.http import own_version
from openenv_sandbox.server.metadata import load_environment_metadata
from openenv_sandbox.server.types import ConcurrencyConfig, ServerMode
from openenv_sandbox.server.web import custom, describe
from openenv_sandbox.server.web.door import Door
from openenv_sandbox.server.web.quickstart import get_quick_start_markdown
from openenv_sandbox.server.web.routes import Pages
from openenv_sandbox.server.web.visitors import Visitors

if TYPE_CHECKING:
    from openenv_sandbox.server.session import Session

# No postponed annotations in this module: packages look at str() of the annotation of `env` to choose what to pass.

logger = logging.getLogger("openenv.server")

IDLE_SETTING = "OPENENV_WEB_IDLE"
IDLE = 900.0
"""Seconds without an action after which a visitor's environment is closed."""


def create_web_interface_app(
    env: Callable[[], Environment],  # type: ignore[type-arg]
    action_cls: type[Action],
    observation_cls: type[Observation],
    env_name: str | None = None,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    gradio_builder: Callable[..., Any] | None = None,
    custom_tab_name: str = "Custom",
    custom_tab_primary: bool = False,
    show_default_tab: bool = True,
    title_override: str | None = None,
    state_cls: type[State] = State,
    *,
    mode: ServerMode | str | None = None,
    reset_observation_cls: type[Observation] | None = None,
) -> FastAPI:
    """An application that serves the environment and its page, whatever ``ENABLE_WEB_INTERFACE`` says.

    Args:
        env: Makes one environment.
        action_cls: What actions are validated as.
        observation_cls: Shown in ``/schema``.
        env_name: Name of the environment.
        max_concurrent_envs: Most sessions; a visitor of the page has one.
        concurrency_config: The same and more; give one of the two.
        gradio_builder: ``(web_manager, action_fields, metadata, is_chat_env, title, quick_start_md) -> gr.Blocks``: a
            page of the environment's own, called once, here.
        custom_tab_name: Name of its tab.
        custom_tab_primary: Its tab comes first.
        show_default_tab: False leaves our page out and leads ``/web`` to the other one.
        title_override: Title of the window.
        state_cls: Shown in ``/schema``.
        mode: By default ``OPENENV_MODE``, else simulation.
        reset_observation_cls: Shown in ``/schema``, where a reset returns another class.

    Raises:
        ValueError: ``OPENENV_WEB_IDLE`` is not a positive number; and what `HTTPEnvServer` raises.
    """
    app = create_fastapi_app(
        env,
        action_cls,
        observation_cls,
        max_concurrent_envs,
        concurrency_config,
        env_name,
        state_cls,
        mode=mode,
        reset_observation_cls=reset_observation_cls,
    )
    server: HTTPEnvServer = app.state.openenv_server
    metadata = load_environment_metadata(env, env_name)
    title = title_override or get_gradio_display_title(metadata)
    quick_start = get_quick_start_markdown(metadata, action_cls, observation_cls)
    has_custom = gradio_builder is not None and custom.mount(
        app, gradio_builder, env, action_cls, observation_cls, metadata, title, quick_start
    )
    door = Door(AccessRules.from_environ().token)
    server.doors.append(door)
    visitors = Visitors(server.sessions, action_cls, _tools_of, _idle(server.concurrency_config))
    own = {"id": "custom", "label": custom_tab_name, "path": custom.PATH.lstrip("/") + "/"}
    tabs = [{"id": "playground", "label": "Playground", "path": None}, *([own] if has_custom else [])]
    cls = environment_class(env)
    config = {
        "title": title,
        "version": own_version(),
        "metadata": metadata.model_dump(),
        "quick_start": quick_start,
        "action": describe.action_schema(action_cls),
        "action_name": action_cls.__name__,
        "tool_actions": server.sessions.dispatcher.tool_actions,
        "chat": describe.is_chat(action_cls),
        "reset": describe.reset_schema(cls),
        "tools": _static_tools(cls),
        "tabs": tabs[::-1] if custom_tab_primary else tabs,
    }
    home = custom.PATH + "/" if has_custom and not show_default_tab else ""
    # Before the mount of the other page, whose path is below that of ours.
    Pages(visitors, door, metadata, config, home).add_to(app)
    _close_manager_with(app)
    return app


def get_gradio_display_title(metadata: EnvironmentMetadata | None, fallback: str = "OpenEnv Environment") -> str:
    """Title of the window."""
    return f"OpenEnv Agentic Environment: {metadata.name if metadata else fallback}"


def _idle(config: ConcurrencyConfig) -> float:
    raw = os.environ.get(IDLE_SETTING, "").strip()
    if not raw:
        return config.session_timeout or IDLE
    try:
        value = float(raw)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise ValueError(f"{IDLE_SETTING} must be a positive number of seconds, not {raw!r}")
    return value


def _static_tools(cls: type | None) -> list[dict[str, Any]] | None:
    """The tools of a class that declares them, which can be shown before anything is built."""
    from openenv_sandbox.server.tools import ToolEnvironment, tool_table

    if cls is None or not issubclass(cls, ToolEnvironment):
        return None
    return [spec.as_listing() for spec in tool_table(cls).values()]


async def _tools_of(session: "Session") -> list[dict[str, Any]] | None:
    def listing(env: Any) -> Any:
        lists = getattr(env, "tool_listing", None)
        return lists() if callable(lists) and callable(getattr(env, "call_tool", None)) else None

    try:
        tools: list[dict[str, Any]] | None = await session.call(listing)
    except Exception as error:  # the page has a form for free JSON all the same
        logger.warning("the tools of the environment could not be listed: %r", error)
        return None
    return tools


def _close_manager_with(app: FastAPI) -> None:
    manager = getattr(app.state, "openenv_web_manager", None)
    if manager is None:
        return
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: Any) -> AsyncIterator[Any]:
        async with inner(application) as state:
            try:
                yield state
            finally:
                await manager.aclose()

    app.router.lifespan_context = lifespan
