"""Several sandboxes from one that is warm: a snapshot of it, and a launch of each from that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from openenv_sandbox import pipeline, registry
from openenv_sandbox.errors import CapabilityError, UsageError
from openenv_sandbox.launcher import LaunchHandle, _Handle
from openenv_sandbox.lifecycle import finish
from openenv_sandbox.owner import Ownership, quietly
from openenv_sandbox.provider import Image
from openenv_sandbox.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    from openenv_sandbox.client.base import EnvClient
    from openenv_sandbox.events import Event
    from openenv_sandbox.provider import Prepared
    from openenv_sandbox.registry import Lease
    from openenv_sandbox.running import RunningSandbox

    Callback = Callable[[Event], object]

T = TypeVar("T")
ClientT = TypeVar("ClientT", bound="EnvClient[Any, Any, Any]")

# Of the sandbox itself, or already in the options of the provider that it has.
_NOT_HANDED_ON = frozenset({"image", "pull", "provider_options", "registry_auth"})


class ForkMethods:
    """What makes further sandboxes out of a `openenv_sandbox.RunningSandbox`."""

    @overload
    def fork(self, n: int, *, client: None = None, on_event: Callback | None = None) -> ForkHandle[RunningSandbox]: ...

    @overload
    def fork(self, n: int, *, client: type[ClientT], on_event: Callback | None = None) -> ForkHandle[ClientT]: ...

    def fork(self, n: int, *, client: type[Any] | None = None, on_event: Callback | None = None) -> ForkHandle[Any]:
        """``n`` further sandboxes with the present files of this one, each with its server ready.

        Files only, unless the backend's capability ``fork_memory`` says otherwise: what the server holds in memory,
        episodes included, is not in them, and each starts a server of its own. The handle is awaited, entered by
        ``async with`` (which ends all of them), or resolved by ``.sync()``; all of them come, or none. The snapshot
        behind them goes with the last of them.

        Args:
            n: How many.
            client: Give connected clients of this class; None gives the sandboxes.
            on_event: Called with each `Event` of theirs.

        Raises:
            CapabilityError: The backend takes no snapshots, or boots none.
            OpenEnvError: What `openenv_sandbox.launch` raises, of the first that failed.
        """
        return ForkHandle(self, n, client, on_event)  # type: ignore[arg-type]  # it is part of RunningSandbox alone


class ForkHandle(_Handle, Generic[T]):
    """Forks that have not been made yet; see `RunningSandbox.fork`."""

    _what = "fork"

    def __init__(self, origin: RunningSandbox, n: int, client: type[Any] | None, on_event: Callback | None) -> None:
        super().__init__()
        if n < 1:
            raise UsageError(f"fork({n}) makes nothing")
        self._origin, self._n, self._client, self._on_event = origin, n, client, on_event

    def __await__(self) -> Generator[Any, Any, list[T]]:
        return super().__await__()

    async def __aenter__(self) -> list[T]:
        made: list[T] = await super().__aenter__()
        return made

    def sync(self) -> BlockingForks:
        """Make them now; a list of their blocking faces, which ``with`` ends."""
        from openenv_sandbox import portal
        from openenv_sandbox.blocking_sandbox import BlockingSandbox

        self._once()
        made = portal.run_sync(self._made)
        if self._client is None:
            return BlockingForks(BlockingSandbox(running) for running in made)
        faces = BlockingForks(client.sync() for client in made)
        try:
            for face in faces:
                face.connect()
        except BaseException as error:
            faces.__exit__(type(error), error, None)
            raise
        return faces

    async def _go(self) -> list[Any]:
        made = await self._made()
        if self._client is not None:
            try:
                await _all([client._connect_async() for client in made])
            except BaseException:
                await finish(self._end(made), timeout=600)
                raise
        return made

    async def _end(self, result: list[Any]) -> None:
        done = await asyncio.gather(*(_close(one) for one in result), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    async def _made(self) -> list[Any]:
        """All of them, whose clients have not connected yet; or the first error, and nothing."""
        origin = self._origin
        caps = origin._provider.effective_capabilities()
        if not caps.snapshot or "snapshot" not in caps.images:
            raise CapabilityError(
                f"{origin.ref.provider} cannot fork: it {'boots' if caps.snapshot else 'takes'} no snapshots",
                field="snapshot",
                ref=origin.ref,
                hint="launch as many as you need from the image",
            )
        owner = origin._owner
        which, options = owner.lease.again() if isinstance(owner, Ownership) else (origin._provider, None)
        lease = await registry.acquire(which, options)
        try:
            kept = _Kept(lease, await origin.snapshot())
        except BaseException:
            await finish(lease.release(), timeout=10)
            raise
        journal = "off" if isinstance(owner, Ownership) and owner.journal.folder is None else None
        spec = origin.spec
        fields = {name: getattr(spec, name) for name in spec.model_fields_set - _NOT_HANDED_ON}
        image = Image("snapshot", kept.prepared.ref, config=kept.prepared.image)
        request = Request(image, self._client, which, options, None, self._on_event, journal, fields)
        try:
            made: list[Any] = await _all([self._one(request, kept) for _ in range(self._n)])
        except BaseException:
            await finish(kept.drop(), timeout=spec.timeouts.cleanup)
            raise
        kept.complete = True
        return made

    async def _one(self, request: Request, kept: _Kept) -> Any:
        if self._client is None:
            started = await pipeline.start(request, serve=True)
            result: Any = started.running
        else:
            handle = LaunchHandle(request, self._client)
            result = await handle._bound()
            assert handle._started is not None
            started = handle._started
        kept.users += 1
        started.owner.after = kept.let_go
        return result


class BlockingForks(list[Any]):
    """Blocking faces of forks; ``with`` ends all of them."""

    def __enter__(self) -> BlockingForks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from openenv_sandbox.creating import note

        for face in self:
            try:
                face.stop() if hasattr(face, "async_sandbox") else face.close()
            except Exception as second:
                if error is None:
                    error = second
                else:
                    note(error, str(second))
        if error is not None and kind is None:
            raise error


class _Kept:
    """The snapshot behind forks, and the right to drop it when none of them is left."""

    def __init__(self, lease: Lease, prepared: Prepared) -> None:
        self.lease, self.prepared = lease, prepared
        self.users, self.complete = 0, False

    async def let_go(self) -> None:
        self.users -= 1
        if self.complete and not self.users:
            await self.drop()

    async def drop(self) -> None:
        await quietly(self.lease.provider.drop(self.prepared))  # `openenv gc --images` finds what stays
        await self.lease.release()


async def _close(one: Any) -> None:
    from openenv_sandbox.running import RunningSandbox

    await (one.stop() if isinstance(one, RunningSandbox) else one._close_async())


async def _all(work: list[Any]) -> list[Any]:
    """Every result; or the first error when all have ended, and what came of the others is closed."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await finish(_undone(tasks), timeout=600)
        raise


async def _undone(tasks: list[asyncio.Future[Any]]) -> None:
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if result is not None and not isinstance(result, BaseException):
            await quietly(_close(result))
