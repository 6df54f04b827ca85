from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from openenv_sandbox import capcheck, registry
from openenv_sandbox.capabilities import Capabilities, Sizes, Span
from openenv_sandbox.errors import CapabilityError
from openenv_sandbox.provider import Image
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.testing.fake import FULL, FakeCloud, FakeProvider

REF = Image("ref", "echo:1", source="echo:1")
FOLDER = Image("folder", "echo", path="/x", source="./echo")


def _spec(**fields: Any) -> SandboxSpec:
    return SandboxSpec.model_validate({"image": "echo:1", **fields})


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], Image]] = [
    ("image", {}, {"images": frozenset({"ref"})}, FOLDER),
    ("command", {"command": ["x"]}, {"start": "image"}, REF),
    ("command", {}, {"start": "exec", "exec": None}, REF),
    ("port", {}, {"ports": "none"}, REF),
    ("exposure", {}, {"exposure": frozenset({"public"})}, REF),
    (
        "ports[9000].visibility",
        {"exposure": "public", "ports": [{"number": 9000, "visibility": "private"}]},
        {"exposure": frozenset({"public"})},
        REF,
    ),
    ("ports[9000].protocol", {"ports": [{"number": 9000, "protocol": "tcp"}]}, {}, REF),
    ("hardening", {"hardening": "strict"}, {}, REF),
    ("reload", {"reload": True}, {}, REF),
    ("isolation", {"isolation": "vm"}, {"isolation": "container"}, REF),
    ("isolation", {"isolation": "process"}, {"isolation": "unknown"}, REF),
    ("network", {"network": "none"}, {"network": frozenset({"full"})}, REF),
    ("network", {}, {"network": frozenset({"none"})}, REF),
    ("network", {"network": {"mode": "allowlist", "hosts": ["*.a.org"]}}, {"network": frozenset({"hosts"})}, REF),
    ("network", {"network": {"mode": "allowlist", "cidrs": ["fd00::/8"]}}, {"network": frozenset({"cidr4"})}, REF),
    ("resources.gpus", {"resources": {"gpus": "H100:2"}}, {"gpus": ("A10",)}, REF),
    ("resources.cpus", {"resources": {"cpus": 2}}, {"sizes": Sizes(limits=frozenset())}, REF),
    ("resources.memory_mb", {"resources": {"memory_mb": 9000}}, {"sizes": Sizes(memory_mb=(1024, 4096))}, REF),
    ("user", {"user": "nobody"}, {"user": False}, REF),
    ("timeouts.lifetime", {"timeouts": {"episode": 90000}}, {"max_lifetime_s": 86400}, REF),
]


@pytest.mark.parametrize(("field", "spec", "lacks", "image"), REFUSED)
def test_what_cannot_be_honoured_is_refused(
    field: str, spec: dict[str, Any], lacks: dict[str, Any], image: Image
) -> None:
    """The error names the field, and the backends that could.

    Scenario: M03
    Mutation: the check of that field is taken out of capcheck._CHECKS
    """

    class Able(FakeProvider):
        name = "able"
        capabilities = replace(
            FULL,
            isolation="vm",
            network=frozenset({"full", "none", "hosts", "wildcard", "cidr4", "cidr6"}),
            gpus=("*",),
            protocols=frozenset({"http", "tcp"}),
            hardening=True,
            reload=True,
        )

    with registry.registered(Able), pytest.raises(CapabilityError) as caught:
        capcheck.check(_spec(**spec), image, replace(FULL, **lacks), provider="lacking")
    assert caught.value.field == field
    assert "able" in caught.value.alternatives
    assert f"{', '.join(caught.value.alternatives)} can" in str(caught.value)
    assert capcheck.check(_spec(**spec), image, Able.capabilities, provider="able")


def test_who_accepts_public_may_get_private() -> None:
    spec = _spec(exposure="public", ports=[9000, {"number": 9001, "visibility": "private"}])
    assert [port.visibility for port in spec.all_ports] == ["public", "public", "private"]
    assert capcheck.check(spec, REF, replace(FULL, exposure=frozenset({"private"})), provider="p")


