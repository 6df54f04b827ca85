"""`SyncEnvClient`: the blocking face of a client, usable from any thread, one call at a time."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from openenv_sandbox.client.base import EnvClient
from openenv_sandbox.client.core import driving
from openenv_sandbox.client.handles import Handle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from typing_extensions import Self

    from openenv_sandbox.client.result import StepResult

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")


class SyncEnvClient(Generic[ActT, ObsT, StateT]):
    """The blocking client of one session.

    Steps go over a blocking socket in the calling thread. Whatever else the wrapped client has is passed through;
    its coroutine methods run to their end in the same session.

    Args:
        async_client: The client whose session this is.
    """

    def __init__(self, async_client: EnvClient[ActT, ObsT, StateT]) -> None:
        self._client = async_client
        kind = type(async_client)
        # An override of a public method is honoured; without one a call costs no detour.
        self._plain_reset = kind.reset is EnvClient.reset and kind._reset_async is EnvClient._reset_async
        self._plain_step = kind.step is EnvClient.step and kind._step_async is EnvClient._step_async
        self._plain_state = kind.state is EnvClient.state and kind._state_async is EnvClient._state_async

    @property
    def async_client(self) -> EnvClient[ActT, ObsT, StateT]:
        """The client this one wraps."""
        return self._client

    @property
    def sandbox(self) -> Any:
        """The blocking face of the sandbox this client was launched with; None when it was given an address."""
        running = self._client.sandbox
        if running is None:
            return None
        from openenv_sandbox.blocking_sandbox import BlockingSandbox

        return BlockingSandbox(running)

    def connect(self) -> Self:
        """Open the session now instead of at the first call. Raises what `EnvClient.connect` raises."""
        self._run(self._client.connect)
        return self

    def disconnect(self) -> None:
        """End the session; what was launched for it stays."""
        self._run(self._client.disconnect)

    def reset(self, **kwargs: Any) -> StepResult[ObsT]:
        """Begin an episode. Raises what `EnvClient.reset` raises."""
        result: StepResult[ObsT]
        if self._plain_reset:
            result = self._client._block(lambda: self._client._reset_async(**kwargs))
        else:
            result = self._run(self._client.reset, **kwargs)
        return result

    def step(self, action: ActT, **kwargs: Any) -> StepResult[ObsT]:
        """Act once. Raises what `EnvClient.step` raises."""
        result: StepResult[ObsT]
        if self._plain_step:
            result = self._client._block(lambda: self._client._step_async(action))
        else:
            result = self._run(self._client.step, action, **kwargs)
        return result

    def state(self) -> StateT:
        """The environment's state. Raises what `EnvClient.state` raises."""
        state: StateT
        if self._plain_state:
            state = self._client._block(self._client._state_async)
        else:
            state = self._run(self._client.state)
        return state

    def close(self) -> None:
        """End the session and what was launched for it. May be called twice."""
        self._client._block(self._client._close_async, pin=False)

    def new_session(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        """A further blocking client with a session of its own on the same server."""
        child: EnvClient[ActT, ObsT, StateT] = self._run(self._client._new_session_async)
        return child.sync()

    def sync(self) -> Self:
        """This client: it is blocking already."""
        return self

    def _run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the wrapped client, whatever its kind, and return its final value."""
        client = self._client
        client._check_process()
        with client._lock:
            client._pin("sync")
            mark = driving.set(True)
            try:
                value = fn(*args, **kwargs)
                if isinstance(value, Handle):
                    value = value.resolve()
                elif inspect.isawaitable(value):
                    value = _finish(client, value)
            finally:
                driving.reset(mark)
        return self if value is client else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._client, name)
        if not callable(value) or name.startswith("_") or inspect.isclass(value):
            return value
        if inspect.isasyncgenfunction(value) or not inspect.ismethod(value):
            return value

        @functools.wraps(value)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._run(value, *args, **kwargs)

        return call

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _of, (self._client,)

    def _repr_html_(self) -> str:
        return self._client._repr_html_()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._client!r}>"


def _of(client: EnvClient[Any, Any, Any]) -> SyncEnvClient[Any, Any, Any]:
    return client.sync()


def _finish(client: EnvClient[Any, Any, Any], value: Awaitable[Any]) -> Any:
    """Run a subclass's coroutine on a loop of this client's own; the session underneath stays the blocking one."""

    async def main() -> Any:
        return await value

    def run() -> Any:
        loop = client._own_loop
        if loop is None:
            loop = client._own_loop = asyncio.new_event_loop()
            weakref.finalize(client, loop.close)
        task = loop.create_task(main())
        try:
            return loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # Ctrl-C: let it clean up after itself
                task.cancel()
                loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    # A notebook cell: its loop stands still while a thread beside it runs ours.
    outcome: list[Any] = []
    context = contextvars.copy_context()

    def beside() -> None:
        try:
            outcome.extend((True, context.run(run)))
        except BaseException as error:
            outcome.extend((False, error))

    thread = threading.Thread(target=beside, daemon=True, name="openenv-sync")
    thread.start()
    thread.join()
    if outcome[0]:
        return outcome[1]
    raise outcome[1]
