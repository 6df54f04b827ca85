"""Turning an environment into a FastAPI application."""

import inspect
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.routing import WebSocketRoute

from openenv_sandbox.models import Action, Observation, State
from openenv_sandbox.server.access import AccessMiddleware, AccessRules, Door
from openenv_sandbox.server.bodies import BodyLimit
from openenv_sandbox.server.calls import environment_class, factory_name
from openenv_sandbox.server.dispatch import Dispatcher
from openenv_sandbox.server.environment import Environment
from openenv_sandbox.server.http import add_routes, own_version
from openenv_sandbox.server.sessions import SessionManager, not_concurrent
from openenv_sandbox.server.tasks import add_task_routes
from openenv_sandbox.server.types import (
    ConcurrencyConfig,
    ConcurrencyConfigurationError,
    ServerCapacityStatus,
    ServerMode,
    SessionInfo,
)
from openenv_sandbox.server.ws import WebSocketEndpoint
from openenv_sandbox.wire import limits

# No postponed annotations in this module: packages look at str() of the annotation of `env` to choose what to pass.

logger = logging.getLogger("openenv.server")

CONCURRENT_CAPACITY = 64
"""Sessions of a class that declares SUPPORTS_CONCURRENT_SESSIONS, where no number is given."""


class HTTPEnvServer:
    """Serves an environment on an application of your own.

    Args:
        env: Makes one environment; called without arguments, once per session, in the session's thread.
        action_cls: What actions are validated as.
        observation_cls: Shown in ``/schema``; observations travel by their own class.
        max_concurrent_envs: Most sessions. By default 1, or 64 when the class declares SUPPORTS_CONCURRENT_SESSIONS.
        concurrency_config: The same and more; give one of the two.
        env_name: Name in the routes of tasks. By default that of the factory.
        state_cls: Shown in ``/schema``; states travel by their own class.
        reset_observation_cls: Shown in ``/schema``, where a reset returns another class.

    Raises:
        TypeError: ``env`` is not callable.
        ValueError: Both capacity arguments were given.
        ConcurrencyConfigurationError: More than one session of a class that does not declare it.
    """

    def __init__(
        self,
        env: Callable[[], Environment],  # type: ignore[type-arg]
        action_cls: type[Action],
        observation_cls: type[Observation],
        max_concurrent_envs: int | None = None,
        concurrency_config: ConcurrencyConfig | None = None,
        env_name: str | None = None,
        state_cls: type[State] = State,
        *,
        reset_observation_cls: type[Observation] | None = None,
    ) -> None:
        if not callable(env):
            raise TypeError(
                f"env must be a callable that makes an environment, such as its class, not a {type(env).__name__}"
            )
        self.env_name = env_name or factory_name(env)
        self.concurrency_config = _concurrency(env, max_concurrent_envs, concurrency_config)
        self.doors: list[Door] = []
        self._class = environment_class(env)
        self._models = {
            "action": action_cls,
            "observation": observation_cls,
            "state": state_cls,
            "reset_observation": reset_observation_cls or observation_cls,
        }
        self.sessions = SessionManager(env, self.concurrency_config, Dispatcher(action_cls, message_limit()))

    @property
    def max_concurrent_envs(self) -> int:
        """Most sessions at a time."""
        return self.concurrency_config.max_concurrent_envs

    @property
    def active_sessions(self) -> int:
        """Sessions that hold a slot now."""
        return self.sessions.active_sessions

    @property
    def is_concurrency_safe(self) -> bool:
        """Whether the environment's class declares SUPPORTS_CONCURRENT_SESSIONS; False when that is not known yet."""
        return bool(getattr(self._class, "SUPPORTS_CONCURRENT_SESSIONS", False))

    def get_capacity_status(self) -> ServerCapacityStatus:
        """How full the server is."""
        return self.sessions.status()

    def get_session_info(self, session_id: str) -> SessionInfo | None:
        """About one session; None when there is none of that id."""
        return self.sessions.info(session_id)

    def register_routes(self, app: FastAPI, mode: ServerMode | str | None = None) -> None:
        """Add all routes to an application, and the checks of token, Host and Origin.

        Args:
            app: The application; it must not have been started.
            mode: By default ``OPENENV_MODE``, else simulation.

        Raises:
            ValueError: No such mode.
        """
        chosen = server_mode(mode)
        self.sessions.mode = chosen.value
        app.add_middleware(BodyLimit, limit=self.sessions.dispatcher.max_message)
        app.add_middleware(AccessMiddleware, rules=AccessRules.from_environ(), doors=self.doors)
        app.router.routes.append(WebSocketRoute("/ws", WebSocketEndpoint(self.sessions), name="ws"))
        app.router.routes.append(WebSocketRoute("/mcp", WebSocketEndpoint(self.sessions, raw_rpc=True), name="ws_mcp"))
        models = {name: model for name, model in self._models.items() if inspect.isclass(model)}
        add_routes(app, self.sessions, models, chosen)
        add_task_routes(app, self.env_name, self.sessions.temporary)
        self._close_with(app)

    def _close_with(self, app: FastAPI) -> None:
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(application: Any) -> AsyncIterator[Any]:
            async with inner(application) as state:
                try:
                    yield state
                finally:
                    await self.sessions.aclose()

        app.router.lifespan_context = lifespan


