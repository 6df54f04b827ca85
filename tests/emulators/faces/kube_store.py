"""The objects of one namespace: names, versions, watches, selectors, pages, owners."""

from __future__ import annotations

import asyncio
import copy
import re
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

Object = dict[str, Any]
KINDS = {
    "pods": ("v1", "Pod"),
    "secrets": ("v1", "Secret"),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy"),
}


class Problem(Exception):
    """A Status that is not a success."""

    def __init__(self, code: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.headers = code, reason, message, dict(headers or {})

    def status(self) -> Object:
        """As the server says it."""
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        }  # fmt: skip


class Store:
    """Objects by kind and name, and everything that happened to them.

    Attributes:
        floor: Versions before it are forgotten: a watch from there is 410.
        watches: How many watches are open; ``opened`` how many ever were.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.objects: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS}
        self.events: list[tuple[int, str, str, Object]] = []
        self.version, self.floor = 1000, 0
        self.watches = self.opened = 0
        self._news = asyncio.Event()
        self._pages: dict[str, list[Object]] = {}

    def get(self, kind: str, name: str) -> Object:
        """One object.

        Raises:
            Problem: 404.
        """
        item = self.objects[kind].get(name)
        if item is None:
            raise Problem(404, "NotFound", f'{kind} "{name}" not found')
        return item

    def add(self, kind: str, body: Object) -> Object:
        """A new object, with what the server fills in.

        Raises:
            Problem: 409.
        """
        name = body["metadata"]["name"]
        if name in self.objects[kind]:
            raise Problem(409, "AlreadyExists", f'{kind} "{name}" already exists')
        body["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp(self._now())}
        self.objects[kind][name] = body
        return self.changed(kind, body, "ADDED")

    def changed(self, kind: str, item: Object, how: str = "MODIFIED") -> Object:
        """Give it a new version and tell the watches."""
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, kind, how, copy.deepcopy(item)))
        self._wake()
        return item

    def remove(self, kind: str, name: str) -> None:
        """Forget an object and what it owns."""
        item = self.objects[kind].pop(name, None)
        if item is None:
            return
        self.changed(kind, item, "DELETED")
        for other, items in self.objects.items():
            for owned in list(items.values()):
                owners = owned["metadata"].get("ownerReferences") or []
                if any(owner["uid"] == item["metadata"]["uid"] for owner in owners):
                    self.remove(other, owned["metadata"]["name"])

    def forget(self) -> None:
        """Compact: whoever watches from an earlier version has to list again; open watches are cut."""
        self.floor = self.version + 1
        self.version += 2
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def page(self, kind: str, selector: str, limit: int, token: str, seen: Callable[[Object], bool]) -> Object:
        """One page of a listing.

        Raises:
            Problem: 400 for a bad selector, 410 for a token that has expired.
        """
        if token:
            if token not in self._pages:
                raise Problem(410, "Expired", "The provided continue parameter is too old")
            items = self._pages.pop(token)
        else:
            match = selects(selector)
            items = [item for item in self.objects[kind].values() if match(item) and seen(item)]
        shown, rest = (items[:limit], items[limit:]) if limit else (items, [])
        meta: Object = {"resourceVersion": str(self.version)}
        if rest:
            meta |= {"continue": uuid.uuid4().hex, "remainingItemCount": len(rest)}
            self._pages[meta["continue"]] = rest
        api, name = KINDS[kind]
        # Items of a list carry neither apiVersion nor kind.
        bare = [{k: v for k, v in item.items() if k not in ("apiVersion", "kind")} for item in shown]
        return {"kind": f"{name}List", "apiVersion": api, "metadata": meta, "items": bare}

    async def watch(self, kind: str, selector: str, since: int, seconds: float) -> AsyncGenerator[Object, None]:
        """Events after ``since``, for so long."""
        match = selects(selector)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        self.watches, self.opened = self.watches + 1, self.opened + 1
        try:
            while True:
                news = self._news
                if since < self.floor:
                    gone = Problem(410, "Expired", f"too old resource version: {since} ({self.floor})")
                    yield {"type": "ERROR", "object": gone.status()}
                    return
                for version, which, how, item in self.events:
                    if version > since and which == kind and match(item):
                        yield {"type": how, "object": item}
                since = max(since, self.version)
                try:
                    await asyncio.wait_for(news.wait(), end - loop.time())
                except asyncio.TimeoutError:
                    api, name = KINDS[kind]
                    mark = {"kind": name, "apiVersion": api, "metadata": {"resourceVersion": str(self.version)}}
                    yield {"type": "BOOKMARK", "object": mark}
                    return
        finally:
            self.watches -= 1


def selects(selector: str) -> Callable[[Object], bool]:
    """Whether an object's labels fit: ``a=b``, ``a!=b``, ``a``, ``!a``, all of them.

    Raises:
        Problem: 400.
    """
    tests: list[tuple[str, str, str]] = []
    for part in filter(None, selector.split(",")):
        found = re.fullmatch(r"(!?)([A-Za-z0-9./_-]+)(?:(==|=|!=)([A-Za-z0-9._-]*))?", part.strip())
        if found is None:
            raise Problem(400, "BadRequest", f"unable to parse requirement: {part!r}")
        tests.append((found[2], "!" if found[1] else (found[3] or "has"), found[4] or ""))

    def match(item: Object) -> bool:
        pairs = item["metadata"].get("labels") or {}
        for name, how, value in tests:
            if how == "has":
                fits = name in pairs
            elif how == "!":
                fits = name not in pairs
            else:
                fits = (pairs.get(name) == value) == (how != "!=")
            if not fits:
                return False
        return True

    return match


def stamp(seconds: float) -> str:
    """Unix time as the API writes it: whole seconds."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
