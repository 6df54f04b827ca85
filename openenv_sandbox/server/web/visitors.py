"""Visitors of the page: each has an environment of his own, built at his first reset, and any number of open tabs."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from pydantic import ValidationError

from openenv_sandbox.errors import CapacityError, ProtocolError, SerializationError
from openenv_sandbox.server.serialization import deserialize_action_with_preprocessing
from openenv_sandbox.server.web.episode import Episode, View, plain_action, told
from openenv_sandbox.server.worker import deliver
from openenv_sandbox.wire import codec, messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

    from openenv_sandbox.models import Action
    from openenv_sandbox.server.session import Session
    from openenv_sandbox.server.sessions import SessionManager
    from openenv_sandbox.server.web.viewer import Viewer

T = TypeVar("T")

AWAY = 120.0
"""Seconds an environment is kept after the last tab of its visitor has closed."""

SHARED = "shared"
"""Id of the one visitor that all callers without a cookie are."""


class NotReset(ProtocolError):
    """A step or a state was asked for before the first reset."""


class Visitor:
    """A person, or what stands for one: his session, its episode, and who looks at it.

    To the session he is what a socket is: it ends with him, and he is told when it ends.
    """

    def __init__(self, visitor_id: str, visitors: Visitors) -> None:
        self.id = visitor_id
        self.episode = Episode()
        self.view: View | None = None
        self.frame = ""
        self.tools: list[dict[str, Any]] | None = None
        self.viewers: set[Viewer] = set()
        self.session: Session | None = None
        self._told_of_end: set[asyncio.Future[None]] = set()
        self.doing: str | None = None
        self.note: str | None = None
        self._visitors = visitors
        self._lock = asyncio.Lock()
        self._used = time.monotonic()
        self._left: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # -- what he does -------------------------------------------------------------------------------------------

    async def reset(self, kwargs: Mapping[str, Any]) -> bytes:
        """Start an episode, in a new environment if he has none.

        Returns:
            The observation as JSON.

        Raises:
            CapacityError: No slot is free.
            FactoryError: The environment could not be built.
            SerializationError: The observation has no JSON form, or is too large.
        """
        async with self._turn("reset"):
            session = self.session or await self._open()
            view = await self._unless_closed(self._reset(session, kwargs))
            self.episode = Episode()
            self.episode.begin(view, kwargs)
            self._show(view)
        self._tell(episode=self._episode_message(), now=view)
        return view.raw

    async def _open(self) -> Session:
        self.session = await self._visitors.manager.open(self)
        return self.session

    async def _reset(self, session: Session, kwargs: Mapping[str, Any]) -> View:
        view = await self._look(session, await session.reset(kwargs))
        self.tools = await self._visitors.tools_of(session)
        return view

    async def step(self, sent: Mapping[str, Any]) -> bytes:
        """Take an action.

        Returns:
            The observation as JSON.

        Raises:
            NotReset: There is no environment yet, or no longer.
            pydantic.ValidationError: It is no action.
            SerializationError: The observation has no JSON form, or is too large.
        """
        self._open_session()
        async with self._turn("step"):
            action, view = await self._unless_closed(self._step(self._open_session(), sent))
            entry = self.episode.add(view, sent, plain_action(action, sent))
            self._show(view)
        self._tell(entry=entry, now=view)
        return view.raw

    async def _step(self, session: Session, sent: Mapping[str, Any]) -> tuple[Any, View]:
        action_cls = self._visitors.action_cls
        action = await session.call(lambda _: deserialize_action_with_preprocessing(sent, action_cls))
        return action, await self._look(session, await session.step(action))

    async def say(self, message: Any) -> bytes:
        """Take the action that a chat message stands for. Raises what `step` raises."""
        call = self._open_session().call(partial(_action_of_message, message))
        return await self.step(await self._unless_closed(call))

    async def state(self) -> bytes:
        """The environment's state as JSON.

        Raises:
            NotReset: There is no environment yet, or no longer.
        """
        state = await self._unless_closed(self._open_session().state())
        return codec.dumps(None if state is None else codec.fields_of(state))

    def end(self, note: str | None = None) -> None:
        """Close his environment and free its slot; the episode stays to be looked at."""
        session = self.session
        if session is not None:
            self._lose(note)
            self._visitors.manager.leave(session, self)
        self.rest()

    def close(self, code: int, reason: str) -> None:
        """The server has ended the session."""
        self._lose(f"The environment was closed: {reason}. Reset starts a new one.")

    def _lose(self, note: str | None) -> None:
        self.session, self.note = None, note
        for ended in self._told_of_end:
            deliver(ended.get_loop(), _resolve, ended)
        self._tell()

    async def _unless_closed(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something in the session, which is never answered once that has ended."""
        ended = asyncio.get_running_loop().create_future()
        self._told_of_end.add(ended)
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise NotReset("The environment was closed meanwhile: reset first.", code="NOT_RESET")
            return task.result()
        finally:
            self._told_of_end.discard(ended)
            task.cancel()

    @asynccontextmanager
    async def _turn(self, doing: str) -> AsyncIterator[None]:
        async with self._lock:
            self._used = time.monotonic()
            self.doing, self.note = doing, None
            self._tell()
            failed = True
            try:
                yield
                failed = False
            except Exception as error:
                if not isinstance(error, (CapacityError, NotReset, ValidationError)):
                    self.note = f"{doing.capitalize()} failed: {told(error)}"
                raise
            finally:
                self.doing = None
                self._used = time.monotonic()
                self._arm()
                if failed:  # else the caller tells what has come of it
                    self._tell()

    def _open_session(self) -> Session:
        if self.session is None:
            raise NotReset("There is no environment yet: reset first.", code="NOT_RESET")
        return self.session

    async def _look(self, session: Session, observation: Any) -> View:
        view: View = await session.call(lambda env: View(env, observation, session.calls.state))
        limit = self._visitors.manager.dispatcher
        if len(view.raw) > limit.max_message:
            raise SerializationError(limit.too_large(len(view.raw))["data"]["message"], code=messages.MESSAGE_TOO_LARGE)
        return view

    def _show(self, view: View) -> None:
        self.view = view
        self.frame = secrets.token_urlsafe(12) if view.html else ""

    # -- who looks ----------------------------------------------------------------------------------------------

    def join(self, viewer: Viewer) -> None:
        """A tab has opened: tell it everything."""
        self.viewers.add(viewer)
        self._left = None
        if viewer.live:
            viewer.push(self._update(owner=viewer.owner, episode=self._episode_message(), now=self.view))
        else:
            viewer.push(self._state_update())

    def part(self, viewer: Viewer) -> None:
        """A tab has closed."""
        self.viewers.discard(viewer)
        if not self.viewers:
            self._left = time.monotonic()
            self._arm()
        self.rest()

    def _tell(self, **changes: Any) -> None:
        """Send what has changed to all tabs."""
        if not self.viewers:
            return
        small = self._update(**changes)
        whole = self._state_update() if changes and any(not viewer.live for viewer in self.viewers) else None
        for viewer in self.viewers:
            if viewer.live:
                viewer.push(small)
            elif whole is not None:
                viewer.push(whole)

    def _update(self, **changes: Any) -> bytes:
        """A message for live tabs; an observation goes into it as the JSON that it is already."""
        view = changes.get("now")
        message = {"type": "update", "status": self._status(), **changes}
        if view is None:
            return codec.dumps(message)
        try:
            return orjson.dumps({**message, "now": self._now_message(view, orjson.Fragment(view.raw))})
        except TypeError:  # half a character in a text, which it refuses
            return codec.dumps({**message, "now": self._now_message(view, codec.loads(view.raw))})

    def _state_update(self) -> bytes:
        return codec.dumps({"type": "state_update", "episode_state": self.episode.as_state().model_dump()})

    def _status(self) -> dict[str, Any]:
        return {"open": self.session is not None, "doing": self.doing, "note": self.note}

    def _episode_message(self) -> dict[str, Any]:
        episode = self.episode
        return {
            "started": episode.started,
            "id": episode.episode_id,
            "arguments": episode.reset_kwargs,
            "entries": episode.entries,
        }

    def _now_message(self, view: View, envelope: Any) -> dict[str, Any]:
        return {
            "envelope": envelope,
            "state": view.state,
            "state_error": view.state_error,
            "frame": self.frame,
            "buttons": view.buttons,
            "troubles": view.troubles,
            "tools": self.tools,
        }

    # -- how long he is remembered ------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.session is None:
            return
        left = self._deadline() - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(left, 0.0), self._check_idle)

    def _deadline(self) -> float:
        deadline = self._used + self._visitors.idle
        return deadline if self._left is None else min(deadline, max(self._left, self._used) + AWAY)

    def _check_idle(self) -> None:
        session = self.session
        if session is None:
            return
        if session.busy:
            self._used = time.monotonic()
        if self.doing is not None:
            return  # it arms the timer when it ends
        if self._deadline() > time.monotonic():
            self._arm()
            return
        self.end(f"The environment was closed after {self._visitors.idle:g} s without an action. Reset starts anew.")

    def rest(self) -> None:
        """Be forgotten, unless there is a tab or an environment to remember him for."""
        if self.session is None and not self.viewers and self.doing is None:
            self._visitors.forget(self)


