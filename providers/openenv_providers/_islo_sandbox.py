"""One sandbox of islo."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from openenv_providers import _islo_gateway as gateway
from openenv_providers._islo_api import NAME, ONCE, Api
from openenv_providers._islo_values import has_profile, info_of, status_of
from openenv_sandbox import redact
from openenv_sandbox.backend_kit import unix_time
from openenv_sandbox.endpoint import Endpoint
from openenv_sandbox.errors import ExecError, FileError, OpenEnvError, ProviderError, SandboxGone
from openenv_sandbox.provider import Exit, Prepared, RawResult, Sandbox, SandboxRef

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from openenv_sandbox.provider import OutputSink

ENDED = ("completed", "failed", "timeout")
ROOT = "root"
"""Who commands run as: core gives them the user they shall have, which only root can, and whose files `put` writes."""

SH, INLINE = "/bin/sh", 16_384
SPILL = """n=$1 m=$2 f=/tmp/.oe-$1; shift 2
(umask 077; : >"$f") 2>/dev/null || exec "$@"
"$@" >"$f"; c=$?
if [ "$(wc -c <"$f")" -le "$m" ]; then cat "$f"; rm -f "$f"; else printf %s "$n"; fi
exit $c
"""
"""How much of an output an answer holds is not documented: what is longer stays in a file, and only its name is told.
Arguments: that name, the most bytes, a command."""

_BYTES = "application/octet-stream"
"""Said, because guessing a type from the name reads the machine's tables in the loop."""

_LOOK_S = 3.0
_LEAST_SHARE_S = 60


