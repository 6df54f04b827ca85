"""A provider of the invented vendor. Its SDK is httpx."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_sandbox import (
    AuthError,
    Capabilities,
    Endpoint,
    ExecError,
    ImageError,
    ProviderError,
    ProviderOptions,
    ProviderUnavailable,
    Sandbox,
    SandboxGone,
    SandboxInfo,
    SandboxProvider,
    SandboxRef,
    trusted,
)
from openenv_sandbox.backend_kit import Row, translate
from openenv_sandbox.capabilities import ExecCapabilities, Sizes
from openenv_sandbox.provider import Exit, RawResult
from openenv_sandbox.retry import status_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import httpx

    from openenv_sandbox.provider import OutputSink, Prepared
    from openenv_sandbox.spec import SandboxSpec


TABLE = {
    401: Row(AuthError, hint="set MINI_API_KEY"),
    422: Row(ExecError),
    503: Row(ProviderUnavailable, True, outcome="failed"),
}


class Options(ProviderOptions):
    """Where it is."""

    url: str = trusted("http://127.0.0.1:1", description="Where the service is.")


class MiniProvider(SandboxProvider):
    """Translates."""

    name = "mini"
    title = "Mini"
    sdk = ("httpx",)
    env_vars = ("MINI_API_KEY",)
    capabilities = Capabilities(
        exec=ExecCapabilities(),
        ports="any",
        network=frozenset({"full", "none"}),
        sizes=Sizes(limits=frozenset()),
        isolation="container",
        lifetime="server-extendable",
        create_settle_s=2.0,
    )
    Options: ClassVar[type[Options]] = Options
    _client: httpx.AsyncClient | None = None

    def scope(self) -> str:
        return str(self.options.url)

    async def call(self, method: str, path: str, *, what: str, id: str = "", **kw: Any) -> httpx.Response:
        """One request, its errors as ours."""
        import httpx

        if self._client is None:
            headers = {"Authorization": f"Bearer {os.environ.get('MINI_API_KEY', '')}"}
            self._client = httpx.AsyncClient(base_url=self.options.url, headers=headers, timeout=None, trust_env=False)
        ref = SandboxRef(self.name, self.scope(), id) if id else None
        said = None
        try:
            response = await self._client.request(method, path, **kw)
            if response.status_code >= 300:
                said = response.json()["error"]["message"]
            response.raise_for_status()
        except Exception as error:
            raise translate(
                error, provider=self.name, what=what, ref=ref, acted=True, said=said, table=TABLE
            ) from error
        return response

    def info(self, raw: Mapping[str, Any]) -> SandboxInfo:
        ref = SandboxRef(self.name, self.scope(), raw["id"], raw["labels"].get("oe-key"))
        return SandboxInfo(ref, raw["status"], raw["labels"], None, raw["ends_at"], None, "container", raw["image"])

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        body = {
            "image": prepared.ref,
            "argv": list(spec.command) if spec.command else None,
            "env": {**spec.env, **spec.plain_secrets()},
            "labels": {**spec.labels, "oe-key": key},
            "user": spec.user,
            "workdir": spec.workdir,
            "ttl_s": spec.timeouts.effective_lifetime,
            "network": spec.network.mode,
        }
        try:
            made = await self.call("POST", "/sandboxes", what="create", json=body)
        except ProviderError as error:
            if isinstance(error.__cause__, Exception) and status_of(error.__cause__) == 404:
                raise ImageError(error.message, provider=self.name) from error
            raise
        return MiniSandbox(self, made.json())

    async def _listed(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        params = [("label", f"{name}={value}") for name, value in labels.items()]
        response = await self.call("GET", "/sandboxes", what="list", params=params)
        try:
            return [self.info(raw) for raw in response.json()]
        except ValueError as error:
            raise ProviderUnavailable("the listing broke off", provider=self.name) from error

    async def attach(self, ref: SandboxRef) -> Sandbox:
        return MiniSandbox(self, (await self.call("GET", f"/sandboxes/{ref.id}", what="attach", id=ref.id)).json())

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        for info in await self._listed(labels):
            yield info

    async def delete(self, ref: SandboxRef) -> None:
        try:
            await self.call("DELETE", f"/sandboxes/{ref.id}", what="delete", id=ref.id)
        except SandboxGone:
            return

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class MiniSandbox(Sandbox):
    """Translates."""

    def __init__(self, provider: MiniProvider, raw: Mapping[str, Any]) -> None:
        self.provider, self.info = provider, provider.info(raw)
        self._path = f"/sandboxes/{self.ref.id}"

    async def _call(self, method: str, path: str, what: str, **kw: Any) -> Any:
        return await self.provider.call(method, self._path + path, what=what, id=self.ref.id, **kw)

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
        assert isinstance(stdin, bytes | None)
        await self._call("GET", "", "exec")  # opens the client, and says if it is gone
        body = {
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "user": user,
            "stdin": base64.b64encode(stdin or b"").decode(),
        }
        client = self.provider._client
        assert client is not None
        code: int | None = None
        async with client.stream("POST", self._path + "/exec", json=body) as response:
            if response.status_code >= 300:
                raise ExecError((await response.aread()).decode(), ref=self.ref)
            async for line in response.aiter_lines():
                event = json.loads(line)
                code = event.get("code", code)
                if "stdout" in event:
                    on_output("stdout", base64.b64decode(event["stdout"]))
                if "stderr" in event:
                    on_output("stderr", base64.b64decode(event["stderr"]))
        if code is None:
            raise SandboxGone("it ended during the command", ref=self.ref)
        return RawResult(code)

    async def endpoint(self, port: int) -> Endpoint:
        told = (await self._call("POST", "/port", "endpoint", json={"port": port})).json()
        return Endpoint(self.provider.options.url + told["path"], headers={"X-Mini-Token": told["token"]})

    async def wait_exit(self) -> Exit:
        raw = (await self._call("GET", "/exit", "wait")).json()
        return Exit(raw["code"], base64.b64decode(raw["tail"]))

    async def delete(self) -> None:
        await self.provider.delete(self.ref)

    async def extend(self, lifetime_s: float) -> float:
        raw = (await self._call("POST", "/extend", "extend", json={"ttl_s": lifetime_s})).json()
        self.info = self.provider.info(raw)
        return float(raw["ends_at"])

    async def logs(self, *, tail: int | None = None) -> bytes:
        data: bytes = (await self._call("GET", "/log", "logs")).content
        return data if tail is None else b"".join(data.splitlines(keepends=True)[-tail:])


class BlindMiniProvider(MiniProvider):
    """The same without any way to look for a sandbox."""

    capabilities = replace(MiniProvider.capabilities, labels="journal", findable="none", lifetime="server-fixed")

    async def find(self, key: str) -> Sequence[SandboxRef]:
        return []

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        nothing: tuple[SandboxInfo, ...] = ()
        for info in nothing:
            yield info