class Visitors:
    """All visitors of a server.

    Args:
        manager: The sessions of the server; a visitor's environment takes one of its slots.
        action_cls: What actions are validated as.
        tools_of: Lists the tools of a session's environment; None where it has none.
        idle: Seconds without an action after which an environment is closed.
    """

    def __init__(
        self,
        manager: SessionManager,
        action_cls: type[Action],
        tools_of: Callable[[Session], Any],
        idle: float,
    ) -> None:
        self.manager = manager
        self.action_cls = action_cls
        self.tools_of = tools_of
        self.idle = idle
        self._known: dict[str, Visitor] = {}
        self._secret = secrets.token_bytes(32)

    def find(self, visitor_id: str) -> Visitor | None:
        """The visitor of that id, if there is anything to remember him for."""
        return self._known.get(visitor_id)

    def get(self, visitor_id: str) -> Visitor:
        """The visitor of that id, who is new unless he has a tab or an environment; `Visitor.rest` forgets him."""
        visitor = self._known.get(visitor_id)
        if visitor is None:
            visitor = self._known[visitor_id] = Visitor(visitor_id, self)
        return visitor

    def watch_name(self, visitor_id: str) -> str:
        """The name under which a visitor shares his episode."""
        return hmac.new(self._secret, visitor_id.encode(), hashlib.sha256).hexdigest()[:32]

    def watched(self, watch: str) -> Visitor | None:
        """The visitor who shares his episode under that name."""
        return next((visitor for visitor in self._known.values() if self.watch_name(visitor.id) == watch), None)

    def forget(self, visitor: Visitor) -> None:
        """He is gone."""
        if self._known.get(visitor.id) is visitor:
            del self._known[visitor.id]


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _action_of_message(message: Any, env: Any) -> dict[str, Any]:
    """What an environment's ``message_to_action`` makes of a chat message, as plain data."""
    convert = getattr(env, "message_to_action", None)
    if convert is None:
        return {"message": message}
    action = convert(message)
    tokens = getattr(action, "tokens", None)
    if tokens is not None and hasattr(tokens, "tolist"):
        return {"tokens": tokens.tolist()}
    fields: dict[str, Any] = codec.loads(codec.dumps(codec.fields_of(action)))
    fields.pop("metadata", None)
    return fields
