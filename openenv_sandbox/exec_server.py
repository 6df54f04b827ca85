"""A server that core starts by a command, in a sandbox that booted idle.

It runs detached, as every process that `openenv_sandbox.process.spawn` starts: it outlives the connection and the
process that started it. A record inside the sandbox says which process it is and what the image brings, so that
whoever attaches later finds both.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import ExecError, OpenEnvError, SandboxError, SandboxGone
from openenv_sandbox.lifecycle import keep
from openenv_sandbox.process import Process, spawn
from openenv_sandbox.provider import Exit, ImageConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.provider import SandboxRef
    from openenv_sandbox.running import RunningSandbox

FIRST_EXEC_S = 15.0
"""How long the first command in a new sandbox may take, in seconds, before the sandbox counts as stillborn."""

TAIL = 64 << 10
RETRY_S = 30.0
"""Longest pause between two looks at the server while looking fails."""

_log = logging.getLogger("openenv.launch")
_FOLDERS = 'for d in "$TMPDIR" /tmp /dev/shm /var/tmp; do [ "$d" ] && '
_WRITE = _FOLDERS + '{ cat >"$d/.oe-server" && chmod 644 "$d/.oe-server"; } 2>/dev/null && exit 0; done; exit 1'
_READ = _FOLDERS + '[ -f "$d/.oe-server" ] && cat "$d/.oe-server" && exit 0; done; exit 0'


class ExecServer:
    """The server's process, started here or found.

    Args:
        box: Runs the commands that look after it; no user's face, because looking is no use of the sandbox.
        argv: What to run.
        env: Its variables, secrets included: they go to this one command alone.
        cwd: Its folder; None for the sandbox's.
        user: Its user; None for the sandbox's.
        process: It runs already.
    """

    def __init__(
        self,
        box: RunningSandbox,
        argv: tuple[str, ...] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        process: Process | None = None,
    ) -> None:
        self._box, self._argv, self._env, self._cwd, self._user = box, argv, env, cwd, user
        self._process = process
        self._begun = asyncio.Event()
        self._tail = b""
        self._task: asyncio.Task[Exit] | None = None
        if process is not None:
            self._begun.set()
            self._task = keep(self._watch(process), name="openenv-server")

    @property
    def ref(self) -> SandboxRef:
        """Its sandbox."""
        return self._box.ref

    async def start(self) -> None:
        """Make sure that the sandbox takes commands, then start the server.

        Raises:
            SandboxError: The first command hung; another sandbox may do better (``retryable``).
        """
        first = self._box._sandbox.exec_raw(
            ["/bin/sh", "-c", ":"], env={}, cwd=None, user=None, stdin=None, on_output=lambda *_: None
        )
        try:
            await asyncio.wait_for(first, FIRST_EXEC_S)
        except asyncio.TimeoutError:
            raise SandboxError(
                f"the sandbox was created, but its first command did not return within {FIRST_EXEC_S:g} s",
                ref=self.ref,
                retryable=True,
            ) from None
        self._task = keep(self._run(), name="openenv-server")

    async def _run(self) -> Exit:
        process = await spawn(
            self._box, list(self._argv), stdin=False, env=self._env, cwd=self._cwd, user=self._user
        )  # fmt: skip
        self._process = process
        self._begun.set()
        await self._note(process)
        return await self._watch(process)

    async def _note(self, process: Process) -> None:
        brought = self._box._image
        record = {"process": process.id, "env": dict(brought.env), "user": brought.user, "workdir": brought.workdir}
        try:
            done = await self._box._command(["/bin/sh", "-c", _WRITE], stdin=json.dumps(record).encode())
        except OpenEnvError as error:
            _log.warning("%s: whoever attaches will not find the server's output: %s", self.ref, error.message)
            return
        if not done.ok:
            _log.warning("%s: no folder to note the server in; who attaches will not find its output", self.ref)

    async def _watch(self, process: Process) -> Exit:
        pause = 1.0
        while True:
            try:
                code = await process.wait()
                break
            except (SandboxGone, ExecError) as error:
                self._tail += f"\n{error.message}".encode()
                raise
            except OpenEnvError as error:
                # A look that fails is no news of the server: the sandbox may be paused, or the backend down.
                _log.debug("%s: looking after the server failed: %s", self.ref, error.message)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_S)
        self._tail = await self._written(process)
        return Exit(code, self._tail)

    async def _written(self, process: Process) -> bytes:
        return (await process.logs(tail=TAIL) + await process.logs("stderr", tail=TAIL))[-TAIL:]

    async def wait_exit(self) -> Exit:
        """Return when the server, or its sandbox, has ended."""
        assert self._task is not None
        gone = keep(self._box._sandbox.wait_exit())
        try:
            await asyncio.wait({self._task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done() and not self._task.cancelled():
                return self._task.result()
            return replace(await gone, tail=self._tail)  # nobody looks after the server itself any more
        finally:
            gone.cancel()

    async def first_output(self) -> None:
        """Return when it has written something."""
        await self._begun.wait()
        assert self._process is not None
        await self._process.spoke()

    async def logs(self, *, tail: int | None = None) -> bytes:
        """The last of what it wrote; with ``tail`` so many lines."""
        live = self._process is not None and self._task is not None and not self._task.done()
        data = await self._written(self._process) if live and self._process is not None else self._tail
        return data if tail is None else b"".join(data.splitlines(keepends=True)[-tail:] if tail else [])

    def stop(self) -> None:
        """Look no longer; the server itself goes on until its sandbox ends."""
        if self._task is not None and not self._task.get_loop().is_closed():
            self._task.cancel()


async def found(box: RunningSandbox) -> tuple[Process, ImageConfig] | None:
    """The server that another process started in ``box``, and what its commands need of the image; None when none."""
    try:
        result = await box._command(["/bin/sh", "-c", _READ])
        record: Any = json.loads(result.stdout) if result.stdout.strip() else None
    except (OpenEnvError, ValueError) as error:
        _log.warning("%s: cannot read what was noted about its server: %s", box.ref, error)
        return None
    if not isinstance(record, dict) or not isinstance(record.get("process"), str):
        return None
    # Whatever runs in the sandbox may have written this: it only says how commands in that same sandbox are run.
    env = {str(k): str(v) for k, v in record["env"].items()} if isinstance(record.get("env"), dict) else {}
    user, workdir = (record.get(name) if isinstance(record.get(name), str) else None for name in ("user", "workdir"))
    return Process(box, record["process"]), ImageConfig(env=env, user=user, workdir=workdir)
