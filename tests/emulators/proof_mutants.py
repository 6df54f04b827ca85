"""Providers broken on purpose, each in one way that the proof must notice; made from any provider by subclassing it.

`EmulatorProof.test_mutant` runs, for each, the test named here in a pytest of its own and wants it to fail.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import AuthError, OpenEnvError, ProviderUnavailable, QuotaExceeded, RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable

    from openenv_sandbox.provider import SandboxProvider
    from tests.emulators.proof_stage import Emulated

VARIABLE = "PROOF_MUTANT"


@dataclass(frozen=True)
class Mutant:
    """One way to be broken.

    Attributes:
        test: The test that must fail.
        provider: Members of a subclass of the provider, made from that provider.
        sandbox: Members of a subclass of its sandboxes, made from their class.
        applies: Whether the backend has what is broken here.
    """

    test: str
    provider: Callable[[Any], dict[str, Any]] | None = None
    sandbox: Callable[[Any], dict[str, Any]] | None = None
    applies: Callable[[Emulated], bool] = lambda emulated: True

    def of(self, base: type[SandboxProvider]) -> type[SandboxProvider]:
        """The broken provider."""
        members = self.provider(base) if self.provider is not None else {}
        if self.sandbox is not None:
            members |= _with_sandboxes(members.get("create", base.create), base.attach, self.sandbox)
        return type(base.__name__, (base,), members)


def _with_sandboxes(create: Any, attach: Any, sandbox: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    def changed(made: Any) -> Any:
        made.__class__ = type(type(made).__name__, (type(made),), sandbox(type(made)))
        return made

    async def new_create(self: Any, *args: Any, **kw: Any) -> Any:
        return changed(await create(self, *args, **kw))

    async def new_attach(self: Any, ref: Any) -> Any:
        return changed(await attach(self, ref))

    return {"create": new_create, "attach": new_attach}


def _lives_on(base: Any) -> dict[str, Any]:
    async def create(self: Any, prepared: Any, spec: Any, *, key: str) -> Any:
        timeouts = spec.timeouts.model_copy(update={"lifetime": self.capabilities.max_lifetime_s or 10_000_000.0})
        return await base.create(self, prepared, spec.model_copy(update={"timeouts": timeouts}), key=key)

    return {"create": create}


def _without_the_key(base: Any) -> dict[str, Any]:
    async def create(self: Any, prepared: Any, spec: Any, *, key: str) -> Any:
        labels = {**spec.labels, "oe-key": "oe-00000000-000000000000"}
        return await base.create(
            self, prepared, spec.model_copy(update={"labels": labels}), key="oe-00000000-000000000000"
        )

    return {"create": create}


def _finds_nothing(base: Any) -> dict[str, Any]:
    async def find(self: Any, key: str) -> Any:
        return []

    return {"find": find}


def _creates_again(base: Any) -> dict[str, Any]:
    async def create(self: Any, prepared: Any, spec: Any, *, key: str) -> Any:
        try:
            return await base.create(self, prepared, spec, key=key)
        except OpenEnvError as error:
            if error.outcome != "unknown":
                raise
            return await base.create(self, prepared, spec, key=key)

    return {"create": create}


def _gives_up_at_the_cap(base: Any) -> dict[str, Any]:
    async def create(self: Any, prepared: Any, spec: Any, *, key: str) -> Any:
        try:
            return await base.create(self, prepared, spec, key=key)
        except RateLimited as error:
            raise QuotaExceeded("the cap", provider=self.name) from error

    return {"create": create}


def _storms(base: Any) -> dict[str, Any]:
    async def create(self: Any, prepared: Any, spec: Any, *, key: str) -> Any:
        for _ in range(9):
            try:
                return await base.create(self, prepared, spec, key=key)
            except RateLimited:
                continue
        return await base.create(self, prepared, spec, key=key)

    return {"create": create}


def _sleeps(base: Any) -> dict[str, Any]:
    async def create(self: Any, prepared: Any, spec: Any, *, key: str) -> Any:
        try:
            time.sleep(0.001)  # noqa: ASYNC251 - that is the mutation
        except Exception:
            pass
        return await base.create(self, prepared, spec, key=key)

    return {"create": create}


def _believes_in_deletes(base: Any) -> dict[str, Any]:
    async def delete(self: Any, ref: Any) -> None:
        try:
            await base.delete(self, ref)
        except OpenEnvError:
            return

    return {"delete": delete}


def _retries_auth(base: Any) -> dict[str, Any]:
    async def create(self: Any, prepared: Any, spec: Any, *, key: str) -> Any:
        try:
            return await base.create(self, prepared, spec, key=key)
        except AuthError as error:
            raise ProviderUnavailable("not now", provider=self.name, retryable=True) from error

    async def prepare(self: Any, spec: Any, image: Any, *, on_log: Any) -> Any:  # where a builder asks first
        try:
            return await base.prepare(self, spec, image, on_log=on_log)
        except AuthError as error:
            raise ProviderUnavailable("not now", provider=self.name, retryable=True) from error

    return {"create": create, "prepare": prepare}


def _drops_the_secrets(base: Any) -> dict[str, Any]:
    async def create(self: Any, prepared: Any, spec: Any, *, key: str) -> Any:
        return await base.create(self, prepared, spec.model_copy(update={"secrets": {}}), key=key)

    return {"create": create}


def _declares_less(base: Any) -> dict[str, Any]:
    return {"capabilities": replace(base.capabilities, attach=False)}


def _keeps_the_first_endpoint(base: Any) -> dict[str, Any]:
    async def endpoint(self: Any, port: int) -> Any:
        if getattr(self, "_first", None) is None:
            self._first = await base.endpoint(self, port)
        return self._first

    return {"endpoint": endpoint}


def _shows_no_token(base: Any) -> dict[str, Any]:
    async def endpoint(self: Any, port: int) -> Any:
        way = await base.endpoint(self, port)
        bare = way.url.partition("?")[0]
        if bare == way.url and not way.headers:  # the address itself is the token
            bare = "/".join(bare.split("/")[:3])
        way.url, way.headers = bare, {}
        return way

    return {"endpoint": endpoint}


def _is_not_kept_alive(base: Any) -> dict[str, Any]:
    async def extend(self: Any, lifetime_s: float) -> float:
        return time.time() + lifetime_s

    async def keep_alive(self: Any) -> None:
        return

    return {"extend": extend, "keep_alive": keep_alive}


def _has_token(emulated: Emulated) -> bool:
    return not isinstance(emulated.wrong_token, str)


def _caps(name: str, *values: str) -> Callable[[Emulated], bool]:
    return lambda emulated: getattr(emulated.provider.capabilities, name) in values


MUTANTS: dict[str, Mutant] = {
    "believes that a failed delete is done": Mutant("test_delete_fails_at_first", _believes_in_deletes),
    "creates again after a lost reply": Mutant(
        "test_reply_lost", _creates_again, applies=lambda emulated: not emulated.provider.capabilities.dedupes_key
    ),
    "declares less than it can": Mutant("test_declares_what_the_sdk_can", _declares_less),
    "does not send the key": Mutant("test_reply_lost", _without_the_key),
    "drops the secrets": Mutant("test_wishes_over_the_image", _drops_the_secrets, applies=_caps("start", "command")),
    "finds nothing": Mutant("test_killed_child", _finds_nothing),
    "gives up at the cap": Mutant("test_waiters_at_the_cap", _gives_up_at_the_cap),
    "is not kept alive": Mutant(
        "test_a_long_silence_and_a_dead_owner",
        sandbox=_is_not_kept_alive,
        applies=_caps("lifetime", "server-extendable", "idle-only"),
    ),
    "keeps the first endpoint": Mutant(
        "test_expired_token", sandbox=_keeps_the_first_endpoint, applies=lambda e: not isinstance(e.expire, str)
    ),
    "lives on past its lifetime": Mutant(
        "test_lifetime_ends_in_a_long_step", _lives_on, applies=_caps("lifetime", "server-extendable", "server-fixed")
    ),
    "retries a bad credential": Mutant(
        "test_wrong_credential", _retries_auth, applies=lambda e: not isinstance(e.wrong_auth, str)
    ),
    "shows no token": Mutant("test_through_the_port_url", sandbox=_shows_no_token, applies=_has_token),
    "sleeps on the loop": Mutant("test_reply_lost", _sleeps),
    "storms the cap": Mutant("test_cap_outlasts_the_timer", _storms),
}


def mutated(base: type[SandboxProvider]) -> type[SandboxProvider]:
    """``base``, or the mutant of it that the environment names."""
    name = os.environ.get(VARIABLE)
    return MUTANTS[name].of(base) if name else base
