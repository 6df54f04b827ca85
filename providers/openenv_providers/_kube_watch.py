"""One watch per namespace that tells everybody who waits about their Pod."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

from openenv_providers._kube_api import Gone
from openenv_sandbox.errors import AuthError, OpenEnvError
from openenv_sandbox.lifecycle import keep
from openenv_sandbox.values import KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_providers._kube_api import Api

_SERVER_S = 240
_LINGER_S = 2.0
_BACKOFF_S = (0.2, 10.0)
DELETED: dict[str, Any] = {}
"""What `Follower.pod` is when the Pod was there and is no more."""


class Follower:
    """One Pod as the watch last saw it; a context manager, in which the watch runs."""

    def __init__(self, watch: PodWatch, name: str) -> None:
        self._watch, self.name = watch, name
        self.pod: Mapping[str, Any] | None = None
        self.error: OpenEnvError | None = None
        self._changed = asyncio.Event()

    def __enter__(self) -> Follower:
        self._watch.join(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.leave(self)

    def offer(self, pod: Mapping[str, Any]) -> None:
        """What was read, for as long as the watch has told nothing: that may be newer."""
        if self.pod is None:
            self.tell(pod)

    def tell(self, pod: Mapping[str, Any] | None = None, error: OpenEnvError | None = None) -> None:
        """Called by the watch."""
        self.pod = pod if pod is not None else self.pod
        self.error = error
        self._changed.set()

    async def change(self) -> None:
        """Return at the next news.

        Raises:
            OpenEnvError: The watch is refused.
        """
        await self._changed.wait()
        self._changed.clear()
        if self.error is not None:
            raise self.error


class PodWatch:
    """The watch. It runs while somebody follows a Pod."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{api.where.namespace}/pods"
        self._followers: dict[str, set[Follower]] = {}
        self._task: asyncio.Task[None] | None = None

    def join(self, follower: Follower) -> None:
        self._followers.setdefault(follower.name, set()).add(follower)
        if self._task is None or self._task.done():
            self._task = keep(self._run(), name="openenv-kubernetes-watch")

    def leave(self, follower: Follower) -> None:
        those = self._followers.get(follower.name, set())
        those.discard(follower)
        if not those:
            self._followers.pop(follower.name, None)
        if not self._followers:
            # Who has created a Pod waits for its end next: one watch for both.
            asyncio.get_running_loop().call_later(_LINGER_S, self._rest)

    def _rest(self) -> None:
        if not self._followers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def aclose(self) -> None:
        """End the watch."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=5.0)

    async def _run(self) -> None:
        version: str | None = None
        wait = _BACKOFF_S[0]
        while True:
            try:
                if version is None:
                    version = await self._list()
                version = await self._stream(version)
                wait = _BACKOFF_S[0]
                await asyncio.sleep(wait)  # nothing is missed: the next stream begins where this one ended
            except Gone:
                version = None  # too old: list again
                await asyncio.sleep(_BACKOFF_S[0])
            except AuthError as error:
                self._tell_all(error)
                return
            except OpenEnvError:
                await asyncio.sleep(wait * (0.5 + random.random()))
                wait = min(wait * 2, _BACKOFF_S[1])

    async def _list(self) -> str:
        answer = await self._api.request("GET", self._path, query={"labelSelector": KEY})
        there = {item["metadata"]["name"]: item for item in answer.get("items") or []}
        for name in list(self._followers):
            if name in there:
                self._tell(name, there[name])
            elif any(follower.pod for follower in self._followers[name]):
                self._tell(name, DELETED)
        return str(answer["metadata"]["resourceVersion"])

    async def _stream(self, version: str) -> str:
        query = {
            "labelSelector": KEY, "watch": "true", "allowWatchBookmarks": "true",
            "resourceVersion": version, "timeoutSeconds": str(_SERVER_S),
        }  # fmt: skip
        async with self._api.lines(self._path, query=query, timeout=_SERVER_S + 10.0) as lines:
            async for line in lines:
                event = json.loads(line)
                item = event["object"]
                if event["type"] == "ERROR":
                    raise self._api.refused(item.get("code", 500), item, "GET", self._path, {})
                version = item["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._tell(item["metadata"]["name"], DELETED if event["type"] == "DELETED" else item)
        return version

    def _tell(self, name: str, pod: Mapping[str, Any]) -> None:
        for follower in self._followers.get(name, ()):
            follower.tell(pod)

    def _tell_all(self, error: OpenEnvError) -> None:
        for those in self._followers.values():
            for follower in those:
                follower.tell(error=error)