class IsloSandbox(Sandbox):
    """A sandbox of `IsloProvider`."""

    def __init__(self, api: Api, box: Any) -> None:
        self._api = api
        self.info = info_of(api.scope, box)

    async def _call(self, what: str, fn: Callable[[Any], Awaitable[Any]]) -> Any:
        return await self._api.call(what, fn, ref=self.ref)

    async def exec_raw(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        user: str | None,
        stdin: bytes | AsyncIterator[bytes] | None,
        on_output: OutputSink,
    ) -> RawResult:
        """Start it, and ask until it has ended; then its output is there, as text."""
        nonce = secrets.token_hex(16)
        wrapped = [SH, "-c", SPILL, "oe", nonce, str(INLINE), *argv] if argv[0] == SH else list(argv)
        given: dict[str, Any] = {"command": wrapped, "user": ROOT}
        given |= {"env": dict(env)} if env else {}
        given |= {"workdir": cwd} if cwd else {}
        name = self.ref.id
        try:
            started = await self._call(
                f"running {argv[0]}",
                lambda client: client.sandboxes.exec_in_sandbox(name, **given, request_options=ONCE),
            )
        except ProviderError as error:
            if type(error) is ProviderError and not error.retryable and error.outcome == "failed":
                raise ExecError(error.message, ref=self.ref) from error
            raise
        result = await self._api.poll(
            f"waiting for {argv[0]}",
            lambda client: client.sandboxes.get_exec_result(name, started.exec_id, request_options=ONCE),
            lambda answer: answer.status in ENDED,
            ref=self.ref,
        )
        if result.truncated:
            text = "islo cut off what the command wrote"
            raise ExecError(text, ref=self.ref, outcome="unknown", hint="write to a file, and read that")
        said = result.stdout.encode()
        if said == nonce.encode():
            said = await self._spilled(f"/tmp/.oe-{nonce}")
        if said:
            on_output("stdout", said)
        if result.stderr:
            on_output("stderr", result.stderr.encode())
        return RawResult(result.exit_code)

    async def _spilled(self, path: str) -> bytes:
        """What was too much for an answer."""

        async def read(client: Any) -> bytes:
            chunks = client.sandboxes.download_file(self.ref.id, path=path, request_options=ONCE)
            return b"".join([chunk async for chunk in chunks])

        said = bytes(await self._call("reading a command's output", read))
        given = {"command": ["rm", "-f", path], "user": ROOT, "request_options": ONCE}
        await self._call("removing a file", lambda client: client.sandboxes.exec_in_sandbox(self.ref.id, **given))
        return said

    async def put(self, path: str, data: bytes) -> None:
        """By a multipart upload, which takes any bytes."""
        try:
            await self._call(
                f"writing {path}",
                lambda client: client.sandboxes.upload_file(
                    self.ref.id, path=path, file=("file", data, _BYTES), request_options=ONCE
                ),
            )
        except ProviderError as error:
            raise FileError(error.message, ref=self.ref, retryable=error.retryable) from error

    async def endpoint(self, port: int) -> Endpoint:
        """A share of its own, revoked when the endpoint is closed. Whoever knows its address may use it."""
        ends, name = self.info.expires_at, self.ref.id
        ttl = {"ttl_seconds": max(_LEAST_SHARE_S, int(ends - time.time()))} if ends is not None else {}
        share = await self._call(
            f"sharing port {port}",
            lambda client: client.shares.create_share(name, port=port, **ttl, request_options=ONCE),
        )
        parts = urlsplit(share.url)
        secret = f"{parts.netloc}{parts.path}".rstrip("/")
        redact.register(secret)

        async def revoke() -> None:
            try:
                await self._call(
                    f"revoking the share of port {port}",
                    lambda client: client.shares.revoke_share(name, share.share_id, request_options=ONCE),
                )
            except OpenEnvError:
                return  # it ends with its time, or with the sandbox
            finally:
                redact.forget(secret)

        return Endpoint(share.url, expires_at=unix_time(share.expires_at), public=True, close=revoke)

    async def wait_exit(self) -> Exit:
        """The end of the sandbox, by looking: islo tells events of its creation only."""

        async def look(client: Any) -> bool:
            box = await client.sandboxes.get_sandbox(self.ref.id, request_options=ONCE)
            return status_of(box) in ("stopped", "failed", None)

        try:
            await self._api.poll("looking whether it runs", look, bool, ref=self.ref, longest=_LOOK_S)
        except SandboxGone:
            pass
        return Exit(None)

    async def pause(self) -> None:
        """Suspend with its memory; returns once it stands still."""
        await self._turn("pausing", "paused", lambda client: client.sandboxes.pause_sandbox)

    async def resume(self) -> None:
        """Go on where it stood; returns once it runs."""
        await self._turn("resuming", "running", lambda client: client.sandboxes.resume_sandbox)

    async def _turn(self, what: str, status: str, method: Callable[[Any], Callable[..., Awaitable[Any]]]) -> None:
        async def look(client: Any) -> Any:
            return await client.sandboxes.get_sandbox(self.ref.id, request_options=ONCE)

        # "pausing" is "paused" in our words, and a resume would be refused then: the vendor's own word counts.
        if (await self._call(f"{what} it", look)).status != status:
            await self._call(f"{what} it", lambda client: method(client)(self.ref.id, request_options=ONCE))
            box = await self._api.poll(
                f"{what} it",
                look,
                lambda box: box.status == status or status_of(box) in ("stopped", "failed", None),
                ref=self.ref,
            )
            if box.status != status:
                raise SandboxGone(f"{what} it: it ended ({box.status})", ref=self.ref)

    async def snapshot(self) -> Prepared:
        """Of the disk."""
        install = self.info.labels.get("oe-install", "none")
        name = f"oe-snap-{secrets.token_hex(6)}-{install}"
        await self._call(
            "taking a snapshot",
            lambda client: client.snapshots.create_snapshot(sandbox_name=self.ref.id, name=name, request_options=ONCE),
        )
        kept = await self._api.poll(
            "looking at the snapshot",
            lambda client: client.snapshots.get_snapshot(name, request_options=ONCE),
            lambda found: found.status not in ("creating", "pending", "uploading", "in_progress"),
            ref=self.ref,
        )
        if kept.status in ("failed", "error"):
            raise ProviderError(f"taking a snapshot: it {kept.status}", provider=NAME, ref=self.ref)
        created = kept.created_at.timestamp() if kept.created_at else None
        return Prepared(f"snapshot:{name}", owned=True, labels={"oe-install": install}, created_at=created)

    async def delete(self) -> None:
        """Remove it, and what stands beside it."""
        await erase(self._api, self.ref)


async def erase(api: Api, ref: SandboxRef) -> None:
    """Remove a sandbox, its shares with it, and the profile of its name. What does not exist is removed."""
    try:
        await api.call(
            "deleting the sandbox",
            lambda client: client.sandboxes.delete_sandbox(ref.id, request_options=ONCE),
            ref=ref,
        )
    except SandboxGone:
        pass
    if has_profile(ref.id):
        await gateway.remove(api, ref.id, ref)
