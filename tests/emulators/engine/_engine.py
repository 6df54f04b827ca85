"""The engine: boxes, clock, quota, faults and images behind every vendor's face."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from openenv_sandbox.lifecycle import daemon_call
from openenv_sandbox.testing.faults import Faults

from . import _build, _hooks, _images, _ns, _registry, _rootfs, _tls
from ._box import Box
from ._clock import Clock

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence

    from typing_extensions import Self

    from ._hooks import Hooked
    from ._images import EmuImage

T = TypeVar("T")
Ending = Literal["delete", "stop", "pause"]

STARTS = 16
"""Boxes made at the same time; more wait their turn."""


class QuotaReached(Exception):
    """One box more than `Engine.quota`."""


class Engine:
    """Context manager of one emulated cloud. See the package's docstring for how the parts fit together.

    Attributes:
        clock: `Clock`.
        faults: Rules that `hook` applies.
        quota: Boxes at once; None for any number.
        images: By ref.
        boxes: Those that exist, by id, in any state.
        loop: Runs in a thread of its own; everything ``async`` here belongs to it.
        tmp: A folder that goes with the engine.
    """

    def __init__(self) -> None:
        reason = _ns.needs_root()
        if reason is not None:
            raise RuntimeError(reason)
        self.faults = Faults()
        self.clock = Clock(self)
        self.quota: int | None = None
        self.images: dict[str, EmuImage] = {}
        self.boxes: dict[str, Box] = {}
        self.peak = 0
        self.made = 0
        self.registry = ""
        self._coming: set[str] = set()
        self._making: set[asyncio.Task[Box]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---------------------------------------------------------------------------------------------- its own life

    def __enter__(self) -> Self:
        self.tmp = Path(tempfile.mkdtemp(prefix="openenv-engine-"))
        self.tmp.chmod(0o755)
        self.stage = self.tmp / "stage"
        self.stage.mkdir()
        # Ends when this process does, however it does, and then removes the folder.
        self._janitor = subprocess.Popen(
            ["/bin/sh", "-c", 'read _; exec rm -rf "$0"', str(self.tmp)], stdin=subprocess.PIPE, start_new_session=True
        )
        self.proc_fd = os.open("/proc", os.O_DIRECTORY | os.O_RDONLY)
        self.paths = _rootfs.shown()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="emulator-engine", daemon=True)
        self._thread.start()
        self.call(self._open())
        return self

    def _run(self) -> None:
        _let_block()
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _open(self) -> None:
        self._starts = asyncio.Semaphore(STARTS)
        self._registry = _registry.Registry(self)
        self.registry = await self._registry.start()
        self.images.update(_images.builtin(self.registry))
        self._builtin = frozenset(self.images)
        self.keep(self.clock.run())

    def __exit__(self, *_: object) -> None:
        self.faults.clear()
        try:
            self.call(self._close(), timeout=60)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(30)
            self.loop.close()
            os.close(self.proc_fd)
            assert self._janitor.stdin is not None
            self._janitor.stdin.close()
            self._janitor.wait(30)

    async def _close(self) -> None:
        await self._registry.stop()
        await asyncio.gather(*self._making, return_exceptions=True)
        await asyncio.gather(*(self.delete(id) for id in list(self.boxes)))
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next turn

    def clear(self) -> None:
        """Back to an empty engine, from any other thread: no boxes, faults, quota; the clock stays where it is."""
        self.faults.clear()
        self.quota = None
        self.call(self._clear())
        self.peak = self.made = 0

    async def _clear(self) -> None:
        await asyncio.gather(*(self.delete(id) for id in list(self.boxes)))
        for ref in [ref for ref in self.images if ref not in self._builtin]:
            self.drop_image(ref)

    def call(self, coro: Coroutine[Any, Any, T], timeout: float = 120.0) -> T:
        """Run ``coro`` on the engine's loop, from any other thread, and wait for it."""
        if threading.current_thread() is getattr(self, "_thread", None):
            coro.close()
            raise RuntimeError("Engine.call on the engine's own loop: await it there")
        return asyncio.run_coroutine_threadsafe(coro, self.loop).result(timeout)

    def keep(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``coro`` beside everything else; ends with the engine."""
        task = asyncio.get_running_loop().create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def whole(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run ``coro`` to its end although the caller may be cancelled: a cloud goes on when its client hangs up."""
        return await asyncio.shield(self.keep(coro))

    def tls(self, *names: str) -> tuple[ssl.SSLContext, Path]:
        """A server context and the certificate to trust: for 127.0.0.1, localhost, *.localhost and ``names``."""
        return _tls.make(self.tmp, names)

    # ----------------------------------------------------------------------------------------------------- boxes

    def image(self, name: str) -> str:
        """The ref of a built-in image: echo-env, light, user-env, dying, private/light."""
        ref = f"{self.registry}/{name}:1"
        if ref not in self.images:
            raise KeyError(f"no image {name}: {', '.join(self.images)}")
        return ref

    def find_image(self, ref: str) -> EmuImage | None:
        """An image by ref; a tag or digest that the registry answers will do, as does one without a tag."""
        return self.images.get(ref) or self.images.get(f"{ref}:1") or self._registry.by_digest(ref)

    def alive(self) -> int:
        """How many boxes exist, whether a look-up shows them or not."""
        return len(self.boxes)

    def visible(self) -> list[Box]:
        """What look-ups and listings show: not what is ``late``."""
        now = self.clock.now()
        return [box for box in self.boxes.values() if box.visible_at <= now]

    async def create(
        self,
        image: EmuImage | str,
        *,
        id: str,
        argv: Sequence[str] | None = None,
        run_image: bool = True,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: str | None = None,
        labels: Mapping[str, str] | None = None,
        ttl_s: float | None = None,
        idle_s: float | None = None,
        data: dict[str, Any] | None = None,
        on_ttl: Ending = "delete",
        on_idle: Ending = "delete",
        exits: bool = False,
    ) -> Box:
        """Make a box and start something in it.

        Args:
            image: An image or the ref of one.
            id: Its id.
            argv: The main process; default the image's own command, unless ``run_image`` is False: then it idles.
            env: Added to the image's; the main process gets both.
            user, workdir: Instead of the image's.
            labels, data: The face's own.
            ttl_s, idle_s: On the engine's clock.
            on_ttl, on_idle: What happens when they run out.
            exits: The box stops when its main process ends.

        Raises:
            QuotaReached: There are `quota` boxes already.
            KeyError: No such image.
        """
        box = self._admit(image, id, labels, data)
        box.env.update(env or {})
        box.user, box.workdir = user or box.user, workdir or box.workdir
        box.idle_s, box.on_ttl, box.on_idle = idle_s, on_ttl, on_idle
        box.set_ttl(ttl_s)
        command = tuple(argv) if argv is not None else box.image.argv if run_image else ()
        task = self.keep(self._create(box, command, exits))
        self._making.add(task)
        task.add_done_callback(self._making.discard)
        return await asyncio.shield(task)

    def _admit(self, image: EmuImage | str, id: str, labels: Mapping[str, str] | None, data: Any) -> Box:
        if isinstance(image, str):
            found = self.find_image(image)
            if found is None:
                raise KeyError(image)
            image = found
        if self.quota is not None and len(self.boxes) + len(self._coming) >= self.quota:
            raise QuotaReached(f"{len(self.boxes)} of {self.quota} sandboxes in use")
        if id in self.boxes or id in self._coming:
            raise ValueError(f"a sandbox {id} exists")
        self._coming.add(id)
        box = Box(self, id, image, labels or {}, {} if data is None else data)
        hooked = _hooks.current("create")
        if hooked is not None:
            box.visible_at += hooked.late
            if hooked.die is not None:
                box.env["LIGHT_DIE"] = ",".join(f"{name}={value}" for name, value in hooked.die.items())
        return box

    async def _create(self, box: Box, command: Sequence[str], exits: bool) -> Box:
        try:
            async with self._starts:
                await box.start(str(self.stage), box.image.layer, self.paths)
            self.boxes[box.id] = box
        finally:
            self._coming.discard(box.id)
        self.made += 1
        self.peak = max(self.peak, len(self.boxes))
        if command:
            await self._start(box, command)
            if exits:
                self.keep(self._follow(box))
        return box

    async def _start(self, box: Box, command: Sequence[str]) -> None:
        try:
            await box.start_main(command)
        except BaseException:
            await self.delete(box.id)
            raise

    async def _follow(self, box: Box) -> None:
        assert box.main is not None
        await box.main.wait()
        await box.stop()

    async def delete(self, id: str) -> bool:
        """End a box and forget it; whether there was one."""
        box = self.boxes.pop(id, None)
        if box is None:
            return False
        await self.whole(box.stop())
        return True

    async def end_due(self, now: float) -> None:
        """End what a timer has overtaken."""
        for box in list(self.boxes.values()):
            why = box.due(now)
            if why is not None:
                await self._end(box, box.on_ttl if why == "ttl" else box.on_idle)

    async def _end(self, box: Box, how: Ending) -> None:
        if how == "delete":
            await self.delete(box.id)
        elif how == "stop":
            await box.stop()
        elif box.state == "running":
            await box.pause()
        box.ends_at = None

    # --------------------------------------------------------------------------------------------- images, faults

    async def snapshot(self, box: Box, id: str) -> EmuImage:
        """Copy what was written in ``box``; the image boots with it and is found under ``id``."""
        layer = await self.layer_of(box)
        image = box.image.but(ref=id, layer=layer, env=dict(box.env), user=box.user, workdir=box.workdir)
        self.images[id] = image
        return image

    def drop_image(self, ref: str) -> bool:
        """Forget an image; whether there was one."""
        image = self.images.pop(ref, None)
        if image is not None and image.layer is not None:
            shutil.rmtree(image.layer, ignore_errors=True)
        return image is not None

    async def layer_of(self, box: Box) -> Path:
        """A copy of what was written in ``box``; goes with the engine."""
        layer = self.tmp / f"layer-{uuid.uuid4().hex[:12]}"
        layer.mkdir()
        await daemon_call(_rootfs.copy_upper, box.upper, layer)
        return layer

    async def build(
        self,
        dockerfile: str,
        context: Path | None = None,
        *,
        log: Callable[[str], Awaitable[None] | None],
        ref: str | None = None,
        build_args: dict[str, str] | None = None,
    ) -> EmuImage:
        """Build an image; each RUN really runs, in a box that counts for nobody.

        Args:
            dockerfile: FROM an image of this engine, or of python, debian, ubuntu, for which the host's root stands.
            context: The folder that COPY takes from.
            log: Gets each line; may be a coroutine function.
            ref: The name of the result; the registry serves it if that lies under `registry`.
            build_args: As ``--build-arg``.

        Raises:
            BuildFailed: With what was said.
        """
        return await _build.build(self, dockerfile, context, log=log, ref=ref, build_args=build_args)

    async def spare(self, image: EmuImage, id: str) -> Box:
        """An idle box outside `boxes` and quota; whoever asks stops it."""
        box = Box(self, id, image, {}, {})
        async with self._starts:
            await box.start(str(self.stage), image.layer, self.paths)
        return box

    async def hook(self, op: str, when: Literal["before", "after"] = "before", **args: Any) -> Hooked:
        """Apply the fault rules to one call of the vendor's API.

        A face calls it ``before`` it acts and ``after`` it has acted, in the same task. Status 0 has cut the connection
        by the time the error is raised: what the face answers then reaches nobody.

        Raises:
            FakeApiError: With the status to answer in the vendor's own shape.
        """
        return await _hooks.apply(self.faults, op, when, args)

    @contextlib.asynccontextmanager
    async def hooked(self, op: str, **args: Any) -> AsyncIterator[Hooked]:
        """`hook` before and after a block."""
        found = await self.hook(op, "before", **args)
        yield found
        await self.hook(op, "after", **args)


def _let_block() -> None:
    """Exempt the calling thread from blockbuster: it watches the library's loops, and this one is the vendor's."""
    with contextlib.suppress(ImportError):
        from blockbuster import blockbuster

        blockbuster._skip.value = True
