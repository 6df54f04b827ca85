"""A provider whose cloud is a test's own: `FakeCloud`, with faults by rule and a clock to move.

    with FakeCloud() as cloud:
        rule = cloud.faults.add("create", status=429, retry_after=0.1)
        async with launch("fake-env:1", provider=cloud.provider()) as env:
            ...
        assert rule.hits == 1 and not cloud.live()

Sandboxes really run: commands in a folder of their own, the server on the loopback. Without ``command`` that is a tiny
environment; with one it is whatever is started and listens on ``$PORT``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from openenv_sandbox.capabilities import Capabilities, ExecCapabilities
from openenv_sandbox.errors import (
    AuthError,
    CapabilityError,
    EndpointError,
    ExecError,
    FileError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)
from openenv_sandbox.options import ProviderOptions, trusted
from openenv_sandbox.provider import (
    Check,
    Endpoint,
    Exit,
    ImageConfig,
    Prepared,
    RawResult,
    Sandbox,
    SandboxInfo,
    SandboxProvider,
    SandboxRef,
    Verified,
)
from openenv_sandbox.testing.fake_box import ARGV
from openenv_sandbox.testing.fake_cloud import FakeCloud
from openenv_sandbox.testing.faults import FakeClock, Rule

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from openenv_sandbox.provider import Image, LogSink, OutputSink
    from openenv_sandbox.spec import SandboxSpec

__all__ = ["FULL", "FakeClock", "FakeCloud", "FakeOptions", "FakeProvider", "FakeSandbox", "Rule", "bound_provider"]

FULL = Capabilities(
    images=frozenset({"ref", "folder", "template", "snapshot"}),
    start="command",
    runs_image=True,
    exec=ExecCapabilities(stdin_stream=True, user=False),
    put=True,
    ports="any",
    exposure=frozenset({"private", "public"}),
    isolation="process",
    lifetime="server-extendable",
    dedupes_key=True,
    create_settle_s=2.0,
    pause=True,
    snapshot=True,
)


class FakeOptions(ProviderOptions):
    """Options of the fake provider: where its cloud answers, and the idle timer it sets, in seconds."""

    address: str = trusted(default="")
    account: str = "test"
    idle_s: float | None = None


class FakeProvider(SandboxProvider):
    """Provider of a `FakeCloud`; `FakeCloud.provider` makes a class bound to one, ``address`` names one elsewhere."""

    name = "fake"
    title = "Fake"
    capabilities = FULL
    Options: ClassVar[type[FakeOptions]] = FakeOptions
    verified = Verified("none", note="for tests")
    address: ClassVar[str] = ""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.closed = False
        self._address = self.options.address or self.address

    @classmethod
    def check(cls, options: Any = None) -> Check:
        if cls.address or (options is not None and cls.parse_options(options).address):
            return Check(True)
        return Check(False, "no fake cloud", "make one: FakeCloud().provider()")

    def scope(self) -> str:
        return f"fake:{self._address}/{self.options.account}"

    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        on_log(f"preparing {image.name}")
        ref = await self.call("prepare", key=self.prepare_key(spec, image), ref=image.name)
        return Prepared(ref, image=image.config or ImageConfig(cmd=ARGV), digest=image.digest, owned=True)

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        caps = self.effective_capabilities()
        own = prepared.image.argv if prepared.image is not None else ()
        info = await self.call(
            "create",
            key=key,
            image=prepared.ref,
            labels=dict(spec.labels),
            env={**spec.env, **spec.plain_secrets()},
            command=list(spec.command or own) or None,
            start=caps.start,
            port=spec.port,
            lifetime_s=spec.timeouts.effective_lifetime if caps.lifetime.startswith("server") else None,
            idle_s=(self.options.idle_s or 900.0) if caps.lifetime == "idle-only" or caps.keep_alive_s else None,
            resources=spec.resources.model_dump(),
        )
        return FakeSandbox(self, self._info(info))

    async def find(self, key: str) -> Sequence[SandboxRef]:
        return [self._info(info).ref for info in await self.call("find", key=key)]

    async def attach(self, ref: SandboxRef) -> Sandbox:
        return FakeSandbox(self, self._info(await self.call("info", id=ref.id)))

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        infos: list[SandboxInfo] = []
        broken: OpenEnvError | None = None
        try:
            await self.call("list", labels=dict(labels), _on=lambda m: infos.append(self._info(m["item"])))
        except OpenEnvError as error:
            broken = error
        for info in infos:
            yield info
        if broken is not None:
            raise broken

    async def delete(self, ref: SandboxRef) -> None:
        with contextlib.suppress(SandboxGone):
            await self.call("delete", id=ref.id)

    async def list_prepared(self) -> Sequence[Prepared]:
        return [Prepared(ref, owned=True) for ref in await self.call("list_prepared")]

    async def drop(self, prepared: Prepared) -> None:
        await self.call("drop", ref=prepared.ref)

    async def aclose(self) -> None:
        self.closed = True

    def _info(self, raw: Mapping[str, Any]) -> SandboxInfo:
        from openenv_sandbox.spec import Resources

        return SandboxInfo(
            ref=SandboxRef(self.name, self.scope(), raw["id"], raw["key"]),
            status=raw["status"],
            labels=raw["labels"],
            created_at=raw["created_at"],
            expires_at=raw["expires_at"],
            resources=Resources(**raw["resources"]) if raw["resources"] else None,
            isolation=self.capabilities.isolation,
            image=raw["image"],
        )

    async def call(
        self,
        op: str,
        *,
        _on: Callable[[dict[str, Any]], None] | None = None,
        _stdin: AsyncIterator[bytes] | None = None,
        **args: Any,
    ) -> Any:
        """One request to the cloud."""
        host, _, port = self._address.rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port), limit=8 << 20)
        except OSError as error:
            raise ProviderUnavailable(f"the fake cloud does not answer: {error}", provider=self.name) from error
        feeder: asyncio.Task[None] | None = None
        try:
            writer.write(json.dumps({"op": op, "args": args}).encode() + b"\n")
            if _stdin is not None:
                feeder = asyncio.get_running_loop().create_task(_send(writer, _stdin))
            while line := await _line(reader):
                message = json.loads(line)
                if "result" in message:
                    return message["result"]
                if "status" in message:
                    self._fail(op, message)
                if _on is not None:
                    _on(message)
        finally:
            if feeder is not None:
                feeder.cancel()
            writer.close()
        raise ProviderUnavailable(f"the connection broke during {op}", provider=self.name, outcome="unknown")

    def _fail(self, op: str, message: Mapping[str, Any]) -> NoReturn:
        status, text = message["status"], f"{op}: {message['message']}"
        where: dict[str, Any] = {"provider": self.name}
        if status in (401, 403):
            raise AuthError(text, **where)
        if status == 402:
            raise QuotaExceeded(text, **where)
        if status == 404:
            raise SandboxGone(text, **where)
        if status == 422:
            raise (FileError if op == "put" else ExecError)(text, **where)
        if status == 425:
            raise EndpointError(text, retryable=True, **where)
        if status == 429:
            raise RateLimited(text, retry_after=message["retry_after"], **where)
        if status >= 500:
            raise ProviderUnavailable(text, outcome="failed" if status == 503 else "unknown", retryable=True, **where)
        raise ProviderError(text, **where)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ConnectionError:
        return b""


async def _send(writer: asyncio.StreamWriter, chunks: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(ConnectionError):
        async for chunk in chunks:
            writer.write(json.dumps({"stdin": base64.b64encode(chunk).decode()}).encode() + b"\n")
            await writer.drain()
        writer.write(b"{}\n")
        await writer.drain()


class FakeSandbox(Sandbox):
    """A sandbox of the fake cloud."""

    def __init__(self, provider: FakeProvider, info: SandboxInfo) -> None:
        self.provider, self.info = provider, info

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
        caps = self.provider.capabilities.exec
        assert caps is not None
        text = bytearray()

        def on(message: dict[str, Any]) -> None:
            data = base64.b64decode(message["data"])
            if caps.binary:
                on_output(message["out"], data)
            else:
                text.extend(data)

        code = await self._call(
            "exec", argv=list(argv), env=dict(env), cwd=cwd, user=user, _on=on, _stdin=_chunks(stdin)
        )
        if text:  # as a service that answers in text: not every byte survives
            on_output("stdout", text.decode("utf-8", "replace").replace("\0", "").strip().encode())
        return RawResult(code)

    async def put(self, path: str, data: bytes) -> None:
        await self._call("put", path=path, data=base64.b64encode(data).decode())

    async def endpoint(self, port: int) -> Endpoint:
        if self.provider.capabilities.ports == "none":
            raise CapabilityError("no ports", field="port", ref=self.ref)
        return Endpoint((await self._call("endpoint", port=port))["url"], ping=self.provider.capabilities.ping)

    async def wait_exit(self) -> Exit:
        try:
            raw = await self._call("wait_exit")
        except SandboxGone:
            return Exit(None)
        return Exit(raw["code"], base64.b64decode(raw["tail"]))

    async def first_output(self) -> None:
        await self._call("first_output")

    async def delete(self) -> None:
        await self.provider.delete(self.ref)

    async def extend(self, lifetime_s: float) -> float:
        if self.provider.capabilities.lifetime != "server-extendable":
            return await super().extend(lifetime_s)
        end = float(await self._call("extend", lifetime_s=lifetime_s))
        self.info = replace(self.info, expires_at=end)
        return end

    async def keep_alive(self) -> None:
        await self._call("keep_alive")

    async def pause(self) -> None:
        await self._call("pause", on=True)

    async def resume(self) -> None:
        await self._call("pause", on=False)

    async def snapshot(self) -> Prepared:
        return Prepared(await self._call("snapshot"), image=ImageConfig(cmd=ARGV), owned=True)

    async def logs(self, *, tail: int | None = None) -> bytes:
        data = base64.b64decode(await self._call("logs"))
        return data if tail is None else b"".join(data.splitlines(keepends=True)[-tail:])

    async def _call(self, op: str, **args: Any) -> Any:
        try:
            return await self.provider.call(op, id=self.ref.id, **args)
        except OpenEnvError as error:
            error.ref = self.ref
            raise


async def _chunks(stdin: bytes | AsyncIterator[bytes] | None) -> AsyncIterator[bytes]:
    if isinstance(stdin, bytes):
        for start in range(0, len(stdin), 256 << 10):
            yield stdin[start : start + (256 << 10)]
    elif stdin is not None:
        async for chunk in stdin:
            yield chunk


def bound_provider(cloud: FakeCloud, name: str, capabilities: Mapping[str, Any]) -> type[FakeProvider]:
    """A class for `FakeCloud.provider`."""
    fields = {"address": cloud.address, "name": name, "capabilities": replace(FULL, **capabilities)}
    return type("FakeProvider", (FakeProvider,), fields)
