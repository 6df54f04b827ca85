"""What the contract suite needs to know of a backend, and the fixtures its parts share."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import pytest

from openenv_sandbox.errors import ConnectError, EndpointError, OpenEnvError
from openenv_sandbox.provider import ImageConfig, Prepared, Sandbox, SandboxProvider
from openenv_sandbox.running import RunningSandbox
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.starting import at_create, command_for, config_for, supplied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from openenv_sandbox.capabilities import Capabilities, ExecCapabilities
    from openenv_sandbox.client import GenericEnvClient
    from openenv_sandbox.provider import Image

NOT_DECLARED = "not declared: "
NO_HOOK = "no hook in the case: "
HANG_S = 60.0
"""Tells a hang from slowness; no test measures time."""


class Fault(Protocol):
    """One injected fault."""

    hits: int

    async def reached(self, timeout: float = ...) -> None:
        """Return once a call ran into it."""

    def release(self) -> None:
        """Let calls that hang go on."""


class FaultHook(Protocol):
    """How a case makes its backend fail; `openenv_sandbox.testing.faults.Faults` is one."""

    def add(self, op: str, **kw: Any) -> Fault:
        """Make ``op`` (create, find, list, delete, info, exec) fail.

        Keywords: ``when`` ("before" the backend acts or "after"), ``status`` (HTTP-like; 0 cuts the connection),
        ``retry_after``, ``hang``, ``late`` (create: seconds in which no look-up shows the sandbox), ``times``.
        """


@dataclass(frozen=True)
class ProviderCase:
    """One backend under test.

    Attributes:
        provider: The provider class.
        image: Something it boots that serves an environment, as users write images; or a `Prepared`.
        options: Its options.
        spec: Fields of every `SandboxSpec`.
        config: How the image is started where `image` does not say.
        reset: Keywords of reset.
        action: An action that the environment accepts.
        dying: Spec fields (usually ``command``) under which the server writes ``dying words`` and exits with 17.
        missing: A name of the kind of ``image`` that does not exist; None skips that test.
        brings: An image whose ENV, USER (a number) and WORKDIR are not the defaults, and its config; None skips that
            test.
        serves: Whether the image serves an environment; without, the tests of the server are skipped.
        faults: How to make the backend fail; None skips those tests.
        alive: Refs of what really exists at the backend, seen without the provider; None uses the provider.
        gone_s: Seconds until a deleted sandbox is certainly in no listing.
        child: ``module:Class`` of the provider for another process; None skips the tests that kill one.
        child_options: Its options there; None for ``options``, which must then be JSON.
        hold: Keeps the next create ``"request"`` (arrived, not yet acted upon) or its ``"reply"`` back; None for one
            that it cannot. By default ``faults`` does it.
        skip: Test name, with or without its parameters (``test_kill_9[request]``), to the reason why it does not
            apply, shown in the summary.
    """

    provider: type[SandboxProvider]
    image: str | Prepared = "fake-env:1"
    options: Any = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    config: ImageConfig | None = None
    reset: Mapping[str, Any] = field(default_factory=dict)
    action: Mapping[str, Any] = field(default_factory=dict)
    dying: Mapping[str, Any] | None = None
    missing: str | None = None
    brings: tuple[str, ImageConfig] | None = None
    serves: bool = True
    faults: FaultHook | None = None
    alive: Callable[[], int] | None = None
    gone_s: float = 30.0
    child: str | None = None
    child_options: Any = None
    hold: Callable[[str], Fault | None] | None = None
    skip: Mapping[str, str] = field(default_factory=dict)

    def make_spec(self, **fields: Any) -> SandboxSpec:
        """The case's spec with further fields."""
        name = self.image if isinstance(self.image, str) else self.image.ref
        return SandboxSpec(**{"image": name, **self.spec, **fields})


