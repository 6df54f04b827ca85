"""Contract suite: what a spec asks for is granted, and said."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from openenv_sandbox import capcheck
from openenv_sandbox.errors import ImageError
from openenv_sandbox.provider import Image
from openenv_sandbox.testing.case import Bench, ContractBase

if TYPE_CHECKING:
    from openenv_sandbox.provider import Sandbox

SLACK_S = 900.0
"""By how much a backend may end a sandbox later than asked, in seconds."""


class SpecContract(ContractBase):
    """Sizes, lifetime, pulling, and what the image brings."""

    async def boot(self, bench: Bench, **fields: Any) -> Sandbox:
        """A sandbox of the case's image, prepared for just this spec, refused and rounded as by a launch."""
        key, ready = bench.key(), bench.case.image
        image = await bench.image() if isinstance(ready, str) else Image("ref", ready.ref)
        spec = bench.case.make_spec(labels=bench.labels(key), **fields)
        spec = capcheck.check(spec, image, bench.caps, provider=bench.provider.name, serve=False)
        spec = bench.provider.fit(spec, image)
        prepared = await bench.prepare_for(spec) if isinstance(ready, str) else ready
        return await bench.boot(prepared, spec, key)

    async def test_resources_granted(self, bench: Bench) -> None:
        """Sizes that are asked for are granted, never less, and ``info.resources`` says how much."""
        limits = sorted({"cpus", "memory_mb"} & bench.caps.sizes.limits)
        self.needs(limits, "sizes")
        asked = {"cpus": 1.0, "memory_mb": 1000}
        info = (await self.boot(bench, resources={name: asked[name] for name in limits})).info
        assert info.resources is not None, "nothing says what was granted"
        for name in limits:
            granted = getattr(info.resources, name)
            assert granted is not None, f"{name} was asked for, and nothing says how much was granted"
            assert granted >= asked[name]

    async def test_expires_at_is_told(self, bench: Bench) -> None:
        """A backend that ends sandboxes at a time says when: not before what was asked for, nor much later."""
        self.needs(bench.caps.lifetime.startswith("server"), "a lifetime of the backend's")
        before = time.time()
        sandbox = await bench.create()
        ends = sandbox.info.expires_at
        assert ends is not None, "nothing says when the backend ends it"
        lifetime = bench.case.make_spec().timeouts.effective_lifetime
        # The backend's clock may differ from ours, as an emulator's does that a test has moved.
        shift = max(0.0, (sandbox.info.created_at or before) - before)
        assert before + lifetime - 60 <= ends <= time.time() + shift + lifetime + SLACK_S

    async def test_pull_always(self, bench: Bench) -> None:
        """``pull="always"`` boots the image anew from where it comes from, or says that it is not there."""
        self.needs("ref" in bench.caps.images, "refs")
        self.hook(isinstance(bench.case.image, str), "an image to prepare")
        with contextlib.suppress(ImageError):
            assert (await self.boot(bench, pull="always")).ref.id

    async def test_image_environment(self, bench: Bench) -> None:
        """ENV, USER and WORKDIR of an image apply to commands, whether the backend or core sees to it."""
        from openenv_sandbox import sandbox

        brings = bench.case.brings
        self.hook(brings, "an image that sets ENV, USER and WORKDIR")
        assert brings is not None
        self.exec_caps(bench)
        image, config = brings
        names = sorted(config.env)
        script = "id -u; pwd -P; for n; do eval 'printf \"%s\\n\" \"$'$n'\"'; done"
        async with sandbox(image, provider=bench.case.provider, options=bench.case.options, **bench.case.spec) as box:
            bench.keys.append(box.ref.key or "")
            said = await box.exec(["/bin/sh", "-c", script, "sh", *names])
        uid, folder, *values = said.text().splitlines()
        assert (uid, folder) == ((config.user or "0").partition(":")[0], config.workdir or "/")
        assert dict(zip(names, values, strict=True)) == dict(config.env)
