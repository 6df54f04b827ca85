"""Blueprints: what Runloop boots devboxes from, built by it from a Dockerfile."""

from __future__ import annotations

import asyncio
import hashlib
import io
from functools import partial
from typing import TYPE_CHECKING, Any

from openenv_providers._runloop_api import missing
from openenv_providers._runloop_convert import BLUEPRINT, ROOT
from openenv_sandbox.backend_kit import poll
from openenv_sandbox.errors import BuildError, ImageError
from openenv_sandbox.provider import Prepared
from openenv_sandbox.staging import staged, write_tar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from openenv_providers._runloop_api import Api
    from openenv_sandbox.provider import Image, LogSink
    from openenv_sandbox.spec import SandboxSpec

PREFIX = "openenv-"
_BUILDING = ("queued", "provisioning", "building", "awaiting_upload")
_CONTEXT_TTL_MS = 6 * 3600 * 1000
_POLL_S = 2.0
_PAGE = 1000


class Blueprints:
    """What is prepared for launches of one architecture."""

    def __init__(self, api: Api, architecture: str, keep_openenv: bool) -> None:
        self.api, self.architecture, self.keep_openenv = api, architecture, keep_openenv

    async def prepare(self, spec: SandboxSpec, image: Image, on_log: LogSink) -> Prepared:
        """A blueprint of ``image``: one that exists, one that somebody is building, or a new one."""
        if image.kind == "snapshot":
            return Prepared(image.name, image.config)
        if image.kind == "template":
            return Prepared(f"{BLUEPRINT}{await self._named(image.name.removeprefix(BLUEPRINT))}", image.config)
        if image.kind == "ref":
            text = f"FROM {image.name}\n"
            return await self._ensure(spec, image, text, None, (text, image.digest or ""), on_log)
        async with staged(image, keep_openenv=self.keep_openenv) as context:
            text = await asyncio.to_thread(context.dockerfile.read_text, "utf-8")
            return await self._ensure(spec, image, text, context.folder, (context.digest,), on_log)

    async def _ensure(
        self, spec: SandboxSpec, image: Image, text: str, folder: Path | None, parts: Sequence[str], on_log: LogSink
    ) -> Prepared:
        install = spec.labels.get("oe-install", "")
        # Whoever shares the account has blueprints of their own: nobody removes another's.
        digest = hashlib.sha256("\n".join((*parts, self.architecture, install)).encode()).hexdigest()
        name = f"{PREFIX}{digest[:32]}"
        view = None if spec.pull == "always" else await self._existing(name)
        try:
            if view is not None:
                view = await self._complete(view, on_log)
            else:
                view = await self._build(name, text, folder, {"oe-install": install} if install else {}, on_log)
        except BuildError as error:
            if image.kind != "ref":
                raise
            raise ImageError(
                f"runloop cannot boot {image.name}: {error}",
                provider="runloop",
                hint="is the name right, and can everybody pull it? It takes no login of a registry",
            ) from error
        labels = dict(view.metadata or {})
        return Prepared(f"{BLUEPRINT}{view.id}", image.config, image.digest, True, labels, view.create_time_ms / 1000)

    async def _existing(self, name: str) -> Any:
        """The newest blueprint of that name that is built or being built."""
        rows = await self.api.rows(
            "looking for a blueprint",
            lambda client: client.blueprints.list(name=name, limit=_PAGE, include_total_count=False),
        )
        usable = [row for row in rows if row.name == name and row.state == "created" and row.status != "failed"]
        return max(usable, key=lambda row: (row.status == "build_complete", row.create_time_ms), default=None)

    async def _named(self, wanted: str) -> str:
        """The id of the blueprint that a user named by id or name."""
        with missing():
            view = await self.api.call("looking for the blueprint", lambda client: client.blueprints.retrieve(wanted))
            return str(view.id)
        view = await self._existing(wanted)
        if view is None or view.status != "build_complete":
            raise ImageError(f"runloop has no built blueprint {wanted}", provider="runloop", hint="rli blueprint list")
        return str(view.id)

    async def _build(self, name: str, text: str, folder: Path | None, labels: dict[str, str], on_log: LogSink) -> Any:
        launch = {"architecture": self.architecture, "user_parameters": ROOT}
        body: dict[str, Any] = {"name": name, "dockerfile": text, "metadata": labels, "launch_parameters": launch}
        context = None if folder is None else await self._send(name, folder, on_log)
        if context is not None:
            body["build_context"] = {"type": "object", "object_id": context}
        made = await self.api.call("making a blueprint", lambda client: client.blueprints.create(**body), started=True)
        # Cancelled, the build goes on, and the next who asks for the name finds it; the context ends by itself then.
        try:
            done = await self._complete(made, on_log)
        except BuildError:
            await drop(self.api, f"{BLUEPRINT}{made.id}")
            await self._forget(context)
            raise
        await self._forget(context)
        return done

    async def _forget(self, context: str | None) -> None:
        if context is not None:
            with missing():
                await self.api.call("removing the context", lambda client: client.objects.delete(context))

    async def _complete(self, view: Any, on_log: LogSink) -> Any:
        """Wait for the end of a build, telling its output."""
        id, told, lines = view.id, 0, list[str]()

        async def look(client: Any) -> Any:
            nonlocal told, lines
            found = await client.blueprints.retrieve(id)
            lines = [line.message for line in (await client.blueprints.logs(id)).logs]
            for line in lines[told:]:
                on_log(line)
            told = max(told, len(lines))
            return found

        view = await poll(
            lambda: self.api.call("looking at the blueprint", look),
            lambda view: view.status not in _BUILDING,
            longest=_POLL_S,
        )
        if view.status != "build_complete":
            why = view.failure_reason or view.status
            raise BuildError(f"runloop could not build it: {why}", provider="runloop", log="\n".join(lines[-50:]))
        return view

    async def _send(self, name: str, folder: Path, on_log: LogSink) -> str:
        """The id of an object that holds the context."""
        from runloop_api_client.sdk.async_storage_object import AsyncStorageObject

        on_log("sending the build context to the account's object store")
        data = io.BytesIO()
        await asyncio.to_thread(partial(write_tar, folder, data, gz=True))

        async def upload(client: Any) -> str:
            made = await client.objects.create(name=name, content_type="tgz", ttl_ms=_CONTEXT_TTL_MS)
            there = AsyncStorageObject(client, made.id, upload_url=made.upload_url, upload_headers=made.upload_headers)
            await there.upload_content(data.getvalue())
            await there.complete()
            return str(made.id)

        return await self.api.call("sending the build context", upload)


async def ours(api: Api) -> list[Prepared]:
    """Blueprints and snapshots that openenv made."""
    blueprints = await api.rows(
        "listing blueprints", lambda client: client.blueprints.list(limit=_PAGE, include_total_count=False)
    )
    snapshots = await api.rows(
        "listing snapshots",
        lambda client: client.devboxes.disk_snapshots.list(limit=_PAGE, include_total_count=False),
    )
    found = [(f"{BLUEPRINT}{b.id}", b) for b in blueprints if b.name.startswith(PREFIX) and b.state == "created"]
    found += [(s.id, s) for s in snapshots if "oe-install" in s.metadata]
    return [
        Prepared(ref, owned=True, labels=dict(view.metadata or {}), created_at=view.create_time_ms / 1000)
        for ref, view in found
    ]


async def drop(api: Api, ref: str) -> None:
    """Remove a blueprint or a snapshot; one that is gone is removed."""

    async def remove(client: Any) -> None:
        if ref.startswith(BLUEPRINT):
            await client.blueprints.delete(ref.removeprefix(BLUEPRINT))
        else:
            await client.devboxes.disk_snapshots.delete(ref)

    with missing():
        await api.call(f"removing {ref}", remove)