class DirectOwner:
    """Deletes through the provider, without launcher and journal."""

    def __init__(self, provider: SandboxProvider, sandbox: Sandbox) -> None:
        self._provider, self._sandbox = provider, sandbox

    @property
    def server(self) -> None:
        """The backend started it."""
        return None

    def serves(self, client: object) -> None:
        """Nobody watches it."""

    async def delete(self, *, confirm: bool) -> None:
        """Delete the sandbox."""
        await self._provider.delete(self._sandbox.ref)

    async def detach(self) -> None:
        """Nothing is owned elsewhere."""

    async def release(self) -> None:
        """Nothing is held."""


class Bench:
    """Makes sandboxes of one case and removes all of them."""

    def __init__(self, case: ProviderCase, provider: SandboxProvider) -> None:
        self.case, self.provider = case, provider
        self.keys: list[str] = []
        self.faces: list[RunningSandbox] = []
        self.prepared: Prepared | None = None
        self.made: list[Prepared] = []

    @property
    def caps(self) -> Capabilities:
        """What the provider declares here."""
        return self.provider.effective_capabilities()

    def key(self) -> str:
        """A fresh key."""
        self.keys.append(f"oe-{secrets.token_hex(4)}-{secrets.token_hex(6)}")
        return self.keys[-1]

    def labels(self, key: str, **more: str) -> dict[str, str]:
        """Labels as the launcher sets them."""
        return {"oe-install": "contract", "oe-run": "contract0", "oe-key": key, "oe-expires": "4102444800", **more}

    async def prepare(self) -> Prepared:
        """What to boot."""
        if isinstance(self.case.image, Prepared):
            return self.case.image
        if self.prepared is None:
            self.prepared = await self.prepare_for(self.case.make_spec())
        return self.prepared

    async def prepare_for(self, spec: SandboxSpec) -> Prepared:
        """What to boot for just this spec; dropped at the end."""
        image = await self.image()
        prepared = await self.provider.prepare(spec, image, on_log=lambda line: None)
        config = self.case.config or await config_for(spec, image, prepared, self.caps, serve=False)
        self.made.append(replace(prepared, image=config))
        return self.made[-1]

    async def image(self) -> Image:
        """The case's image, taken apart."""
        from openenv_sandbox.image import parse

        assert isinstance(self.case.image, str)
        return await asyncio.to_thread(parse, self.case.image)

    async def create(self, *, key: str | None = None, **fields: Any) -> Sandbox:
        """One sandbox."""
        key = key or self.key()
        labels = {**self.labels(key), **fields.pop("labels", {})}
        spec = self.case.make_spec(**fields)
        spec = spec.model_copy(update={"labels": {**spec.labels, **labels}})
        return await self.boot(await self.prepare(), spec, key)

    async def boot(self, prepared: Prepared, spec: SandboxSpec, key: str) -> Sandbox:
        """A sandbox of ``prepared``, asked for as a launch does."""
        command = command_for(spec, prepared.image, self.caps)
        spec = at_create(spec, supplied(spec, prepared.image, self.caps), command, prepared.image, self.caps)
        return await self.provider.create(prepared, spec, key=key)

    async def run(self, **fields: Any) -> RunningSandbox:
        """One sandbox with its public face."""
        sandbox = await self.create(**fields)
        return self.face(sandbox, **fields)

    def face(self, sandbox: Sandbox, **fields: Any) -> RunningSandbox:
        """The public face of ``sandbox``."""
        fields.pop("key", None)
        fields.pop("labels", None)
        spec = self.case.make_spec(**fields)
        owner = DirectOwner(self.provider, sandbox)
        known = self.case.image if isinstance(self.case.image, Prepared) else self.prepared
        image = supplied(spec, known.image if known is not None else None, self.caps)
        self.faces.append(RunningSandbox(sandbox, provider=self.provider, spec=spec, owner=owner, image=image))
        return self.faces[-1]

    async def connect(self, running: RunningSandbox) -> GenericEnvClient:
        """A client on the server of ``running``, through its endpoint; starts the server where core must."""
        from openenv_sandbox.client import GenericEnvClient

        if self.caps.start == "exec":
            prepared = await self.prepare()
            argv = running.spec.command or (prepared.image.argv if prepared.image else ())
            image = supplied(running.spec, prepared.image, self.caps)
            env = {**image.env, **running.spec.env, **running.spec.plain_secrets()}
            await running.spawn(argv, env=env, cwd=image.workdir, user=image.user)
        async with asyncio.timeout(HANG_S) if hasattr(asyncio, "timeout") else contextlib.AsyncExitStack():
            while True:
                endpoint = await self._endpoint(running)
                client: GenericEnvClient = GenericEnvClient(base_url=endpoint.url)
                client._bind(endpoint, refresh=None, token=None, sandbox=None, on_close=None, death=None)
                try:
                    await client.connect()
                except ConnectError:
                    await client.close()
                    await asyncio.sleep(0.05)
                    continue
                return client

    async def _endpoint(self, running: RunningSandbox) -> Any:
        while True:
            try:
                return await running.endpoint()
            except EndpointError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(0.05)

    async def until(self, what: str, probe: Callable[[], Any], *, timeout: float | None = None) -> None:
        """Wait until the awaited ``probe()`` is true."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.case.gone_s if timeout is None else timeout)
        while not await probe():
            if loop.time() > deadline:
                pytest.fail(f"not within {timeout or self.case.gone_s:g} s: {what}")
            await asyncio.sleep(0.05)

    async def clean(self) -> None:
        """Delete what was made, and close what carries endpoints."""
        for face in self.faces:
            with contextlib.suppress(OpenEnvError):
                await face.aclose()
        for key in self.keys:
            with contextlib.suppress(OpenEnvError):
                for ref in await self.provider.find(key):
                    await self.provider.delete(ref)
        for prepared in self.made:
            if prepared.owned:
                with contextlib.suppress(OpenEnvError):
                    await self.provider.drop(prepared)


class ContractBase:
    """Fixtures that every part of the suite uses."""

    openenv_contract: ClassVar[bool] = True
    pytestmark: ClassVar[Any] = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The library runs on asyncio."""
        return "asyncio"

    @pytest.fixture
    def provider_case(self) -> ProviderCase:
        """Overridden by the subclass."""
        raise pytest.UsageError("a subclass of ProviderContract needs a fixture `provider_case`")

    @pytest.fixture
    async def bench(self, provider_case: ProviderCase, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
        """Makes sandboxes."""
        name = request.node.originalname if isinstance(request.node, pytest.Function) else request.node.name
        reason = provider_case.skip.get(request.node.name, provider_case.skip.get(name))
        if reason is not None:
            pytest.skip(f"declined: {reason}")
        provider = await asyncio.to_thread(provider_case.provider, provider_case.options)
        bench = Bench(provider_case, provider)
        try:
            yield bench
        finally:
            await bench.clean()
            await provider.aclose()

    @pytest.fixture
    async def running(self, bench: Bench) -> RunningSandbox:
        """A sandbox with its public face; commands are declared."""
        self.exec_caps(bench)
        return await bench.run()

    def exec_caps(self, bench: Bench) -> ExecCapabilities:
        """The declared ways of running commands; skips where there are none."""
        caps = bench.caps.exec
        if caps is None:
            self.not_declared("exec")
        return caps

    def needs(self, declared: object, what: str) -> None:
        """Skip unless ``declared``."""
        if not declared:
            self.not_declared(what)

    def hook(self, offered: object, what: str) -> None:
        """Skip unless the case offers a way to ``what``: that says nothing about the backend."""
        if not offered:
            pytest.skip(NO_HOOK + what)

    def not_declared(self, what: str) -> NoReturn:
        """Skip what the backend does not declare."""
        pytest.skip(NOT_DECLARED + what)
