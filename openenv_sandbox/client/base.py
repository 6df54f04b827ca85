"""`EnvClient`: one session with an environment server, awaited or blocking."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from openenv_sandbox.client.connection import Settings
from openenv_sandbox.client.core import ClientCore
from openenv_sandbox.client.parsing import declared_types, finish, payload_of, result_of, state_of
from openenv_sandbox.errors import ConfigError, ProtocolError
from openenv_sandbox.wire import messages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from openenv_sandbox.client.connection import Connection
    from openenv_sandbox.client.older import StartHandle
    from openenv_sandbox.client.result import Reply, StepReply, StepResult
    from openenv_sandbox.client.sync import SyncEnvClient
    from openenv_sandbox.launcher import LaunchHandle

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")

_MODES = ("simulation", "production")
_CONFIG = (
    "base_url",
    "connect_timeout_s",
    "message_timeout_s",
    "max_message_size_mb",
    "websocket_ping_interval_s",
    "websocket_ping_timeout_s",
    "mode",
    "headers",
)


class EnvClient(ClientCore, Generic[ActT, ObsT, StateT]):
    """One session with an environment server.

    Inside a running event loop every method returns a handle to be awaited (nothing is sent before), outside one the
    value. The first use decides for one of the two; `sync` gives the blocking client explicitly. A subclass says which
    types it speaks, ``class EchoEnv(EnvClient[EchoAction, EchoObservation, State])``, or overrides ``_step_payload``,
    ``_parse_result`` and ``_parse_state``. Without either, dicts go in and out.

    Args:
        base_url: Address of the server, ``http(s)`` or ``ws(s)``; path and query are kept.
        connect_timeout_s: From dialling to an open session, in seconds.
        message_timeout_s: Longest wait for one reply, in seconds; None waits as long as the session lives.
        max_message_size_mb: Largest message taken from the server, in 10^6 bytes.
        websocket_ping_interval_s: Silence after which a ping is sent, in seconds; None sends none.
        websocket_ping_timeout_s: Silence after a ping that ends the session, in seconds; None never ends it.
        provider: Object with ``start_container()`` or ``start()``, started at the first call when there is no address.
        mode: ``simulation`` or ``production``; default from ``OPENENV_CLIENT_MODE``.
        headers: Sent with the upgrade and with tool calls.

    Raises:
        ConfigError: An argument is malformed, or there is neither address nor provider.
    """

    action_type: ClassVar[Any] = None
    observation_type: ClassVar[Any] = None
    state_type: ClassVar[Any] = None
    _kinds: ClassVar[tuple[Any, Any, Any]] = (None, None, None)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("action", "observation", "state"):
            value = cls.__dict__.get(name)
            if isinstance(value, type):  # a declaration, not the method of that name
                setattr(cls, f"{name}_type", value)
                delattr(cls, name)
        cls._kinds = declared_types(cls, EnvClient)

    def __init__(
        self,
        base_url: str | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float | None = 60.0,
        max_message_size_mb: float = 100.0,
        websocket_ping_interval_s: float | None = 20.0,
        websocket_ping_timeout_s: float | None = 20.0,
        provider: Any = None,
        mode: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._mode = self._checked_mode(mode)
        settings = Settings(
            connect_timeout=connect_timeout_s,
            message_timeout=message_timeout_s,
            max_size=int(max_message_size_mb * 1_000_000),
            ping_interval=websocket_ping_interval_s or None,
            ping_timeout=websocket_ping_timeout_s or None,
        )
        self._config: dict[str, Any] = dict(
            zip(
                _CONFIG,
                (
                    base_url,
                    connect_timeout_s,
                    message_timeout_s,
                    max_message_size_mb,
                    websocket_ping_interval_s,
                    websocket_ping_timeout_s,
                    mode,
                    dict(headers or {}) or None,
                ),
                strict=True,
            )
        )
        self._sync_face: SyncEnvClient[ActT, ObsT, StateT] | None = None
        self._configure(base_url, settings, headers, provider)

    @staticmethod
    def _checked_mode(mode: str | None) -> str:
        text = (mode or os.environ.get("OPENENV_CLIENT_MODE") or "simulation").lower()
        if text not in _MODES:
            raise ConfigError(f"mode {text!r} is neither simulation nor production")
        return text

    # ------------------------------------------------------------------------------------------------ properties

    @property
    def base_url(self) -> str:
        """Address of the server."""
        return self._base_url

    @property
    def mode(self) -> str:
        """``simulation`` or ``production``."""
        return self._mode

    @property
    def sandbox(self) -> Any:
        """The sandbox this client was launched with; None when it was given an address."""
        return self._sandbox

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        return self._conn is not None and self._conn.lost is None

    @property
    def _ws(self) -> Connection | None:
        return self._conn

    @property
    def _ws_url(self) -> str:
        from openenv_sandbox.client.target import ws_url

        return ws_url(self._base_url)

    # --------------------------------------------------------------------------------------------------- methods

    def connect(self) -> Reply[Self]:
        """Open the session now instead of at the first call; returns the client.

        Raises:
            ConnectError: Nothing answered, or something else than an environment server; says what.
        """
        reply: Reply[Self] = self._call(self._connect_async, "connect")
        return reply

    def disconnect(self) -> Reply[None]:
        """End the session; what was launched for it stays."""
        reply: Reply[None] = self._call(self._disconnect_async, "disconnect")
        return reply

    def reset(self, **kwargs: Any) -> StepReply[ObsT]:
        """Begin an episode; a lost session is replaced by a new one.

        Args:
            kwargs: Passed to the environment (``seed``, ``episode_id``, its own).

        Raises:
            ConnectError: No session could be opened.
            CapacityError: Every session of the server is taken.
            StepTimeout: No answer in time.
        """
        reply: StepReply[ObsT] = self._call(lambda: self._reset_async(**kwargs), "reset")
        return reply

    def step(self, action: ActT, **kwargs: Any) -> StepReply[ObsT]:
        """Act once; never repeated by itself.

        Args:
            action: A model, dataclass or dict.
            kwargs: Accepted for older callers and not sent.

        Raises:
            SessionLost: The session ended, and the episode with it.
            StepTimeout: No answer in time; the session is closed.
            EnvironmentError_: The server answered with an error; see the tree in `openenv_sandbox.errors`.
        """
        reply: StepReply[ObsT] = self._call(lambda: self._step_async(action, **kwargs), "step")
        return reply

    def state(self) -> Reply[StateT]:
        """The environment's state.

        Raises:
            SessionLost: The session ended, and the episode with it.
        """
        reply: Reply[StateT] = self._call(self._state_async, "state")
        return reply

    def close(self) -> Reply[None]:
        """End the session and what was launched for it. May be called twice; a later call begins a new session."""
        reply: Reply[None] = self._call(self._close_async, "close")
        return reply

    def new_session(self) -> Reply[Self]:
        """A further client with a session of its own on the same server; closed with this one at the latest."""
        reply: Reply[Self] = self._call(self._new_session_async, "new_session")
        return reply

    def sync(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        """The blocking client of this session; the same object each time."""
        if self._sync_face is None:
            from openenv_sandbox.client.sync import SyncEnvClient

            self._sync_face = SyncEnvClient(self)
        return self._sync_face

    @classmethod
    def launch(cls, image: str | os.PathLike[str] | None = None, **kwargs: Any) -> LaunchHandle[Self]:
        """Launch a sandbox of ``image`` (default: this client's own) and connect: see `openenv_sandbox.launch`."""
        from openenv_sandbox.launcher import launch

        return launch(image, client=cls, **kwargs)

    @classmethod
    def from_docker_image(cls, image: str, provider: Any = None, **start: Any) -> StartHandle[Self]:
        """Older code's way to a container: see `openenv_sandbox.client.older`."""
        from openenv_sandbox.client.older import from_docker_image

        return from_docker_image(cls, image, provider, start)

    @classmethod
    def from_env(
        cls, repo_id: str, *, use_docker: bool = True, provider: Any = None, **start: Any
    ) -> StartHandle[Self]:
        """Older code's way to a Space of the hub: see `openenv_sandbox.client.older`."""
        from openenv_sandbox.client.older import from_env

        return from_env(cls, repo_id, use_docker, provider, start)

    # ------------------------------------------------------------------------------- one coroutine for both faces

    async def _connect_async(self) -> Self:
        await self._connect()
        return self

    async def _disconnect_async(self) -> None:
        await self._end_session()
        self._face = None

    async def _reset_async(self, **kwargs: Any) -> StepResult[ObsT]:
        return self._result(await self._request(messages.reset(kwargs), expect=messages.OBSERVATION, fresh=True))

    async def _step_async(self, action: ActT, **kwargs: Any) -> StepResult[ObsT]:
        return self._result(await self._request(messages.step(self._step_payload(action)), expect=messages.OBSERVATION))

    async def _state_async(self) -> StateT:
        return self._parse_state(await self._request(messages.state(), expect=messages.STATE) or {})

    async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message of the caller's own making; returns the whole reply."""
        kind = message.get("type")
        expect = messages.OBSERVATION if kind in (messages.RESET, messages.STEP) else str(kind)
        data = await self._request(message, expect=expect, fresh=kind == messages.RESET)
        return {"type": expect, "data": data}

    async def _new_session_async(self) -> Self:
        taken = inspect.signature(type(self).__init__).parameters
        loose = any(p.kind is p.VAR_KEYWORD for p in taken.values())
        config: dict[str, Any] = {**self._config, "base_url": self._base_url or None}
        child = type(self)(**{name: value for name, value in config.items() if loose or name in taken})
        child.allow_insecure = self.allow_insecure
        child._endpoint, child._refresh, child._token = self._endpoint, self._refresh, self._token
        child._sandbox, child._death, child._home = self._sandbox, self._death, self._home
        child._face = self._face
        self._children.add(child)
        await child._connect()
        return child

    def _result(self, payload: Any) -> StepResult[ObsT]:
        if not isinstance(payload, dict):
            raise ProtocolError("the server answered with an observation that is no object", code="PROTOCOL")
        result: StepResult[ObsT] = finish(self._parse_result(payload), payload)
        return result

    # ------------------------------------------------------------------------------------- overridden by subclasses

    def _step_payload(self, action: ActT) -> dict[str, Any]:
        """The fields of an action as they travel."""
        return payload_of(action)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ObsT]:
        """The result of an envelope ``{"observation", "reward", "done"[, "metadata"]}``."""
        return result_of(payload, self._types()[1])

    def _parse_state(self, payload: dict[str, Any]) -> StateT:
        """The state of its fields."""
        state: StateT = state_of(payload, self._types()[2])
        return state

    def _types(self) -> tuple[Any, Any, Any]:
        own = self.__dict__.get("__orig_class__")  # EnvClient[A, O, S](...) without a subclass
        if own is not None:
            action, observation, state = own.__args__
            return action, observation, state
        return self._kinds

    # ------------------------------------------------------------------------------------ contexts, pickling, repr

    async def __aenter__(self) -> Self:
        client: Self = await self._awaited(self._connect_async)
        return client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close_async()

    def __enter__(self) -> Self:
        client: Self = self._block(self._connect_async)
        return client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block(self._close_async, pin=False)

    def __getstate__(self) -> dict[str, Any]:
        if self._conn is not None or self._on_close is not None or self._provider is not None:
            raise TypeError(
                f"a connected {type(self).__name__} cannot be pickled: its session belongs to one process; "
                "pickle an unconnected client, or a function that makes one"
            )
        if self._headers or self._token:
            raise TypeError(
                f"a {type(self).__name__} with headers or a token cannot be pickled: they are secrets; "
                "pickle a function that reads them where the client is made"
            )
        kept = ("_base_url", "_settings", "_headers", "_provider", "_provider_runs", "_mode", "_config")
        mine = set(vars(self)) - set(vars(EnvClient("http://x")))
        return {name: value for name, value in vars(self).items() if name in kept or name in mine}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._sync_face = None
        self._reset_session()

    def _repr_html_(self) -> str:
        from openenv_sandbox import notebook

        return notebook.client(self)

    def __repr__(self) -> str:
        from openenv_sandbox.client.target import shown

        where = shown(self._base_url) if self._base_url else "not started"
        return f"<{type(self).__name__} {where} {'connected' if self.connected else 'not connected'}>"
