"""Defects in the life of sandboxes, in the way to their server, and in errors."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from openenv_sandbox.errors import EndpointError, OpenEnvError, ProviderError, SandboxGone
from openenv_sandbox.provider import Endpoint, Exit, Prepared, Sandbox, SandboxInfo, SandboxRef
from openenv_sandbox.testing.fake import FakeSandbox
from tests.contract.broken_base import Broken, BrokenProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_sandbox.spec import SandboxSpec

DYING = {"command": ("/bin/sh", "-c", "echo dying words; exit 17")}


class NoTitle(BrokenProvider):
    title = ""


class AnyOption(BrokenProvider):
    @classmethod
    def parse_options(cls, options: Any) -> Any:
        return cls.Options()


class MovingScope(BrokenProvider):
    def scope(self) -> str:
        return secrets.token_hex(4)


class NoUserLabels(BrokenProvider):
    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        ours = {name: value for name, value in spec.labels.items() if name.startswith("oe-")}
        return await super().create(prepared, spec.model_copy(update={"labels": ours}), key=key)


class Talkative(BrokenProvider):
    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        sandbox = await super().create(prepared, spec, key=key)
        sandbox.info = replace(sandbox.info, image=f"{prepared.ref} {spec.plain_secrets()}")
        return sandbox


class FindsNothing(BrokenProvider):
    async def find(self, key: str) -> Sequence[SandboxRef]:
        return []


class FindsRunning(BrokenProvider):
    async def find(self, key: str) -> Sequence[SandboxRef]:
        infos = await self.call("find", key=key)
        return [self._info(info).ref for info in infos if info["status"] == "running"]


class ListsAll(BrokenProvider):
    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        async for info in super().list({}):
            yield info


class NeverAttaches(BrokenProvider):
    async def attach(self, ref: SandboxRef) -> Sandbox:
        raise SandboxGone("no such sandbox", ref=ref)


class AlwaysAttaches(BrokenProvider):
    async def attach(self, ref: SandboxRef) -> Sandbox:
        return FakeSandbox(self, SandboxInfo(ref))


class DeletesOnce(BrokenProvider):
    async def delete(self, ref: SandboxRef) -> None:
        await self.call("delete", id=ref.id)


class DeletesAll(BrokenProvider):
    async def delete(self, ref: SandboxRef) -> None:
        async for info in self.list({}):
            await super().delete(info.ref)


class DeletesAlone(BrokenProvider):
    busy = False

    async def delete(self, ref: SandboxRef) -> None:
        if self.busy:
            raise ProviderError("another delete is under way", provider=self.name)
        self.busy = True
        try:
            await super().delete(ref)
        finally:
            self.busy = False


class Internal(BrokenProvider):
    async def attach(self, ref: SandboxRef) -> Sandbox:
        try:
            return await super().attach(ref)
        except SandboxGone as error:
            raise KeyError(ref.id) from error


class Nameless(BrokenProvider):
    async def attach(self, ref: SandboxRef) -> Sandbox:
        try:
            return await super().attach(ref)
        except SandboxGone as error:
            error.provider = None
            raise


class Unpausable(FakeSandbox):
    async def pause(self) -> None:
        """Does nothing."""


class Forgetful(FakeSandbox):
    async def snapshot(self) -> Prepared:
        return replace(await super().snapshot(), ref="elsewhere")


class Elsewhere(FakeSandbox):
    async def endpoint(self, port: int) -> Endpoint:
        raise EndpointError("no way", ref=self.ref, retryable=False)


class OneEndpoint(FakeSandbox):
    first: ClassVar[Endpoint | None] = None

    async def endpoint(self, port: int) -> Endpoint:
        found = await super().endpoint(port)
        if type(self).first is None:
            type(self).first = found
        return Endpoint(type(self).first.url)  # type: ignore[union-attr]


class Shown(Endpoint):
    def __repr__(self) -> str:
        return f"<Endpoint {self.url} {self.headers}>"


class ShowsHeaders(FakeSandbox):
    async def endpoint(self, port: int) -> Endpoint:
        return Shown((await super().endpoint(port)).url, headers={"X-Token": "s3kret-canary"})


class AnyEndpoint(FakeSandbox):
    async def endpoint(self, port: int) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{port}")


class NoExitCode(FakeSandbox):
    async def wait_exit(self) -> Exit:
        return Exit(None, (await super().wait_exit()).tail)


class Waits(FakeSandbox):
    async def wait_exit(self) -> Exit:
        await asyncio.get_running_loop().create_future()
        raise AssertionError


class NoTail(FakeSandbox):
    async def logs(self, *, tail: int | None = None) -> bytes:
        return await super().logs()


class DropsSecrets(BrokenProvider):
    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        return await super().create(prepared, spec.model_copy(update={"secrets": {}}), key=key)


class OneError(BrokenProvider):
    def _fail(self, op: str, message: Mapping[str, Any]) -> NoReturn:
        raise ProviderError(f"{op} failed", provider=self.name)


class SureOfItself(BrokenProvider):
    """Says that every failed request had no effect."""

    async def call(self, op: str, **kw: Any) -> Any:
        try:
            return await super().call(op, **kw)
        except OpenEnvError as error:
            error.outcome = "failed"
            raise


class HalfList(BrokenProvider):
    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        try:
            async for info in super().list(labels):
                yield info
        except OpenEnvError:
            return


class QuietDelete(BrokenProvider):
    async def delete(self, ref: SandboxRef) -> None:
        try:
            await super().delete(ref)
        except OpenEnvError:
            return


class Uncancellable(BrokenProvider):
    async def delete(self, ref: SandboxRef) -> None:
        task = asyncio.ensure_future(super().delete(ref))
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                continue


class Repeats(BrokenProvider):
    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        try:
            return await super().create(prepared, spec, key=key)
        except OpenEnvError as error:
            raise ProviderError(f"create({spec.plain_secrets()}) failed", provider=self.name) from error


class DeletesNothing(BrokenProvider):
    async def delete(self, ref: SandboxRef) -> None:
        """Says that it did."""


class Chatty(BrokenProvider):
    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        logging.getLogger("vendor").debug("create %s", spec.plain_secrets())
        return await super().create(prepared, spec, key=key)


LIFE = {
    "test_class_facts": Broken("it has no title", NoTitle),
    "test_unknown_option": Broken("unknown options pass", AnyOption),
    "test_scope": Broken("the scope changes", MovingScope),
    "test_create": Broken("the user's labels are dropped", NoUserLabels),
    "test_refs_hold_no_secrets": Broken("the info shows the secrets", Talkative),
    "test_find": Broken("nothing is found", FindsNothing),
    "test_find_in_any_state": Broken("only what runs is found", FindsRunning, case={"dying": DYING}),
    "test_same_key_twice": Broken("one key gives two sandboxes", cloud={"dedupes": False}),
    "test_list": Broken("labels do not select", ListsAll),
    "test_attach": Broken("nothing can be attached", NeverAttaches),
    "test_attach_missing": Broken("everything can be attached", AlwaysAttaches),
    "test_delete": Broken("a second delete fails", DeletesOnce),
    "test_delete_leaves_others": Broken("delete removes everything", DeletesAll),
    "test_delete_at_once": Broken("two deletes disturb each other", DeletesAlone),
    "test_missing_image": Broken("any image boots", case={"missing": "no-such-image:1"}),
    "test_foreign_ref": Broken("an unknown id is an internal error", Internal),
    "test_extend": Broken("extending can shorten", cloud={"exact_extend": True}),
    "test_pause": Broken("pause does nothing", sandbox=Unpausable),
    "test_snapshot": Broken("a snapshot is empty", sandbox=Forgetful),
    "test_errors_name_the_sandbox": Broken("errors do not name the backend", Nameless),
}

SERVER = {
    "test_reset_and_step": Broken("there is no way to the server", sandbox=Elsewhere),
    "test_two_servers": Broken("every endpoint leads to the first", sandbox=OneEndpoint),
    "test_endpoint_is_private": Broken("the endpoint shows its headers", sandbox=ShowsHeaders),
    "test_undeclared_port": Broken("undeclared ports are accepted", sandbox=AnyEndpoint, caps={"ports": "at-create"}),
    "test_endpoint_of_the_gone": Broken("what is gone has an endpoint", sandbox=AnyEndpoint),
    "test_server_dies": Broken("the exit code is lost", sandbox=NoExitCode, case={"dying": DYING}),
    "test_wait_exit_of_the_gone": Broken("the wait never ends", sandbox=Waits),
    "test_logs": Broken("tail is ignored", sandbox=NoTail),
    "test_server_environment": Broken("secrets do not reach the server", DropsSecrets),
    "test_workload_user": Broken("the user is ignored", caps={"user": True}),
    "test_network_none": Broken("the network stays", caps={"network": frozenset({"full", "none"})}),
}

FAULTS = {
    "test_create_refused": Broken(
        "every error is the same", OneError, param={"status": 429, "kind": OpenEnvError, "retryable": True}
    ),
    "test_create_server_error": Broken("a 5xx certainly had no effect", SureOfItself),
    "test_create_reply_lost": Broken("a lost reply certainly had no effect", SureOfItself),
    "test_service_down": Broken("every error is the same", OneError),
    "test_list_breaks_off": Broken("half a listing passes for all", HalfList),
    "test_delete_fails_loudly": Broken("a failed delete passes", QuietDelete),
    "test_hanging_call_is_cancellable": Broken("a call cannot be given up", Uncancellable),
    "test_errors_hide_secrets": Broken("the error repeats the secrets", Repeats),
}

LAUNCH = {
    "test_launch": Broken("nothing is deleted", DeletesNothing),
    "test_launch_cancelled": Broken("nothing is deleted", DeletesNothing, param={"stage": "created", "mode": "cancel"}),
    "test_launch_server_dies": Broken("the exit code is lost", sandbox=NoExitCode, case={"dying": DYING}),
    "test_launch_hides_secrets": Broken("the SDK logs the secrets", Chatty),
    "test_kill_9": Broken("nothing is deleted", DeletesNothing, param={"point": "request"}),
}
