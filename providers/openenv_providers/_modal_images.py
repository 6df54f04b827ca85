"""Images of modal: taken from a registry, built from a folder by modal's builder, by id, and kept from a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from typing import TYPE_CHECKING, Any

from openenv_providers._modal_account import NAME, NotThere, translate
from openenv_sandbox.errors import BuildError, ImageError, OpenEnvError
from openenv_sandbox.provider import Prepared
from openenv_sandbox.redact import clean, mask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openenv_providers._modal_account import Account
    from openenv_sandbox.provider import Image, LogSink
    from openenv_sandbox.spec import RegistryAuth

_HOUR_S = 3600.0
"""Core's own timer ``prepare`` is shorter; this one only keeps a build from waiting for ever."""

_sink: contextvars.ContextVar[LogSink | None] = contextvars.ContextVar("openenv_modal_build_log", default=None)


class Images:
    """Images of one account that this process has looked up or made."""

    def __init__(self, account: Account, registry_secret: str | None) -> None:
        self._account, self._secret = account, registry_secret
        self._ready: dict[str, Any] = {}
        self._bare: dict[str, str] = {}
        self.made: dict[str, Prepared] = {}

    async def get(self, image_id: str) -> Any:
        """The SDK's object of an image.

        Raises:
            ImageError: There is none of that id.
        """
        import modal

        if image_id not in self._ready:
            client = await self._account.client()
            app = await self._account.app(create=True)
            found = modal.Image.from_id(image_id, client=client)
            try:
                await self._account.call(f"looking up the image {image_id}", found.build.aio(app))
            except NotThere as error:
                raise ImageError(f"there is no image {image_id}", provider=NAME) from error
            self._ready[image_id] = found
        return self._ready[image_id]

    async def by_id(self, image: Image) -> Prepared:
        """A template or snapshot: the image of that id."""
        await self.get(image.name)
        return Prepared(image.name, image.config, image.digest)

    async def bare(self, image_id: str) -> Any:
        """The image without its ENTRYPOINT, to which modal would give a command as arguments: a layer of its own."""
        if image_id not in self._bare:
            made = (await self.get(image_id)).entrypoint([])
            self._bare[image_id] = await self._build(made, f"clearing the ENTRYPOINT of {image_id}", lambda line: None)
        return await self.get(self._bare[image_id])

    async def from_registry(
        self, image: Image, login: RegistryAuth | None, *, fresh: bool, on_log: LogSink
    ) -> Prepared:
        """A registry ref, imported by modal's builder.

        Args:
            image: The ref.
            login: Of its registry; the secret of the options where there is none.
            fresh: Ask the registry again although modal has it.
            on_log: Receives the builder's output.
        """
        import modal

        made = modal.Image.from_registry(image.name, secret=self._registry_login(login), force_build=fresh)
        image_id = await self._build(made, f"importing {image.name}", on_log)
        return Prepared(image_id, image.config, image.digest)

    async def from_folder(
        self, image: Image, login: RegistryAuth | None, *, fresh: bool, keep: bool, on_log: LogSink
    ) -> Prepared:
        """A folder, uploaded and built by modal's builder; equal content is built once.

        Args:
            image: The folder.
            login: Of its base image's registry.
            fresh: Build although modal has the result.
            keep: Leave whatever openenv the author installed.
            on_log: As for `from_registry`.
        """
        import modal

        from openenv_sandbox.staging import staged

        async with staged(image, keep_openenv=keep) as context:
            several = await asyncio.to_thread(_looked_at, context.dockerfile)
            # The staged folder holds no more than what belongs to the context: nothing is left to ignore.
            made = modal.Image.from_dockerfile(
                context.dockerfile,
                context_dir=context.folder,
                ignore=[],
                force_build=fresh,
                registry_secret=None if several else self._registry_login(login),
            )
            on_log(f"building {image.path} on modal")
            image_id = await self._build(made, f"building {image.name}", on_log)
        self.made[image_id] = Prepared(image_id, image.config, context.digest, owned=True)
        return self.made[image_id]

    def _registry_login(self, login: RegistryAuth | None) -> Any:
        import modal

        if login is not None:
            password = login.password.get_secret_value()
            return modal.Secret.from_dict({"REGISTRY_USERNAME": login.username, "REGISTRY_PASSWORD": password})
        if self._secret is not None:
            return modal.Secret.from_name(self._secret, environment_name=self._account.environment)
        return None

    async def _build(self, made: Any, what: str, on_log: LogSink) -> str:
        import modal.exception as theirs

        app = await self._account.app(create=True)
        lines: list[str] = []
        loop = asyncio.get_running_loop()

        def heard(text: str) -> None:
            for line in text.splitlines():
                lines.append(line)
                on_log(line)

        try:
            with _listening(lambda text: _later(loop, heard, text)):
                await asyncio.wait_for(made.build.aio(app), _HOUR_S)
        except theirs.RemoteError as error:
            await asyncio.sleep(0)  # what the builder's thread handed over last
            raise _refused(error, what, "\n".join(lines[-200:])) from error
        except (OpenEnvError, asyncio.CancelledError):
            raise
        except (theirs.InvalidError, theirs.NotFoundError) as error:
            raise ImageError(clean(mask(f"{what}: {error}")), provider=NAME) from error
        except Exception as error:
            raise translate(error, what=what, started=True) from error
        image_id = str(made.object_id)
        self._ready[image_id] = made
        return image_id

    async def keep(self, sandbox: Any, ref: Any, config: Any, timeout: float) -> Prepared:
        """The files of a sandbox as an image. Modal removes it by itself after 30 days."""
        image = await self._account.call(
            "taking a snapshot",
            sandbox.snapshot_filesystem.aio(int(timeout)),
            ref=ref,
            timeout=timeout + 10,
            started=True,
        )
        self._ready[str(image.object_id)] = image
        made = self.made[str(image.object_id)] = Prepared(str(image.object_id), config, owned=True)
        return made

    async def drop(self, image_id: str) -> None:
        """Delete an image; that it does not exist is fine."""
        import modal.experimental

        client = await self._account.client()
        with contextlib.suppress(NotThere):
            await self._account.call(
                f"deleting the image {image_id}",
                modal.experimental.image_delete.aio(image_id, client=client),
                started=True,
            )
        self._ready.pop(image_id, None)
        self.made.pop(image_id, None)


