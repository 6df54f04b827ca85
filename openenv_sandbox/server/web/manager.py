"""The one shared environment of a page that an environment's author builds himself."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from openenv_sandbox.server.calls import Calls
from openenv_sandbox.server.environment import Environment, EnvironmentMetadata
from openenv_sandbox.server.serialization import deserialize_action_with_preprocessing
from openenv_sandbox.server.web.episode import MAX_ACTION_LOGS, Episode, EpisodeState, View, plain_action
from openenv_sandbox.server.worker import Worker, settle
from openenv_sandbox.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openenv_sandbox.models import Action, Observation

logger = logging.getLogger("openenv.server")


class WebInterfaceManager:
    """Drives one environment for everybody who opens a page; it is outside the count of sessions.

    Args:
        env: The environment, or what makes one.
        action_cls: What actions are validated as.
        observation_cls: For the page that is built.
        metadata: By default named after ``env``.

    Attributes:
        env: The environment, which is there as long as the manager is.
        action_cls: As given.
        observation_cls: As given.
        metadata: What the environment says about itself.
        connected_clients: Sockets that get every state.
    """

    MAX_ACTION_LOGS = MAX_ACTION_LOGS

    def __init__(
        self,
        env: Environment[Any, Any, Any] | Callable[[], Environment[Any, Any, Any]],
        action_cls: type[Action],
        observation_cls: type[Observation],
        metadata: EnvironmentMetadata | None = None,
    ) -> None:
        made: Any = env() if not isinstance(env, Environment) and callable(env) else env
        self.env = made
        self.action_cls = action_cls
        self.observation_cls = observation_cls
        name = type(made).__name__
        self.metadata = metadata or EnvironmentMetadata(name=name, description=f"{name} environment")
        self.connected_clients: list[Any] = []
        self._calls = Calls(made)
        self._episode = Episode()
        self._worker = Worker("openenv-web")

    @property
    def episode_state(self) -> EpisodeState:
        """Where the episode is."""
        return self._episode.as_state()

    async def reset_environment(self, reset_kwargs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Start an episode; arguments that the environment does not take are left out.

        Returns:
            ``observation``, ``reward``, ``done`` as JSON types.
        """
        view = await self._view(await self._run(self._calls.reset.inline, self._calls.reset, (), reset_kwargs or {}))
        self._episode = Episode()
        self._episode.begin(view, reset_kwargs or {})
        return await self._told(view)

    async def step_environment(self, action_data: Mapping[str, Any]) -> dict[str, Any]:
        """Take one action, given as plain data.

        Returns:
            ``observation``, ``reward``, ``done`` as JSON types.

        Raises:
            pydantic.ValidationError: It is no action.
        """
        action = deserialize_action_with_preprocessing(action_data, self.action_cls)
        view = await self._view(await self._run(self._calls.step.inline, self._calls.step, (action,), None))
        self._episode.started = True  # some environments need no reset
        self._episode.add(view, action_data, plain_action(action, action_data))
        return await self._told(view)

    def get_state(self) -> dict[str, Any]:
        """The environment's state as JSON types; whatever reading it raises is raised here."""
        state: dict[str, Any] = codec.loads(codec.dumps(codec.fields_of(self._calls.state())))
        return state

    async def connect_websocket(self, websocket: Any) -> None:
        """Accept a socket and send it every state from now on."""
        await websocket.accept()
        self.connected_clients.append(websocket)
        await websocket.send_text(self._update())

    async def disconnect_websocket(self, websocket: Any) -> None:
        """Forget a socket."""
        if websocket in self.connected_clients:
            self.connected_clients.remove(websocket)

    async def aclose(self) -> None:
        """Close the environment."""
        close = getattr(self.env, "close", None)
        if close is not None:
            await self._run(inspect.iscoroutinefunction(close), lambda kwargs: close(), (), None)
        self._worker.stop()

    async def _run(self, inline: bool, method: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        if inline:
            return await settle(lambda: method(*args, kwargs=kwargs))
        return await self._worker.run(lambda: method(*args, kwargs=kwargs))

    async def _view(self, observation: Any) -> View:
        def look(kwargs: Any) -> View:
            return View(self.env, observation, self._calls.state)

        view: View = await self._run(self._calls.state_inline, look, (), None)
        return view

    async def _told(self, view: View) -> dict[str, Any]:
        update = self._update() if self.connected_clients else ""
        for client in list(self.connected_clients):
            try:
                await client.send_text(update)
            except Exception as error:  # each server has its own way of saying that the peer is gone
                logger.debug("a page is gone: %r", error)
                await self.disconnect_websocket(client)
        envelope: dict[str, Any] = codec.loads(view.raw)
        return envelope

    def _update(self) -> str:
        return codec.dumps({"type": "state_update", "episode_state": self.episode_state.model_dump()}).decode()