def test_a_sandbox_without_a_server_publishes_no_port() -> None:
    """Where ports can only be public, what asks for none is not refused; a private one that is asked for is.

    Mutation: capcheck._exposure skips every port when ``serve`` is False
    """
    public = replace(FULL, exposure=frozenset({"public"}))
    assert capcheck.check(_spec(), REF, public, provider="p", serve=False)
    with pytest.raises(CapabilityError, match="9000"):
        capcheck.check(_spec(ports=[9000]), REF, public, provider="p", serve=False)


@pytest.mark.parametrize(
    "fields",
    [
        {"network": {"mode": "allowlist", "cidrs": ["nonsense"]}},
        {"network": {"mode": "allowlist", "hosts": ["http://x/"]}},
        {"resources": {"gpus": "2"}},
        {"isolation": "unknown"},
        {"ports": [70000]},
    ],
)
def test_what_means_nothing_is_an_error_of_the_spec(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        _spec(**fields)


@pytest.mark.anyio
async def test_the_backend_has_the_last_word_before_anything_is_created() -> None:
    """``fit`` refuses what capabilities cannot express.

    Mutation: pipeline calls ``fit`` after prepare, or not at all
    """
    from openenv_sandbox import launch

    with FakeCloud() as cloud:
        provider = cloud.provider()

        def fit(self: object, spec: SandboxSpec, image: Image) -> SandboxSpec:
            raise CapabilityError("sold only together", field="resources")

        provider.fit = fit  # type: ignore[method-assign]
        with pytest.raises(CapabilityError, match="sold only together"):
            await launch("fake-env:1", provider=provider)
        assert cloud.calls == []


def test_sizes_are_rounded_up_to_those_sold() -> None:
    caps = Capabilities(sizes=Sizes(cpus=(1, 2, 4), memory_mb=(512, 2048)))
    spec = _spec(resources={"cpus": 2.5, "memory_mb": 512, "disk_mb": 77})
    rounded = capcheck.check(spec, REF, caps, provider="p").resources
    assert (rounded.cpus, rounded.memory_mb, rounded.disk_mb) == (4, 512, 77)


@pytest.mark.parametrize(
    ("sold", "wanted", "granted"),
    [
        (Span(256, 8192), 100, 256),
        (Span(256, 8192), 1000, 1000),
        (Span(128, None, 2), 1001, 1002),
        (Span(1024, 2000, 1024), 1500, 2000),
        (Span(1024, None, 1024), 4096, 4096),
    ],
)
def test_sizes_of_a_span(sold: Span, wanted: int, granted: int) -> None:
    sizes = Sizes(memory_mb=sold)
    found = capcheck.check(_spec(resources={"memory_mb": wanted}), REF, Capabilities(sizes=sizes), provider="p")
    assert found.resources.memory_mb == granted
    assert isinstance(found.resources.memory_mb, int)


def test_cores_of_a_span_may_be_fractions() -> None:
    caps = Capabilities(sizes=Sizes(cpus=Span(0.25, 8, 0.25)))
    assert capcheck.check(_spec(resources={"cpus": 0.3}), REF, caps, provider="p").resources.cpus == 0.5
    with pytest.raises(CapabilityError, match="the largest it sells, 8"):
        capcheck.check(_spec(resources={"cpus": 9}), REF, caps, provider="p")


def test_without_a_server_no_port_is_needed() -> None:
    capcheck.check(_spec(), REF, Capabilities(ports="none"), provider="p", serve=False)


@pytest.mark.anyio
async def test_a_refusal_comes_before_any_request() -> None:
    """Nothing is created, prepared or written for what is refused.

    Scenario: C11
    Mutation: pipeline checks capabilities after the journal's intent
    """
    from openenv_sandbox import launch
    from openenv_sandbox.journal import Journal

    with FakeCloud() as cloud:
        provider = cloud.provider(exposure=frozenset({"public"}))
        with pytest.raises(CapabilityError, match="exposure"):
            await launch("fake-env:1", provider=provider)
        assert cloud.calls == []
        assert await (await Journal.open()).rows() == []
        async with launch("fake-env:1", provider=provider, exposure="public") as env:
            await env.reset()
