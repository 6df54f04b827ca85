"""Each test of the suite fails on a provider that is broken in the way the test is about."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.testing import (
    FakeCloud,
    ProviderCase,
    ProviderContract,
    case,
    suite_exec,
    suite_faults,
    suite_launch,
    suite_process,
    suite_raw,
    suite_server,
)
from openenv_sandbox.testing.case import Bench
from tests.contract.broken_exec import EXEC, FILES, PROCESS, RAW
from tests.contract.broken_life import FAULTS, LAUNCH, LIFE, SERVER
from tests.contract.broken_spec import SPEC

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.broken_base import Broken

pytestmark = pytest.mark.anyio

BROKEN: dict[str, Broken] = {**RAW, **EXEC, **PROCESS, **FILES, **LIFE, **SERVER, **FAULTS, **LAUNCH, **SPEC}


def test_every_test_has_a_broken_provider() -> None:
    """A test without a provider that it catches proves nothing; one that is gone leaves no entry."""
    names = {name for name in dir(ProviderContract) if name.startswith("test_")}
    assert names == set(BROKEN)


@pytest.mark.parametrize("name", sorted(BROKEN))
async def test_the_suite_fails_on(
    name: str, tmp_path: Path, state_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test named so fails, and is not skipped."""
    for module in (case, suite_exec, suite_faults, suite_launch, suite_process, suite_raw, suite_server):
        monkeypatch.setattr(module, "HANG_S", 3.0)
    broken = BROKEN[name]
    with FakeCloud(**broken.cloud) as cloud:
        bound = cloud.provider(**{"user": False, **broken.caps})
        fields = {"address": bound.address, "capabilities": bound.capabilities, "sandbox_class": broken.sandbox}
        provider_case = ProviderCase(
            type(broken.provider.__name__, (broken.provider,), fields),
            **{
                "faults": cloud.faults,
                "options": {"address": cloud.address},
                "child": "openenv_sandbox.testing.fake:FakeProvider",
                "action": {"message": "hi"},
                "gone_s": 1.0,
                **broken.case,
            },
        )
        extra = {**broken.param, "tmp_path": tmp_path, "state_folder": state_dir, "caplog": caplog}
        with pytest.raises(BaseException) as caught:  # noqa: PT011  # any failure will do, a skip will not
            await run(name, provider_case, extra)
        assert not isinstance(caught.value, pytest.skip.Exception), caught.value
        assert not isinstance(caught.value, (TypeError, AttributeError, NameError, ImportError)), (
            "the test itself is broken"
        )
        cloud.faults.clear()


async def run(name: str, provider_case: ProviderCase, param: dict[str, Any]) -> None:
    """Run one test of the suite by hand."""
    test = getattr(ProviderContract(), name)
    wanted = inspect.signature(test).parameters
    provider = None
    bench: Bench | None = None
    values: dict[str, Any] = {"provider_case": provider_case, **param}
    try:
        if {"bench", "running"} & set(wanted):
            provider = await asyncio.to_thread(provider_case.provider, provider_case.options)
            values["bench"] = bench = Bench(provider_case, provider)
        if "running" in wanted:
            assert bench is not None
            values["running"] = await bench.run()
        result = test(**{key: values[key] for key in wanted})
        if inspect.isawaitable(result):
            await result
    finally:
        if bench is not None:
            await bench.clean()
        if provider is not None:
            await provider.aclose()
