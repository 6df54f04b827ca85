"""What is asked of Runloop about devboxes and what stands beside them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from openenv_providers._runloop_api import ENDED, Api, missing
from openenv_providers._runloop_convert import POLICY, info, labels_in, request
from openenv_sandbox.backend_kit import undo
from openenv_sandbox.errors import (
    CreateTimeout,
    ImageError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    SandboxGone,
)
from openenv_sandbox.values import KEY, SandboxInfo, SandboxRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.provider import Prepared
    from openenv_sandbox.spec import SandboxSpec

# In the order of a devbox's life, and "running" again, so that none moves past the question.
ASKED = ("scheduled", "queued", "provisioning", "initializing", "running", "suspending", "suspended", "resuming")
TAKE_S = 300.0
BOOTING = ("scheduled", "queued", "provisioning", "initializing")
_PAGE = 1000


class Devboxes:
    """The devboxes of one account."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def ref(self, view: Any) -> SandboxRef:
        """The name of a devbox."""
        return info(self.api.scope, view).ref

    async def create(self, prepared: Prepared, spec: SandboxSpec, key: str, architecture: str) -> Any:
        """A devbox that runs. What is half made is removed; after a lost reply nobody knows what there is."""
        policy = await self._policy(spec, key)
        body = request(prepared, spec, key, architecture, policy)
        try:
            view = await self.api.call(
                "creating a devbox",
                lambda client: client.devboxes.create(**body, idempotency_key=key),
                started=True,
            )
        except OpenEnvError as error:
            if policy is not None and error.outcome == "failed":
                with contextlib.suppress(OpenEnvError):  # the first error says more
                    await self._drop_policy(policy)
            if isinstance(error, SandboxGone):
                raise ImageError(
                    f"{error.message}: was it removed?", provider="runloop", hint="launch again"
                ) from error
            raise
        ref = self.ref(view)
        try:
            return await asyncio.wait_for(self._running(view, ref), spec.timeouts.create)
        except asyncio.TimeoutError as error:
            late = CreateTimeout(f"the devbox did not run within {spec.timeouts.create:g} s", ref=ref)
            await undo(self.delete(ref), late)
            raise late from error
        except BaseException as error:
            await undo(self.delete(ref), error)
            raise

    async def _running(self, view: Any, ref: SandboxRef) -> Any:
        if view.status != "running":
            view = await self._settled(ref)
        if view.status != "running":
            told = [change.failure_reason for change in view.state_transitions if change.failure_reason]
            why = (told or [view.failure_reason or view.shutdown_reason or "no reason given"])[-1]
            raise ProviderError(f"the devbox did not boot: {view.status}, {why}", ref=ref, retryable=True)
        return view

    async def _settled(self, ref: SandboxRef) -> Any:
        """It, when it boots no more."""
        from runloop_api_client.types import DevboxView

        return await self.api.reached(f"/v1/devboxes/{ref.id}", ("running", "suspended", *ENDED), DevboxView, ref)

    async def taken(self, ref: SandboxRef) -> Any:
        """A devbox of another process, once it takes commands: after a lost reply it may still boot.

        Raises:
            SandboxGone: It does not exist, or has ended.
            ProviderUnavailable: It boots for too long.
        """
        view = await self.view(ref)
        if view.status not in BOOTING:
            return view
        try:
            await asyncio.wait_for(self._settled(ref), TAKE_S)
        except asyncio.TimeoutError as error:
            late = f"the devbox still boots after {TAKE_S:g} s"
            raise ProviderUnavailable(late, ref=ref, retryable=True) from error
        return await self.view(ref)

    async def view(self, ref: SandboxRef) -> Any:
        """A devbox as it is now; one that has ended is gone.

        Raises:
            SandboxGone: It does not exist, or has ended.
        """
        if ref.id.startswith(POLICY):
            raise SandboxGone("no devbox came of it: there is a network policy only", ref=ref)
        view = await self._look(ref)
        if view.status in ENDED:
            raise SandboxGone(
                f"the devbox has ended: {view.shutdown_reason or view.failure_reason or 'shutdown'}", ref=ref
            )
        return view

    async def _look(self, ref: SandboxRef) -> Any:
        return await self.api.call("looking at the devbox", lambda client: client.devboxes.retrieve(ref.id), ref=ref)

    async def gone_or(self, error: OpenEnvError, ref: SandboxRef) -> OpenEnvError:
        """``error``, or that the devbox is gone, where the service refused for that reason.

        Its words for it are not documented, so the devbox is looked at.
        """
        if isinstance(error, SandboxGone) or type(error) is not ProviderError or error.outcome != "failed":
            return error
        try:
            await self.view(ref)
        except SandboxGone as gone:
            return gone
        except OpenEnvError:
            return error
        return error

    async def living(self, labels: Mapping[str, str]) -> list[Any]:
        """Every devbox with these labels that has not ended. The service filters by status only."""
        found: dict[str, Any] = {}
        for status in (*ASKED, "running"):
            for view in await self.api.rows("listing devboxes", _page(status)):
                if view.status not in ENDED and all(view.metadata.get(name) == text for name, text in labels.items()):
                    found[view.id] = view
        return list(found.values())

    async def orphans(self, labels: Mapping[str, str], key: str | None = None) -> dict[str, SandboxInfo]:
        """Network policies with these labels, by id: those of devboxes that live are to be left out."""
        more = {} if key is None else {"name": key}
        rows = await self.api.rows("listing network policies", lambda c: c.network_policies.list(limit=_PAGE, **more))
        found = {}
        for row in rows:
            its = labels_in(row.description)
            if KEY in its and its[KEY] == row.name and labels.items() <= its.items():
                ref = SandboxRef("runloop", self.api.scope, f"{POLICY}{row.id}", row.name)
                found[row.id] = SandboxInfo(ref, "failed", labels=its, created_at=row.create_time_ms / 1000)
        return found

    async def delete(self, ref: SandboxRef) -> None:
        """Shut it down and remove its network policy. The record of it stays with the vendor for good."""
        if ref.id.startswith(POLICY):
            for late in await self.living({KEY: ref.key or ""}):
                await self.delete(self.ref(late))
            return await self._drop_policy(ref.id.removeprefix(POLICY))
        view = None
        with missing():
            view = await self._look(ref)
            if view.status != "shutdown":
                await self.api.call(
                    "shutting the devbox down",
                    lambda client: client.devboxes.shutdown(ref.id, force="true"),
                    ref=ref,
                    started=True,
                )
        key = ref.key or (view.metadata.get(KEY) if view is not None else None)
        if key is not None and (view is None or view.launch_parameters.network_policy_id):
            for id in await self.orphans({KEY: key}, key):
                await self._drop_policy(id)

    async def _policy(self, spec: SandboxSpec, key: str) -> str | None:
        """The id of a policy made for one devbox, with its name and labels; None where it needs none."""
        network = spec.network
        if network.mode == "full":
            return None
        made = await self.api.call(
            "making a network policy",
            lambda client: client.network_policies.create(
                name=key,
                description=json.dumps({**spec.labels, KEY: key}),
                allow_all=False,
                allowed_hostnames=list(network.hosts),
                allowed_cidrs=[{"cidr": cidr} for cidr in network.cidrs],
            ),
            started=True,
        )
        return str(made.id)

    async def _drop_policy(self, id: str) -> None:
        with missing():
            await self.api.call("removing its network policy", lambda client: client.network_policies.delete(id))


def _page(status: str) -> Any:
    return lambda client: client.devboxes.list(status=status, limit=_PAGE, include_total_count=False)
