"""Launching, from the outside: `launch`, `sandbox` and `attach`, each awaitable, ``async with``, and ``.sync()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from openenv_sandbox import pipeline
from openenv_sandbox.errors import UsageError
from openenv_sandbox.lifecycle import finish
from openenv_sandbox.owner import live_refs as live_refs
from openenv_sandbox.request import Request

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine, Generator, Mapping
    from types import TracebackType

    from pydantic import BaseModel

    from openenv_sandbox.blocking_sandbox import BlockingSandbox
    from openenv_sandbox.client.base import EnvClient
    from openenv_sandbox.client.generic import GenericEnvClient
    from openenv_sandbox.client.sync import SyncEnvClient
    from openenv_sandbox.events import Event
    from openenv_sandbox.provider import SandboxProvider, SandboxRef
    from openenv_sandbox.running import RunningSandbox

    Provider = str | type[SandboxProvider] | SandboxProvider
    Options = BaseModel | Mapping[str, Any]
    Callback = Callable[[Event], object]

ClientT = TypeVar("ClientT", bound="EnvClient[Any, Any, Any]")

__all__ = ["AttachHandle", "LaunchHandle", "SandboxHandle", "attach", "launch", "live_refs", "sandbox"]


class _Handle:
    """Something that happens once: by ``await``, ``async with`` or ``.sync()``."""

    _what = "launch"

    def __init__(self) -> None:
        self._used = False
        self._result: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self._what}() has not happened yet, so there is no {name!r}: write `await {self._what}(...)`, "
            f"`async with {self._what}(...) as …`, or `{self._what}(...).sync()`"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'used' if self._used else 'not started'}>"

    def _once(self) -> None:
        if self._used:
            raise UsageError(
                f"this {self._what}() was used already; each handle stands for one sandbox",
                hint=f"call {self._what}() again for another",
            )
        self._used = True

    async def _go(self) -> Any:
        raise AssertionError

    async def _end(self, result: Any) -> None:
        raise AssertionError

    def __await__(self) -> Generator[Any, Any, Any]:
        self._once()
        return self._go().__await__()

    async def __aenter__(self) -> Any:
        self._once()
        self._result = await self._go()
        return self._result

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Every wait in here is bounded by a timer of its own; this one only ends a defect.
        result = await finish(self._end(self._result), timeout=600)
        if result.error is None:
            return
        if error is None:
            raise result.error
        from openenv_sandbox.creating import note

        note(error, str(result.error))

    def __enter__(self) -> Any:
        raise UsageError(
            f"{self._what}() has no plain `with`", hint=f"write `with {self._what}(...).sync() as …` or `async with`"
        )

    def __exit__(self, *_: object) -> None:
        return


class LaunchHandle(_Handle, Generic[ClientT]):
    """A launch that has not happened yet; see `launch`."""

    def __init__(self, request: Request, client: type[ClientT]) -> None:
        super().__init__()
        self._request, self._client = request, client
        self._started: pipeline.Started | None = None

    def __await__(self) -> Generator[Any, Any, ClientT]:
        return super().__await__()

    async def __aenter__(self) -> ClientT:
        client: ClientT = await super().__aenter__()
        return client

    def sync(self) -> SyncEnvClient[Any, Any, Any]:
        """Launch now and return the blocking client; close it, or use it by ``with``."""
        from openenv_sandbox import portal

        self._once()
        client = portal.run_sync(self._bound)
        face = client.sync()
        try:
            face.connect()
        except BaseException as error:
            self._close_after(face, error)
            raise
        self._connected()
        return face

    def _close_after(self, face: SyncEnvClient[Any, Any, Any], error: BaseException) -> None:
        from openenv_sandbox.creating import note

        try:
            face.close()
        except Exception as second:
            note(error, str(second))

    async def _go(self) -> ClientT:
        client = await self._bound()
        try:
            await client._connect_async()
        except BaseException as error:
            from openenv_sandbox.creating import note

            result = await finish(client._close_async(), timeout=600)
            if result.error is not None:
                note(error, str(result.error))
            raise
        self._connected()
        return client

    def _connected(self) -> None:
        if self._started is not None:
            self._started.owner.reporter.emit("connected")

    async def _end(self, result: Any) -> None:
        await result.close()

    async def _bound(self) -> ClientT:
        """A client that knows its sandbox and has not connected yet."""
        started = self._started = await pipeline.start(self._request, serve=True)
        endpoint, running, owner = started.endpoint, started.running, started.owner
        assert endpoint is not None
        try:
            client = self._client(base_url=endpoint.url, message_timeout_s=owner.spec.timeouts.step)
            client._bind(
                endpoint,
                refresh=running._way,
                token=started.token,
                sandbox=running,
                on_close=running.stop,
                death=owner.death,
            )
            owner.count_use(client, "_request")
        except BaseException:
            await finish(running.stop(), timeout=owner.spec.timeouts.cleanup + 5)
            raise
        return client


class SandboxHandle(_Handle):
    """A sandbox that has not been started yet; see `sandbox`."""

    _what = "sandbox"

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._request = request

    def __await__(self) -> Generator[Any, Any, RunningSandbox]:
        return super().__await__()

    async def __aenter__(self) -> RunningSandbox:
        running: RunningSandbox = await super().__aenter__()
        return running

    def sync(self) -> BlockingSandbox:
        """Start it now and return its blocking face; stop it, or use it by ``with``."""
        from openenv_sandbox import portal
        from openenv_sandbox.blocking_sandbox import BlockingSandbox

        self._once()
        return BlockingSandbox(portal.run_sync(self._go))

    async def _go(self) -> RunningSandbox:
        return (await pipeline.start(self._request, serve=False)).running

    async def _end(self, result: Any) -> None:
        await result.stop()


class AttachHandle(SandboxHandle):
    """A sandbox of another process that has not been taken over yet; see `attach`."""

    _what = "attach"

    def __init__(self, make: Callable[[], Coroutine[Any, Any, RunningSandbox]], owned: bool) -> None:
        _Handle.__init__(self)
        self._make, self._owned = make, owned

    async def _go(self) -> RunningSandbox:
        return await self._make()

    async def _end(self, result: Any) -> None:
        await (result.stop() if self._owned else result.aclose())


@overload
def launch(
    image: str | os.PathLike[str] | None = None,
    *,
    client: type[ClientT],
    provider: Provider | None = None,
    options: Options | None = None,
    profile: str | None = None,
    on_event: Callback | None = None,
    journal: str | None = None,
    **spec: Any,
) -> LaunchHandle[ClientT]: ...


@overload
def launch(
    image: str | os.PathLike[str],
    *,
    client: None = None,
    provider: Provider | None = None,
    options: Options | None = None,
    profile: str | None = None,
    on_event: Callback | None = None,
    journal: str | None = None,
    **spec: Any,
) -> LaunchHandle[GenericEnvClient]: ...


def launch(
    image: str | os.PathLike[str] | None = None,
    *,
    client: type[Any] | None = None,
    provider: Provider | None = None,
    options: Options | None = None,
    profile: str | None = None,
    on_event: Callback | None = None,
    journal: str | None = None,
    **spec: Any,
) -> LaunchHandle[Any]:
    """Run an environment image in a sandbox and get a connected client.

    The handle is awaited, entered by ``async with`` (which closes the client and deletes the sandbox), or resolved by
    ``.sync()``. Whatever happens before the client is there, nothing is left behind.

    Args:
        image: Folder, registry ref, ``template:ID`` or ``snapshot:ID``; None for the client's own.
        client: The client class; None for `GenericEnvClient`.
        provider: Name of a backend or profile, a class or an instance; None for the configured one.
        options: Options of the backend, over those that are configured.
        profile: A profile of the configuration.
        on_event: Called with each `Event`.
        journal: ``on``, ``off`` or ``network``; None for what is configured.
        spec: Fields of `SandboxSpec`: ``env``, ``secrets``, ``resources``, ``network``, ``timeouts``, …

    Raises:
        ConfigError, ImageError, TrustError, UnknownProvider, MissingExtraError, CapabilityError: Before anything is
            created.
        BuildError: Preparing the image failed.
        CreateTimeout, QuotaExceeded, RateLimited, AuthError, ProviderUnavailable, ProviderError,
            CircuitOpen: No sandbox.
        ServerExited, ReadyTimeout, EndpointError, SandboxGone: A sandbox, but no server.
        ConnectError: A server, but no session.
        JournalError: The journal cannot be written, so nothing was created.
    """
    from openenv_sandbox.client.generic import GenericEnvClient

    request = Request(image, client, provider, options, profile, on_event, journal, spec)
    return LaunchHandle(request, client or GenericEnvClient)


def sandbox(
    image: str | os.PathLike[str],
    *,
    provider: Provider | None = None,
    options: Options | None = None,
    profile: str | None = None,
    on_event: Callback | None = None,
    journal: str | None = None,
    **spec: Any,
) -> SandboxHandle:
    """Run an image in a sandbox, for commands and files; the server in it is started and not waited for.

    Arguments and errors are those of `launch`; ``async with`` deletes the sandbox at the end.
    """
    return SandboxHandle(Request(image, None, provider, options, profile, on_event, journal, spec))


def attach(
    ref: SandboxRef,
    *,
    options: Options | None = None,
    profile: str | None = None,
    on_event: Callback | None = None,
    own: bool = True,
    journal: str | None = None,
    **spec: Any,
) -> AttachHandle:
    """Take over a sandbox that another process made.

    Args:
        ref: Its name, e.g. ``client.sandbox.ref``; secrets it lacks are taken from this user's journal.
        options: Options of the backend.
        profile: A profile of the configuration.
        on_event: Called with each `Event`.
        own: Answer for its end from now on: it is kept alive, and ``async with`` deletes it. Else it is only used.
        journal: ``on``, ``off`` or ``network``; None for what is configured.
        spec: What to assume about it, and ask of it: ``port``, ``timeouts``, …

    Raises:
        SandboxGone: It does not exist.
        CapabilityError: The backend cannot attach.
        ConfigError: ``ref`` belongs to another account, namespace or daemon than the configured one.
    """
    from openenv_sandbox.attaching import take_over

    return AttachHandle(lambda: take_over(ref, options, profile, on_event, own, spec, journal=journal), own)