def _looked_at(file: Path) -> bool:
    """Whether there are several stages, for which modal takes no registry login.

    Raises:
        BuildError: It adds local files by ADD: modal uploads what COPY names, and nothing else.
    """
    from openenv_sandbox import dockerfile

    stages = dockerfile.parse(file.read_text(encoding="utf-8")).stages
    for instruction in (one for stage in stages for one in stage.instructions):
        words = [word for word in instruction.args.split() if not word.startswith("--")]
        if instruction.keyword == "ADD" and not all("://" in word or word.startswith("git@") for word in words[:-1]):
            raise BuildError(
                f"{file.name} line {instruction.line}: modal's builder gets what COPY names, not what ADD does",
                provider=NAME,
                hint="write COPY",
            )
    return len(stages) > 1


def _later(loop: asyncio.AbstractEventLoop, fn: LogSink, text: str) -> None:
    loop.call_soon_threadsafe(fn, text)


def _refused(error: BaseException, what: str, log: str) -> OpenEnvError:
    text, log = clean(mask(f"{what}: {error}")), clean(mask(log))
    lowered = f"{text}\n{log}".lower()
    if any(
        word in lowered for word in ("manifest unknown", "not found in registry", "pull access denied", "name unknown")
    ):
        return ImageError(text + (f"\n{log}" if log else ""), provider=NAME)
    return BuildError(text, log=log, provider=NAME)


@contextlib.contextmanager
def _listening(sink: LogSink) -> Iterator[None]:
    """Build output to ``sink``.

    Modal hands it to one output manager of the process and has no other way to follow a build. Ours stands in front
    of whichever is there, passes everything on, and tells builds apart by a context variable, which travels with
    each request to modal's thread.
    """
    from modal.output import OutputManager

    current = OutputManager.get()
    if not hasattr(current, "openenv_relay"):
        with contextlib.suppress(AttributeError, TypeError):  # a version without it builds in silence
            OutputManager._set(_relay(current))
    token = _sink.set(sink)
    try:
        yield
    finally:
        _sink.reset(token)


def _relay(current: Any) -> Any:
    class Relay(type(current)):  # type: ignore[misc]
        openenv_relay = True

        async def put_streaming_log(self, log: Any, prefix: str = "") -> None:
            sink = _sink.get()
            if sink is not None and log.data:
                sink(log.data)
            await current.put_streaming_log(log, prefix)

        def __getattr__(self, name: str) -> Any:
            return getattr(current, name)

    relay = Relay.__new__(Relay)
    relay.__dict__.update(current.__dict__)
    return relay
