"""Snapshots: what daytona boots. Built from folders and registry refs by its own builder, once for each content."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import tempfile
import time
from typing import TYPE_CHECKING, Any

from openenv_providers import _daytona_convert as convert
from openenv_providers._daytona_api import translate
from openenv_sandbox.errors import BuildError, ImageError, OpenEnvError, ProviderError, SandboxGone
from openenv_sandbox.image import resolve_config
from openenv_sandbox.lifecycle import daemon_call
from openenv_sandbox.provider import Prepared
from openenv_sandbox.staging import staged, write_tar

if TYPE_CHECKING:
    from pathlib import Path

    from openenv_providers._daytona_api import Api
    from openenv_sandbox.provider import Image, LogSink
    from openenv_sandbox.spec import SandboxSpec

KEEP_ALIVE = ["sleep", "infinity"]
"""What a snapshot runs, whatever its image does: the server is started by core, once."""
_POLL_S = 1.0
_LOG_S = 10.0
"""How long the end of a build's log is waited for after the build has ended, in seconds."""
_ENDS = frozenset({"active", "error", "build_failed"})
_REGISTRY = (
    "is the name right? A private registry must be registered with the organisation first (dashboard, Registries)"
)


async def ensure(
    api: Api, spec: SandboxSpec, image: Image, on_log: LogSink, *, target: str | None, keep_openenv: bool
) -> Prepared:
    """The snapshot for a folder or a ref, made unless it is there.

    Raises:
        BuildError: With the end of the builder's log.
        ImageError: The registry does not have it, or daytona may not read it.
    """
    if image.kind in ("template", "snapshot"):
        return await _existing(api, image)
    config = image.config
    with contextlib.suppress(ImageError):  # core asks again, and says what is missing
        config = await resolve_config(image, base=True)
    if image.kind == "ref":
        body = {"image_name": image.name, "entrypoint": KEEP_ALIVE}
        name = _name(spec, image.name.rpartition("/")[2], image.name, target)
        await _make(api, name, {**body, **_common(spec, name, target)}, on_log, again=spec.pull == "always")
        return Prepared(name, config, image.digest, owned=True, labels=convert.snapshot_labels(name))
    async with staged(image, keep_openenv=keep_openenv) as context:
        name = _name(spec, image.name, context.digest, target)
        ready = await _state(api, name)
        if ready is None or ready[1] not in ("active", "inactive"):
            text = await asyncio.to_thread(context.dockerfile.read_text, "utf-8")
            text = f"{text}\nENTRYPOINT {json.dumps(KEEP_ALIVE)}\nCMD []\n"
            on_log(f"sending {context.folder.name} to the object store of the organisation")
            hashes = [await _send(api, context.folder, context.digest[:32])]
            built = {"build_info": {"dockerfile_content": text, "context_hashes": hashes}}
            await _make(api, name, {**built, **_common(spec, name, target)}, on_log)
        else:
            await _make(api, name, {}, on_log)
    return Prepared(name, config, image.digest, owned=True, labels=convert.snapshot_labels(name))


def _name(spec: SandboxSpec, title: str, content: str, target: str | None) -> str:
    parts = (content, json.dumps(convert.sizes(spec), sort_keys=True), target or "")
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return convert.snapshot_name(spec.labels.get("oe-install", ""), title, digest)


def _common(spec: SandboxSpec, name: str, target: str | None) -> dict[str, Any]:
    return {"name": name, "region_id": target, **convert.sizes(spec)}


async def _existing(api: Api, image: Image) -> Prepared:
    found = await _state(api, image.name)
    if found is None:
        raise ImageError(f"daytona has no snapshot {image.name}", provider="daytona", hint="daytona snapshot list")
    if found[1] == "inactive":
        await _activate(api, found[0])
    return Prepared(image.name, image.config, image.digest)


async def _state(api: Api, name: str) -> tuple[str, str, str] | None:
    """Id, state and reason of a snapshot; None when there is none."""
    try:
        found = await api.call("looking for the snapshot", lambda clients: clients.snapshots.get_snapshot(name))
    except SandboxGone:
        return None
    return found.id, found.state.value, str(found.error_reason or "")


async def _activate(api: Api, identifier: str) -> None:
    """Wake a snapshot that was not used for long."""
    await api.call("activating the snapshot", lambda clients: clients.snapshots.activate_snapshot(identifier))


async def _make(api: Api, name: str, body: dict[str, Any], on_log: LogSink, *, again: bool = False) -> None:
    """Create the snapshot, or wait for whoever does: another process may have been first."""
    found = await _state(api, name)
    if found is not None and (again or found[1] in ("error", "build_failed")):
        await _remove(api, found[0])
        found = None
    if found is None:
        found = await _create(api, name, body)
    log: asyncio.Task[None] | None = None
    pause = 0.05
    tail: list[str] = []

    def line(text: str) -> None:
        tail.append(text)
        del tail[:-50]
        on_log(text)

    try:
        while True:
            identifier, state, reason = found
            if log is None and state != "pending" and "build_info" in body:
                log = asyncio.ensure_future(_follow(api, identifier, line))
            if log is not None and state in _ENDS:
                await asyncio.wait({log}, timeout=_LOG_S)
            if state == "active":
                return
            if state in _ENDS:
                raise _failed(name, state, reason, "\n".join(tail))
            if state == "inactive":
                await _activate(api, identifier)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _POLL_S)
            found = await _state(api, name)
            if found is None:
                raise BuildError(f"the snapshot {name} was removed while it was made", provider="daytona")
    finally:
        if log is not None:
            log.cancel()


