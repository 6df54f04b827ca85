"""Templates of e2b and novita: made from a registry ref or a folder by the service's builder, found again by name.

A name says which install made the template and what it holds (`openenv-<install>-<env>-<hash>`), so that equal wishes
meet in one template, across processes too: a build that somebody else has begun is followed instead of repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from openenv_providers._e2b_errors import from_reply
from openenv_providers._e2b_sdk import known
from openenv_sandbox.errors import AuthError, BuildError, ImageError, OpenEnvError, ProviderError
from openenv_sandbox.lifecycle import CountedThreads
from openenv_sandbox.provider import Image, ImageConfig, LogSink, Prepared
from openenv_sandbox.redact import clean, mask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from openenv_providers._e2b_base import CloudProvider
    from openenv_providers._e2b_dockerfile import Step
    from openenv_sandbox.spec import RegistryAuth, SandboxSpec

RECIPE = "1"
"""Changes whenever templates are made in another way, so that older ones are not taken for new ones."""
_NAME = re.compile(r"openenv-(?P<snapshot>snapshot-)?(?P<install>[a-z0-9]+)-")
_STATUS = re.compile(r"\s*(?P<status>[1-5]\d\d): (?P<text>.*)", re.DOTALL)
_NO_IMAGE = re.compile(
    r"manifest.unknown|image.{0,200}(not found|does not exist)|no such image|repository does not exist|name.unknown"
    r"|pull access denied",
    re.IGNORECASE | re.DOTALL,
)
_NO_LOGIN = re.compile(r"unauthorized|authentication required|access denied|\b40[13]\b", re.IGNORECASE)
_WAITING_S = 900.0
"""A build that was asked for and not begun for so long was given up by whoever asked."""
_LOG_LINES = 200
_threads = CountedThreads(8)


@dataclass(frozen=True)
class _Recipe:
    base: str
    name: str
    config: ImageConfig | None
    steps: Sequence[Step] = ()
    folder: Path | None = None


class Templates:
    """The templates of one account.

    Args:
        provider: Whose they are.
    """

    def __init__(self, provider: CloudProvider) -> None:
        self.provider, self.cloud, self.options = provider, provider.cloud, provider.options

    async def ensure(self, spec: SandboxSpec, image: Image, key: str, on_log: LogSink) -> Prepared:
        """A ready template of ``image``.

        Raises:
            BuildError: With the end of the log.
            ImageError: The image does not exist, or its Dockerfile cannot be built here.
        """
        async with contextlib.AsyncExitStack() as stack:
            recipe = await self._recipe(spec, image, key, stack)
            tail: list[str] = []

            def log(line: str) -> None:
                for part in clean(mask(line)).splitlines():
                    tail.append(part)
                    del tail[:-_LOG_LINES]
                    on_log(part)

            force = spec.pull == "always"
            for _ in range(3):
                found = None if force else await self._standing(recipe.name)
                if found == "ready":
                    log(f"template {recipe.name} is there already")
                    break
                try:
                    build = found or await self._begin(spec, recipe, force, log)
                except _InFlight:
                    force = False
                    await asyncio.sleep(0.5)
                    continue
                await self._follow(recipe, build, log, tail)
                break
            else:
                raise BuildError(
                    f"{self.provider.title} says that an identical build is under way, and shows none",
                    provider=self.provider.name, retryable=True, log="\n".join(tail),
                )  # fmt: skip
        labels = {"oe-install": _install(spec)}
        return Prepared(recipe.name, recipe.config, image.digest, owned=True, labels=labels, created_at=time.time())

    async def _recipe(self, spec: SandboxSpec, image: Image, key: str, stack: contextlib.AsyncExitStack) -> _Recipe:
        from openenv_sandbox import image as images

        config: ImageConfig | None = image.config
        with contextlib.suppress(ImageError):  # core asks again, and says what is missing
            config = await images.resolve_config(image, base=True, auth=spec.registry_auth)
        if image.kind == "ref":
            return _Recipe(image.name, self._name(spec, image, key), config)
        from openenv_providers import _e2b_dockerfile
        from openenv_sandbox.staging import staged

        context = await stack.enter_async_context(staged(image, keep_openenv=self.options.keep_openenv))
        # Applied already, and one that leaves everything out would leave out what was added.
        await asyncio.to_thread((context.folder / ".dockerignore").unlink, True)
        parsed = await asyncio.to_thread(images.read_dockerfile, context.dockerfile)
        base, below = parsed.bases()[0] if parsed.bases() else parsed.final.base, ImageConfig()
        with contextlib.suppress(ImageError):
            below = await images.resolve_config(Image(kind="ref", name=base), auth=spec.registry_auth) or below
        steps = await asyncio.to_thread(_e2b_dockerfile.steps, parsed, below, context.folder, self.provider.name)
        return _Recipe(
            base, self._name(spec, image, f"{key}\n{context.digest}\n{steps!r}"), config, steps, context.folder
        )

    def _name(self, spec: SandboxSpec, image: Image, content: str) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", image.name.rpartition("/")[2].partition("@")[0].lower()).strip("-")[:32]
        digest = hashlib.sha256(f"{RECIPE}\n{self.cloud.root}\n{content}".encode()).hexdigest()[:20]
        return f"openenv-{_install(spec)}-{slug or 'env'}-{digest}"

    # -------------------------------------------------------------------------------------------------- building

    async def _standing(self, name: str) -> Any:
        """``"ready"``, the ids of a build under way, or None."""
        identifier = await self._id(name)
        if identifier is None:
            return None
        reply = await self.cloud.rest(
            "templates", "get_templates_template_id", identifier, what="looking at the template", accept=(404,)
        )
        builds = list(reply.parsed.builds) if reply is not None else []
        if any(build.status.value == "ready" for build in builds):
            return "ready"
        for build in sorted(builds, key=lambda build: build.created_at.timestamp(), reverse=True):
            young = time.time() - build.updated_at.timestamp() < _WAITING_S
            if build.status.value in ("building", "waiting") and young:
                return identifier, str(build.build_id)
        return None

    async def _id(self, name: str) -> str | None:
        reply = await self.cloud.rest(
            "templates", "get_templates_aliases_alias", quote(name, safe=""), what="looking for the template",
            accept=(404,),
        )  # fmt: skip
        return str(reply.parsed.template_id) if reply is not None else None

    async def _begin(self, spec: SandboxSpec, recipe: _Recipe, force: bool, log: LogSink) -> tuple[str, str]:
        """Upload and start, in a thread: the SDK reads and hashes every file."""
        loop = asyncio.get_running_loop()

        def say(entry: Any) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(log, str(entry.message))

        sizes = {"cpu_count": spec.resources.cpus, "memory_mb": spec.resources.memory_mb}
        keywords: dict[str, Any] = {name: int(value) for name, value in sizes.items() if value is not None}
        begin = partial(self._build, recipe, spec.registry_auth, skip_cache=force, on_build_logs=say, **keywords)
        try:
            info = await _threads.run(begin)
        except OpenEnvError:
            raise
        except Exception as error:
            raise self._not_begun(error, recipe) from error
        return str(info.template_id), str(info.build_id)

    def _build(self, recipe: _Recipe, auth: RegistryAuth | None, **keywords: Any) -> Any:
        login = {"username": auth.username, "password": auth.password.get_secret_value()} if auth else {}
        builder = self.cloud.template(recipe.base, str(recipe.folder or "."), **login)
        for step in recipe.steps:
            if step.source:
                builder = builder.copy(step.source, step.target, user=step.user, mode=step.mode)
            else:
                builder = builder.run_cmd(step.command, user=step.user)
        return self.cloud.begin_build(builder, recipe.name, **keywords)

    def _not_begun(self, error: Exception, recipe: _Recipe) -> Exception:
        name, text = type(error).__name__, clean(mask(str(error)))[:500]
        what = f"building template {recipe.name}"
        if name == "AuthenticationException":
            return AuthError(f"{what}: {text}", provider=self.provider.name)
        match = _STATUS.match(text)
        status = int(match["status"]) if match else 429 if name == "RateLimitException" else 0
        if status == 409:
            return _InFlight()
        if status and status != 400:
            body = (match["text"] if match else text).encode()
            return from_reply(status, {}, body, provider=self.provider.name, what=what, ref=None, template=False)
        return BuildError(f"{what} could not begin: {name}: {text}", provider=self.provider.name)

    async def _follow(self, recipe: _Recipe, build: tuple[str, str], log: LogSink, tail: list[str]) -> None:
        from openenv_sandbox import retry

        call, seen, pause = "get_templates_template_id_builds_build_id_status", 0, 0.1
        while True:
            ask = partial(self.cloud.rest, "templates", call, *build, what="following the build", logs_offset=seen)
            reply = await retry.call(ask, deadline=120.0, provider=self.provider.name)
            found = reply.parsed
            for entry in found.log_entries:
                log(entry.message)
            seen += len(found.log_entries)
            status = found.status.value
            if status in ("ready", "error") and not found.log_entries:  # a page holds only so many lines
                break
            await asyncio.sleep(0 if found.log_entries else pause)
            pause = min(2.0, pause * 1.5)
        if status == "error":
            reason = known(found.reason)
            raise self._failed(recipe, clean(mask(reason.message)) if reason else "no reason given", tail)

    def _failed(self, recipe: _Recipe, reason: str, tail: list[str]) -> Exception:
        log, name = "\n".join(tail), self.provider.name
        if _NO_LOGIN.search(reason) and not recipe.steps:
            hint = "registry_auth= holds the login of its registry"
            return ImageError(f"{recipe.base} cannot be pulled: {reason}", provider=name, hint=hint)
        if _NO_IMAGE.search(reason):
            return ImageError(f"{recipe.base} cannot be pulled: {reason}", provider=name)
        return BuildError(f"{self.provider.title} could not build {recipe.base}: {reason}", log=log, provider=name)

    # ------------------------------------------------------------------------------------------------ what stands

    async def ours(self) -> list[Prepared]:
        """Templates and snapshots made by any openenv, with the install that made them."""
        reply = await self.cloud.rest("templates", "get_templates", what="listing templates")
        found = []
        for template in reply.parsed or ():
            for alias in template.aliases:
                match = _NAME.match(alias)
                if match and not match["snapshot"]:
                    labels = {"oe-install": match["install"]}
                    at = template.created_at.timestamp()
                    found.append(Prepared(alias, owned=True, labels=labels, created_at=at))
        async for snapshot in self.provider.pages("snapshots", "get_snapshots", "listing snapshots"):
            matches = [_NAME.match(name.rpartition("/")[2]) for name in snapshot.names]
            maker = next((match["install"] for match in matches if match and match["snapshot"]), "")
            if maker:
                found.append(Prepared(snapshot.snapshot_id, owned=True, labels={"oe-install": maker}))
        return found

    async def remove(self, ref: str) -> None:
        """Delete a template by its name, or a snapshot by its id."""
        identifier = await self._id(ref) or ref
        try:
            await self.cloud.rest(
                "templates", "delete_templates_template_id", quote(identifier, safe=""), what=f"deleting {ref}",
                accept=(404,),
            )  # fmt: skip
        except ProviderError as error:
            error.hint = error.hint or "delete the sandboxes that were made from it first"
            raise


class _InFlight(Exception):
    pass


def _install(spec: SandboxSpec) -> str:
    return re.sub(r"[^a-z0-9]", "", spec.labels.get("oe-install", "").lower()) or "none"
