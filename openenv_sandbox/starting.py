"""Who starts the server: the backend at create, or core by a command in a sandbox that booted idle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from openenv_sandbox.errors import ImageError, OpenEnvError, SandboxError
from openenv_sandbox.lifecycle import keep
from openenv_sandbox.process import spawn
from openenv_sandbox.provider import Exit

if TYPE_CHECKING:
    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.process import Process, Runner
    from openenv_sandbox.provider import Image, ImageConfig, Prepared, Sandbox, SandboxRef
    from openenv_sandbox.spec import SandboxSpec

FIRST_EXEC_S = 15.0
"""How long the first command in a new sandbox may take, in seconds, before the sandbox counts as stillborn."""

TAIL = 64 << 10
LOOKS = 5
"""So many looks at a detached server may fail."""
TOKEN = "OPENENV_AUTH_TOKEN"
"""The variable by which the server learns what it wants to see."""


async def config_for(
    spec: SandboxSpec, image: Image, prepared: Prepared, caps: Capabilities, *, serve: bool
) -> ImageConfig | None:
    """How the image wants to be started, asked of others only where this backend leaves it to us.

    Raises:
        ImageError: It is needed and cannot be found out; the hint names ``command=``.
    """
    found = prepared.image or image.config
    if found is not None and found.argv:
        return found
    ours = caps.start == "exec" or (caps.start == "command" and not caps.runs_image)
    if not ours or spec.command is not None or not serve:
        return found
    from openenv_sandbox import image as images

    found = await images.resolve_config(image)
    if found is None or not found.argv:
        raise ImageError(
            f"nothing says what {image.source or image.name} runs, and this backend does not run it by itself",
            hint="say what to run: command=['python', '-m', '…']",
        )
    return found


def command_for(spec: SandboxSpec, config: ImageConfig | None, caps: Capabilities) -> tuple[str, ...] | None:
    """The argv that is started; None where the image's own runs by itself."""
    if spec.command is not None:
        return spec.command
    if caps.start == "image" or (caps.start == "command" and caps.runs_image):
        return None
    return config.argv if config is not None and config.argv else None


class CreatedServer:
    """The server that the backend started with the sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def ref(self) -> SandboxRef:
        """Its sandbox."""
        return self._sandbox.ref

    async def wait_exit(self) -> Exit:
        """Return when it has ended."""
        return await self._sandbox.wait_exit()

    async def first_output(self) -> None:
        """Return when it has written something."""
        await self._sandbox.first_output()

    async def logs(self, *, tail: int | None = None) -> bytes:
        """What it wrote so far; with ``tail`` its last lines.

        Raises:
            CapabilityError: Not offered.
        """
        return await self._sandbox.logs(tail=tail)

    def stop(self) -> None:
        """Nothing is held."""


class ExecServer:
    """A server that core starts by a command, once; its secrets are given to that command alone.

    Args:
        sandbox: Where.
        caps: Of its backend.
        spec: With the environment and secrets.
        argv: What to run.
        config: The image's own environment, user and folder, which such backends drop.
        runner: Runs the commands of a detached process, where one command cannot hold a server.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        caps: Capabilities,
        spec: SandboxSpec,
        argv: tuple[str, ...],
        config: ImageConfig | None,
        runner: Runner | None = None,
    ) -> None:
        long = caps.exec is not None and caps.exec.max_s is None and caps.exec.live
        self._runner = None if long else runner
        self._process: Process | None = None
        assert caps.exec is not None
        self._sandbox, self._caps, self._argv = sandbox, caps.exec, argv
        self._env = {**(config.env if config else {}), **spec.env, **spec.plain_secrets()}
        self._cwd = spec.workdir or (config.workdir if config else None)
        self._user = spec.user or (config.user if config else None)
        self._tail = bytearray()
        self._spoke = asyncio.Event()
        self._task: asyncio.Task[Exit] | None = None

    @property
    def ref(self) -> SandboxRef:
        """Its sandbox."""
        return self._sandbox.ref

    async def start(self) -> None:
        """Make sure that the sandbox takes commands, then start the server.

        Raises:
            SandboxError: The first command hung; another sandbox may do better (``retryable``).
        """
        first = self._sandbox.exec_raw(
            ["/bin/sh", "-c", ":"], env={}, cwd=None, user=None, stdin=None, on_output=lambda *_: None
        )
        try:
            await asyncio.wait_for(first, FIRST_EXEC_S)
        except asyncio.TimeoutError:
            raise SandboxError(
                f"the sandbox was created, but its first command did not return within {FIRST_EXEC_S:g} s",
                ref=self._sandbox.ref,
                retryable=True,
            ) from None
        self._task = keep(self._run(), name="openenv-server")

    async def _run(self) -> Exit:
        from openenv_sandbox import shell

        if self._runner is not None:
            return await self._run_detached(self._runner)
        command = shell.Command(
            list(self._argv), stdin=None, env=self._env, cwd=self._cwd, user=self._user, timeout=None
        )
        result = await shell.run(self._sandbox, self._caps, command, max_output=TAIL, on_output=self._on_output)
        return Exit(result.exit_code, bytes(self._tail))

    async def _run_detached(self, runner: Runner) -> Exit:
        """Where one command cannot last as long as a server, or says nothing until it ends."""
        process = await spawn(runner, list(self._argv), stdin=False, env=self._env, cwd=self._cwd, user=self._user)
        self._process = process
        code = await self._ended(process)
        self._tail[:] = await self._written(process)
        return Exit(code, bytes(self._tail))

    async def _ended(self, process: Process) -> int:
        failures = 0
        while True:
            try:
                return await process.wait()
            except OpenEnvError as error:
                # One look that fails is no news of the server.
                failures += 1
                if not error.retryable or failures > LOOKS:
                    raise
                await asyncio.sleep(failures)

    async def _written(self, process: Process) -> bytes:
        return (await process.logs(tail=TAIL) + await process.logs("stderr", tail=TAIL))[-TAIL:]

    def _on_output(self, name: str, data: bytes) -> None:
        self._tail += data
        del self._tail[:-TAIL]
        self._spoke.set()

    async def wait_exit(self) -> Exit:
        """Return when the server, or its sandbox, has ended."""
        assert self._task is not None
        gone = asyncio.get_running_loop().create_task(self._sandbox.wait_exit())
        try:
            await asyncio.wait({self._task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done():
                try:
                    return self._task.result()
                except OpenEnvError as error:
                    self._tail += f"\n{error.message}".encode()
                    raise
            return Exit((gone.result()).code, bytes(self._tail))
        finally:
            gone.cancel()

    async def first_output(self) -> None:
        """Return when it has written something."""
        await self._spoke.wait()

    async def logs(self, *, tail: int | None = None) -> bytes:
        """The last of what it wrote; with ``tail`` so many lines."""
        live = self._process is not None and self._task is not None and not self._task.done()
        data = await self._written(self._process) if live and self._process is not None else bytes(self._tail)
        return data if tail is None else b"".join(data.splitlines(keepends=True)[-tail:] if tail else [])

    def stop(self) -> None:
        """Give up the command that holds the server; only once the sandbox is deleted."""
        if self._task is not None and not self._task.get_loop().is_closed():
            self._task.cancel()