def _failed(name: str, state: str, reason: str, log: str) -> OpenEnvError:
    if state == "build_failed" or log:
        return BuildError(f"daytona could not build {name}: {reason or state}", provider="daytona", log=log)
    return ImageError(f"daytona could not make a snapshot: {reason or state}", provider="daytona", hint=_REGISTRY)


async def _create(api: Api, name: str, body: dict[str, Any]) -> tuple[str, str, str]:
    from daytona_api_client_async import CreateSnapshot

    try:
        request = CreateSnapshot.model_validate(body)
        made = await api.call("making a snapshot", lambda clients: clients.snapshots.create_snapshot(request))
    except ProviderError as error:
        found = await _state(api, name) if error.retryable else None
        if found is None:
            if type(error) is ProviderError and not error.retryable:
                raise ImageError(error.message, provider="daytona", hint=_REGISTRY) from error
            raise
        return found
    return made.id, made.state.value, str(made.error_reason or "")


async def _follow(api: Api, identifier: str, line: LogSink) -> None:
    """The builder's output, line by line, until it ends; a log that breaks off is no failure of the build."""
    try:
        where = await api.call("asking for the log", lambda c: c.snapshots.get_snapshot_build_logs_url(identifier))
        async with api.clients.use() as clients:
            await _lines(clients.main, f"{where.url}?follow=true", line)
    except Exception as error:
        line(f"(the log broke off: {translate(error, what='reading the log').message})")


async def _lines(client: Any, url: str, line: LogSink) -> None:
    reply = await client.rest_client.request("GET", url, headers=dict(client.default_headers))
    rest = b""
    async with reply.response as response:
        async for chunk in response.content.iter_any():
            *whole, rest = (rest + chunk).split(b"\n")
            for text in whole:
                line(text.decode("utf-8", "replace").rstrip("\r"))
    if rest:
        line(rest.decode("utf-8", "replace"))


async def _send(api: Api, folder: Path, digest: str) -> str:
    """The whole context as one archive under its own digest, unless the store has it.

    The SDK's ``Image.from_dockerfile`` would send the sources of COPY lines one by one, without those of ADD and
    with the Dockerfile's folder as the root.
    """
    access = await api.call("asking for the object store", lambda clients: clients.storage.get_push_access())
    key = f"{access.organization_id}/{digest}/context.tar"
    try:
        await daemon_call(_put, access, key, folder)
    except Exception as error:
        kind = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise BuildError(f"the context could not be stored: {kind}", provider="daytona", retryable=True) from error
    return digest


def _put(access: Any, key: str, folder: Path) -> None:
    import obstore
    from obstore.store import S3Store

    # All of it is said, so that AWS_* variables of the user decide nothing.
    store = S3Store(
        access.bucket,
        endpoint=access.storage_url,
        region=access.region,
        access_key_id=access.access_key,
        secret_access_key=access.secret,
        session_token=access.session_token,
        virtual_hosted_style_request=False,
        skip_signature=False,
        client_options={"allow_http": access.storage_url.startswith("http://")},
    )
    try:
        obstore.head(store, key)
    except FileNotFoundError:
        with tempfile.TemporaryFile(prefix="openenv-context-") as file:
            write_tar(folder, file)
            file.seek(0)
            obstore.put(store, key, file)


async def ours(api: Api) -> list[Prepared]:
    """Snapshots that openenv made."""
    found: list[Prepared] = []
    page = 1
    while True:
        answer = await _page(api, page)
        for item in answer.items:
            labels = convert.snapshot_labels(item.name)
            if labels and not item.general:
                created = item.created_at.timestamp() if item.created_at else time.time()
                found.append(Prepared(item.name, owned=True, labels=labels, created_at=created))
        if page >= answer.total_pages:
            return found
        page += 1


async def _page(api: Api, page: int) -> Any:
    return await api.call(
        "listing snapshots", lambda clients: clients.snapshots.get_all_snapshots(page=page, limit=100)
    )


async def remove(api: Api, name: str) -> None:
    """Delete a snapshot; one that does not exist is deleted."""
    found = await _state(api, name)
    if found is not None:
        await _remove(api, found[0])


async def _remove(api: Api, identifier: str) -> None:
    try:
        await api.call(
            "removing the snapshot", lambda clients: clients.snapshots.remove_snapshot(identifier), started=True
        )
    except SandboxGone:
        return
