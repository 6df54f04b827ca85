"""Defects in what a spec asks for, what is said about it, and what an image brings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from openenv_sandbox.capabilities import IMAGE_PARTS
from openenv_sandbox.errors import ProviderError
from openenv_sandbox.provider import ImageConfig, Prepared, Sandbox
from openenv_sandbox.spec import Resources
from tests.contract.broken_base import Broken, BrokenProvider
from tests.contract.broken_life import NeverAttaches

if TYPE_CHECKING:
    from openenv_sandbox.provider import Image, LogSink
    from openenv_sandbox.spec import SandboxSpec

CONFIG = ImageConfig(cmd=("sleep", "1000"), env={"MARK": "m"}, workdir="/usr")


class RoundsDown(BrokenProvider):
    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        sandbox = await super().create(prepared, spec, key=key)
        sandbox.info = replace(sandbox.info, resources=Resources(cpus=1.0, memory_mb=512))
        return sandbox


class SaysNoEnd(BrokenProvider):
    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        sandbox = await super().create(prepared, spec, key=key)
        sandbox.info = replace(sandbox.info, expires_at=None)
        return sandbox


class NeverPullsAgain(BrokenProvider):
    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        if spec.pull == "always":
            raise ProviderError("it is there already", provider=self.name)
        return await super().prepare(spec, image, on_log=on_log)


class DropsWhatItKeeps(BrokenProvider):
    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        return Prepared(image.name, image=CONFIG)


SPEC = {
    "test_resources_granted": Broken("the next smaller size is granted", RoundsDown),
    "test_expires_at_is_told": Broken("nothing says when the backend ends it", SaysNoEnd),
    "test_pull_always": Broken("an error that is none of an image", NeverPullsAgain),
    "test_image_environment": Broken(
        "it declares that it keeps ENV and WORKDIR, and drops them",
        DropsWhatItKeeps,
        caps={"keeps": IMAGE_PARTS},
        case={"brings": ("fake-env:1", CONFIG)},
    ),
    "test_attach_after_detach": Broken("nobody else can take a sandbox over", NeverAttaches),
}
