"""Contract suite: what happens when the backend fails. Needs `ProviderCase.faults`."""

from __future__ import annotations

import asyncio

import pytest

from openenv_sandbox.errors import (
    AuthError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from openenv_sandbox.testing.case import HANG_S, Bench, ContractBase, FaultHook


class FaultContract(ContractBase):
    """Errors are ours, say whether something may exist, and lose nothing."""

    def faults(self, bench: Bench) -> FaultHook:
        """The case's way to make the backend fail."""
        self.hook(bench.case.faults is not None, "fault injection")
        assert bench.case.faults is not None
        return bench.case.faults

    @pytest.mark.parametrize(
        ("status", "kind", "retryable"),
        [(401, AuthError, False), (403, AuthError, False), (402, QuotaExceeded, False), (429, RateLimited, True)],
    )
    async def test_create_refused(self, bench: Bench, status: int, kind: type[OpenEnvError], retryable: bool) -> None:
        """A refusal has its own class, certainly had no effect, and says whether waiting helps."""
        await bench.prepare()
        fault = self.faults(bench).add("create", status=status, retry_after=7.0 if status == 429 else None)
        key = bench.key()
        with pytest.raises(kind) as caught:
            await bench.create(key=key)
        assert fault.hits == 1
        assert (caught.value.outcome, caught.value.retryable) == ("failed", retryable)
        if isinstance(caught.value, RateLimited):
            assert caught.value.retry_after == 7.0
        assert list(await bench.provider.find(key)) == []

    async def test_create_server_error(self, bench: Bench) -> None:
        """A 5xx says that something may exist, and the key leads to what does."""
        await bench.prepare()
        fault = self.faults(bench).add("create", when="after", status=500)
        key = bench.key()
        with pytest.raises(ProviderError) as caught:
            await bench.create(key=key)
        assert fault.hits == 1
        assert (caught.value.outcome, caught.value.retryable) == ("unknown", True)
        assert len(await bench.provider.find(key)) == 1

    async def test_create_reply_lost(self, bench: Bench) -> None:
        """A connection cut before the reply says that something may exist, and the key leads to it."""
        await bench.prepare()
        fault = self.faults(bench).add("create", when="after", status=0)
        key = bench.key()
        with pytest.raises(ProviderError) as caught:
            await bench.create(key=key)
        assert fault.hits == 1
        assert caught.value.outcome == "unknown"
        assert len(await bench.provider.find(key)) == 1

    async def test_service_down(self, bench: Bench) -> None:
        """A 503 is ProviderUnavailable."""
        fault = self.faults(bench).add("find", status=503)
        with pytest.raises(ProviderUnavailable) as caught:
            await bench.provider.find(bench.key())
        assert fault.hits == 1
        assert caught.value.retryable

    async def test_list_breaks_off(self, bench: Bench) -> None:
        """A listing that breaks off raises: half of it never passes for the whole."""
        await bench.create()
        await bench.create()
        fault = self.faults(bench).add("list", half=1)
        with pytest.raises(OpenEnvError):
            [info async for info in bench.provider.list({})]
        assert fault.hits == 1

    async def test_delete_fails_loudly(self, bench: Bench) -> None:
        """A delete that failed is not taken for a delete that found nothing."""
        sandbox = await bench.create()
        fault = self.faults(bench).add("delete", status=500)
        with pytest.raises(ProviderError):
            await bench.provider.delete(sandbox.ref)
        assert fault.hits == 1
        await bench.provider.delete(sandbox.ref)
        assert list(await bench.provider.find(sandbox.ref.key or "")) == []

    async def test_hanging_call_is_cancellable(self, bench: Bench) -> None:
        """A call that hangs can be given up."""
        sandbox = await bench.create()
        fault = self.faults(bench).add("delete", hang=True)
        task = asyncio.ensure_future(bench.provider.delete(sandbox.ref))
        await fault.reached()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=HANG_S)
        assert done
        fault.release()

    async def test_errors_hide_secrets(self, bench: Bench) -> None:
        """A failing create does not repeat the secrets it was given."""
        await bench.prepare()
        self.faults(bench).add("create", status=500)
        with pytest.raises(OpenEnvError) as caught:
            await bench.create(secrets={"OE_SECRET": "s3kret-canary"})
        assert "s3kret-canary" not in f"{caught.value}{caught.value!r}{caught.value.__dict__}"