def create_fastapi_app(
    env: Callable[[], Environment],  # type: ignore[type-arg]
    action_cls: type[Action],
    observation_cls: type[Observation],
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    env_name: str | None = None,
    state_cls: type[State] = State,
    *,
    mode: ServerMode | str | None = None,
    reset_observation_cls: type[Observation] | None = None,
) -> FastAPI:
    """An application that serves the environment; building it starts no thread and no loop.

    Arguments and errors are those of `HTTPEnvServer` and its `register_routes`.
    """
    server = HTTPEnvServer(
        env,
        action_cls,
        observation_cls,
        max_concurrent_envs,
        concurrency_config,
        env_name,
        state_cls,
        reset_observation_cls=reset_observation_cls,
    )
    app = FastAPI(
        title="OpenEnv Environment HTTP API",
        version="1.0.0",
        description=f"Reset, step and observe {server.env_name}. Episodes run over the WebSocket /ws.",
    )
    server.register_routes(app, mode)
    app.state.openenv_server = server
    logger.debug("openenv %s serves %s", own_version(), server.env_name)
    return app


def create_app(
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
    """An application that serves the environment.

    With ``ENABLE_WEB_INTERFACE`` set to true, 1 or yes it has a page at ``/web``, which the arguments between
    ``concurrency_config`` and ``state_cls`` shape: see `create_web_interface_app`. The others are those of
    `HTTPEnvServer`.
    """
    if os.environ.get("ENABLE_WEB_INTERFACE", "").strip().lower() in ("true", "1", "yes"):
        from openenv_sandbox.server.web.app import create_web_interface_app

        return create_web_interface_app(
            env,
            action_cls,
            observation_cls,
            env_name,
            max_concurrent_envs,
            concurrency_config,
            gradio_builder,
            custom_tab_name,
            custom_tab_primary,
            show_default_tab,
            title_override,
            state_cls,
            mode=mode,
            reset_observation_cls=reset_observation_cls,
        )
    return create_fastapi_app(
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


def server_mode(mode: ServerMode | str | None) -> ServerMode:
    """The mode meant by an argument, or by ``OPENENV_MODE``.

    Raises:
        ValueError: No such mode.
    """
    if isinstance(mode, ServerMode):
        return mode
    name = mode if mode is not None else os.environ.get("OPENENV_MODE", "")
    name = name.strip().lower() or ServerMode.SIMULATION.value
    try:
        return ServerMode(name)
    except ValueError:
        raise ValueError(f"mode must be 'simulation' or 'production', not {name!r}") from None


def message_limit() -> int:
    """Most bytes of one message: ``OPENENV_MAX_MESSAGE_MB``, else `limits.SERVER_MAX`.

    Raises:
        ValueError: The variable is not a positive number.
    """
    raw = os.environ.get(limits.SERVER_SETTING, "").strip()
    if not raw:
        return limits.SERVER_MAX
    try:
        value = float(raw)
    except ValueError:
        value = 0.0
    if value <= 0:
        raise ValueError(f"{limits.SERVER_SETTING} must be a positive number of MiB, not {raw!r}")
    return max(1, int(value * limits.MIB))


def _concurrency(
    env: Callable[[], Any], max_concurrent_envs: int | None, config: ConcurrencyConfig | None
) -> ConcurrencyConfig:
    if max_concurrent_envs is not None and config is not None:
        raise ValueError("give max_concurrent_envs or concurrency_config, not both")
    cls = environment_class(env)
    safe = bool(getattr(cls, "SUPPORTS_CONCURRENT_SESSIONS", False))
    if config is None:
        config = ConcurrencyConfig(
            max_concurrent_envs=max_concurrent_envs
            if max_concurrent_envs is not None
            else (CONCURRENT_CAPACITY if safe else 1)
        )
    if cls is not None and config.max_concurrent_envs > 1 and not safe:
        raise ConcurrencyConfigurationError(not_concurrent(cls.__name__, config))
    return config
