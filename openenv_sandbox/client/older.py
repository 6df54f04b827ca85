"""`EnvClient.from_docker_image` and `EnvClient.from_env`, as older scripts call them, on our launcher.

    client = await EchoEnv.from_docker_image("echo-env:latest")
    client = EchoEnv.from_env("org/space").sync()

The handle is a coroutine that starts nothing before it is driven, and once. New code uses `EnvClient.launch`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from openenv_sandbox.errors import ConfigError
from openenv_sandbox.launcher import LaunchHandle, _Handle, launch
from openenv_sandbox.lifecycle import UNDO_S, finish, in_thread
from openenv_sandbox.options import near

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from types import TracebackType

    from openenv_sandbox.client.base import EnvClient
    from openenv_sandbox.client.sync import SyncEnvClient

ClientT = TypeVar("ClientT", bound="EnvClient[Any, Any, Any]")

SPACE_REGISTRY = "registry.hf.space"
"""Where the hub publishes the images of Spaces, as ``org-name:tag``."""


class StartHandle(_Handle, Coroutine[Any, Any, ClientT]):
    """A start that has not happened yet: await it, drive it as a coroutine, or call `sync`.

    Args:
        what: Name of the call, for messages.
        go: Starts and connects, in a loop.
        block: The same without one; returns the blocking client.
    """

    def __init__(
        self,
        what: str,
        go: Callable[[], Coroutine[Any, Any, ClientT]],
        block: Callable[[], SyncEnvClient[Any, Any, Any]],
    ) -> None:
        super().__init__()
        self._what, self._start, self._block = what, go, block
        self._driven: Coroutine[Any, Any, ClientT] | None = None

    def sync(self) -> SyncEnvClient[Any, Any, Any]:
        """Start now and return the connected blocking client."""
        self._once()
        return self._block()

    def __await__(self) -> Generator[Any, Any, ClientT]:
        return super().__await__()

    async def _go(self) -> ClientT:
        return await self._start()

    async def _end(self, result: Any) -> None:
        await result.close()

    def _coroutine(self) -> Coroutine[Any, Any, ClientT]:
        if self._driven is None:
            self._once()
            self._driven = self._start()
        return self._driven

    def send(self, value: Any) -> Any:
        """Drive it one step, as a task does."""
        return self._coroutine().send(value)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:
        """Raise inside it, as a cancelled task does."""
        return self._coroutine().throw(kind if value is None else value)

    def close(self) -> None:
        """Give it up; one that was never driven starts nothing."""
        if self._driven is not None:
            self._driven.close()


def from_docker_image(cls: type[ClientT], image: str, provider: Any, start: Mapping[str, Any]) -> StartHandle[ClientT]:
    """A client of a container of ``image``.

    Args:
        cls: Class of the client.
        image: The image's name.
        provider: Object with ``start_container(image, **start)``; None for the docker backend.
        start: ``env_vars`` and, for the docker backend, ``port`` (of this machine), ``workers`` and fields of the
            spec; for another provider whatever its method takes.

    Raises:
        ConfigError: An argument is unknown.
    """
    if provider is None:
        return _launched(cls, "from_docker_image", image, "docker", start)
    return _started(cls, "from_docker_image", provider, "start_container", (image,), start)


def from_env(
    cls: type[ClientT], repo_id: str, use_docker: bool, provider: Any, start: Mapping[str, Any]
) -> StartHandle[ClientT]:
    """A client of a Space: of its published image, or of its sources in a process of this machine.

    Args:
        cls: Class of the client.
        repo_id: ``org/name``.
        use_docker: Run the image; else the sources, which needs ``trust=True`` unless ``project_path`` names a folder.
        provider: Object with ``start_container`` or ``start``; None for the backends docker and local.
        start: ``env_vars``, ``port``, ``workers``; ``tag`` of the image; ``project_path`` of the sources.

    Raises:
        ConfigError: An argument is unknown or ``repo_id`` is no name of a Space.
    """
    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise ConfigError(f"{repo_id!r} does not name a Space", hint="write org/name")
    rest = dict(start)
    if use_docker:
        image = f"{SPACE_REGISTRY}/{repo_id.replace('/', '-').lower()}:{rest.pop('tag', None) or 'latest'}"
        return from_docker_image(cls, image, provider, rest)
    if provider is not None:
        return _started(cls, "from_env", provider, "start", (), rest)
    return _launched(cls, "from_env", rest.pop("project_path", None) or f"hf://{repo_id}", "local", rest)


def _launched(
    cls: type[ClientT], what: str, image: Any, backend: str, start: Mapping[str, Any]
) -> StartHandle[ClientT]:
    from openenv_sandbox.spec import SandboxSpec

    fields = dict(start)
    env = dict(fields.pop("env_vars", None) or {})
    if (workers := fields.pop("workers", None)) is not None:
        env["WORKERS"] = str(workers)
    port = fields.pop("port", None)
    if backend == "docker":
        fields["options"] = {"host_port": port} if port is not None else None
    elif port is not None:
        fields["port"] = port
    known = [*SandboxSpec.model_fields, "options", "profile", "journal", "on_event", "env_vars", "workers", "tag"]
    for name in fields:
        if name not in known:
            raise ConfigError(f"{what} has no argument {name!r}{near(name, known)}")
    fields["env"] = {**env, **fields.pop("env", {})}
    handle: LaunchHandle[ClientT] = launch(image, client=cls, provider=backend, **fields)
    return StartHandle(what, handle._go, handle.sync)


def _started(
    cls: type[ClientT], what: str, provider: Any, method: str, args: tuple[Any, ...], start: Mapping[str, Any]
) -> StartHandle[ClientT]:
    """By an object of the caller's own, whose methods block."""
    begin = getattr(provider, method, None)
    if begin is None:
        raise ConfigError(f"{type(provider).__name__} has no {method}()")

    def up() -> ClientT:
        url = str(begin(*args, **start)).rstrip("/")
        try:
            ready = getattr(provider, "wait_for_ready", None)
            if ready is not None:
                ready(url) if method == "start_container" else ready()
            client = cls(base_url=url)
        except BaseException:
            down()
            raise
        client._provider, client._provider_runs = provider, True
        return client

    def down() -> None:
        stop = getattr(provider, "stop_container", None) or getattr(provider, "stop", None)
        if stop is not None:
            stop()

    async def go() -> ClientT:
        client = await in_thread(up, undo=down)
        try:
            await client._connect_async()
        except BaseException:
            await finish(client._close_async(), timeout=UNDO_S)
            raise
        return client

    def block() -> SyncEnvClient[Any, Any, Any]:
        face = up().sync()
        try:
            face.connect()
        except BaseException:
            face.close()
            raise
        return face

    return StartHandle(what, go, block)
