"""A Python interpreter in a process of its own, with limits on each piece of code.

What stands between the code and the server: another process with its own memory limit, none of the server's
environment variables, a folder of its own, and, where the server runs as root, a user of its own. It shares the
image's file system and network with the server: the sandbox around the image is what contains it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import secrets
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from openenv_sandbox._paths import remove_tree

logger = logging.getLogger("openenv.server")

MAIN = Path(__file__).with_name("_interpreter_main.py")
TIME_IS_UP = 124
KILLED = 137
GRACE_S = 1.0
"""How long code may take to end after the interrupt that tells it that its time is up, in seconds."""

WORK = "work"
"""Name of the code's folder in its temporary one."""

FIRST_USER, USERS = 61_000, 4_000

RESTARTED = "The interpreter was ended and begins anew: what was defined before is gone."

_next_user = itertools.count(secrets.randbelow(USERS))


@dataclass(frozen=True)
class Limits:
    """Of one piece of code.

    Attributes:
        time_s: Seconds until it is interrupted, and one second later killed.
        memory_mb: MiB of address space; more is a MemoryError.
        output_bytes: Bytes kept of each of the two streams.
    """

    time_s: float = 30.0
    memory_mb: int = 2048
    output_bytes: int = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """What a piece of code wrote, and its exit code."""

    stdout: str
    stderr: str
    exit_code: int


class Interpreter:
    """Runs pieces of code one after the other; what one defines the next one sees. Started when first used.

    Args:
        limits: Of each piece.
        python: The program that runs them, 3.8 or later.
    """

    def __init__(self, limits: Limits, python: str = sys.executable) -> None:
        self.limits = limits
        self.python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._folder: str | None = None
        self._user: int | None = None
        self._claim: socket.socket | None = None
        self._life: int | None = None

    def run(self, code: str, *, time_s: float | None = None) -> Outcome:
        """Run code and wait for its end, at most the time limit and `GRACE_S` longer.

        Args:
            code: Python statements.
            time_s: A shorter time limit for this piece.
        """
        limit = self.limits.time_s if time_s is None else min(self.limits.time_s, time_s)
        process, channel = self._started()
        assert process.stdout is not None
        assert process.stderr is not None
        kept = {process.stdout: _Kept(self.limits.output_bytes), process.stderr: _Kept(self.limits.output_bytes)}
        notes, is_up = [], False
        source = code.encode("utf-8", "surrogatepass")
        try:
            exit_code, is_up = self._exchange(struct.pack(">I", len(source)) + source, channel, kept, limit)
        except _Stuck:
            self._kill()
            exit_code, is_up = TIME_IS_UP, True
        except OSError:  # it is gone: ended by the code, or killed
            ended = self._kill(after_s=GRACE_S)
            exit_code = KILLED if ended is None or ended < 0 else ended
        if is_up:
            notes.append(f"The time limit of {limit:g} s was reached.")
        if self._process is None:
            notes.append(RESTARTED)
        out, err = (kept[stream].text() for stream in (process.stdout, process.stderr))
        if notes:
            err = "\n".join(filter(None, [err.rstrip("\n"), *notes])) + "\n"
        return Outcome(out, err, exit_code)

    def close(self) -> None:
        """End the interpreter and everything it started, and remove its folder. May be called twice."""
        self._kill()
        if self._folder is not None:
            remove_tree(Path(self._folder))
            self._folder = None
        if self._claim is not None:
            self._claim.close()
        self._user = self._claim = None

    def _exchange(
        self, message: bytes, channel: socket.socket, kept: dict[IO[bytes], _Kept], limit: float
    ) -> tuple[int, bool]:
        """Send the code and collect its output until it answers.

        Returns:
            Its exit code, and whether its time was up.

        Raises:
            _Stuck: Its time is up and it does not end.
            OSError: The interpreter has ended.
        """
        deadline = time.monotonic() + limit
        answer, waiting, interrupted = b"", memoryview(message), False
        poll = select.poll()
        sources = {stream.fileno(): stream for stream in kept}
        for number in sources:
            poll.register(number, select.POLLIN)
        poll.register(channel, select.POLLIN | select.POLLOUT)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                if interrupted:
                    raise _Stuck
                interrupted, deadline = True, time.monotonic() + GRACE_S
                self._interrupt()
                continue
            for number, event in poll.poll(left * 1000 + 1):
                if number in sources:
                    if not kept[sources[number]].read(number):
                        poll.unregister(number)
                    continue
                try:
                    if event & select.POLLOUT and waiting:
                        waiting = waiting[channel.send(waiting) :]
                        if not waiting:
                            poll.modify(channel, select.POLLIN)
                    if event & (select.POLLIN | select.POLLHUP):
                        answer += channel.recv(4 - len(answer)) or _gone()
                except OSError:
                    self._rest(kept)
                    raise
                if len(answer) == 4:
                    self._rest(kept)
                    code = int(struct.unpack(">i", answer)[0])
                    is_up = interrupted and code != 0
                    return TIME_IS_UP if is_up else code, is_up

    def _rest(self, kept: dict[IO[bytes], _Kept]) -> None:
        """What was written before the answer and is still in the pipes."""
        for stream, tail in kept.items():
            end = time.monotonic() + GRACE_S
            poll = select.poll()  # not select(), which knows no descriptors above 1023
            poll.register(stream, select.POLLIN)
            while poll.poll(0) and time.monotonic() < end:
                if not tail.read(stream.fileno()):
                    break

    def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._process is not None and self._channel is not None and self._process.poll() is None:
            return self._process, self._channel
        self._kill()
        folder = self._work_folder()
        mine, theirs = socket.socketpair()
        watched, self._life = os.pipe()
        memory = self.limits.memory_mb << 20
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [self.python, "-I", "-u", str(MAIN), *map(str, (theirs.fileno(), watched, memory))],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=folder,
                    env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
                    pass_fds=[theirs.fileno(), watched],
                    start_new_session=True,
                    user=self._user,
                    group=self._user,
                    extra_groups=[] if self._user is not None else None,
                )
            except BaseException:
                mine.close()
                raise
            finally:
                os.close(watched)
        mine.setblocking(False)
        self._channel = mine
        return self._process, mine

    def _work_folder(self) -> str:
        """The code's own folder, inside one that a user of its own cannot move or remove."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="openenv-code-")
            if os.geteuid() == 0 and _for_everybody(self.python, MAIN):
                self._user, self._claim = _claim_user()
                os.chmod(self._folder, 0o711)
        work = os.path.join(self._folder, WORK)
        if os.path.islink(work) or not os.path.isdir(work):
            remove_tree(Path(work))
            os.makedirs(work, 0o700)
            if self._user is not None:
                os.chown(work, self._user, self._user)
        return work

    def _interrupt(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, signal.SIGINT)

    def _kill(self, *, after_s: float = 0.0) -> int | None:
        """End it and what it started.

        Args:
            after_s: How long it may take to end by itself.

        Returns:
            The exit code it ended with by itself, negative for a signal; None where it had to be killed.
        """
        process, self._process = self._process, None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if process is None:
            self._end_life()
            return None
        try:
            ended = process.wait(after_s)
        except subprocess.TimeoutExpired:
            ended = None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        self._end_life()
        if self._user is not None:
            _kill_all_of(self._user)
        elif self._folder is not None:
            _kill_all_in(os.path.join(self._folder, WORK))
        process.wait()
        _reap_group(process.pid)
        if self._user is not None:
            _reap_all_of(self._user)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        return ended

    def _end_life(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            os.close(life)


class _Stuck(Exception):
    """The code goes on though its time is up."""


class _Kept:
    """The beginning of a stream; the rest is read and dropped, so that the writer does not wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._dropped = 0

    def read(self, fd: int) -> bool:
        """Take what is there; False at the end."""
        data = os.read(fd, 1 << 16)
        room = self._limit - len(self._data)
        self._data += data[:room]
        self._dropped += max(0, len(data) - room)
        return bool(data)

    def text(self) -> str:
        """What was kept."""
        text = self._data.decode("utf-8", "replace")
        return f"{text}\n[{self._dropped} further bytes were cut]\n" if self._dropped else text


def _gone() -> bytes:
    raise ConnectionResetError


@functools.cache
def _for_everybody(*paths: str | Path) -> bool:
    """Whether any user may read the files; a Python in root's own folder serves nobody else."""
    for path in map(Path, paths):
        real = path.resolve()
        if not (real.stat().st_mode & stat.S_IROTH and all(p.stat().st_mode & stat.S_IXOTH for p in real.parents)):
            logger.warning("%s is not for every user, so code runs as the server's own user", real)
            return False
    return True


def _claim_user() -> tuple[int, socket.socket]:
    """A user for one session, and what must stay open as long as it is that session's.

    That is a name of the kernel's, which no other server on this machine can have meanwhile and which ends with us.

    Raises:
        RuntimeError: All are taken.
    """
    for _ in range(USERS):
        user = FIRST_USER + next(_next_user) % USERS
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0openenv-code-user-{user}")
        except OSError:
            claim.close()
        else:
            return user, claim
    raise RuntimeError(f"all {USERS} users for code are taken on this machine")


def _kill_all_in(folder: str) -> None:
    """Kill what the code left behind outside its group, known by the environment that it began with."""
    mark = b"\0TMPDIR=%s\0" % os.fsencode(folder)
    for _ in range(100):  # what forks while this reads is found the next time
        found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mark in _variables(pid)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                _reap(pid)
        if not found:
            return


def _reap_all_of(user: int) -> None:
    """Bury what was killed: in a container the server is the first process, which inherits everybody's orphans."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == user:
                _reap(pid)


def _reap_group(group: int) -> None:
    while _reap(-group):
        pass


def _reap(pid: int) -> bool:
    """Wait for a process that was killed, where it is a child of ours; of a group for one of them."""
    with contextlib.suppress(ChildProcessError):
        for _ in range(100):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
            time.sleep(0.01)
    return False


def _variables(pid: int) -> bytes:
    try:
        return b"\0%s\0" % Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _kill_all_of(user: int) -> None:
    """Kill every process of a user of ours, those that left their session included."""
    child = (
        "import os, sys\nuser = int(sys.argv[1])\nos.setgroups([])\nos.setgid(user)\nos.setuid(user)\n"
        "try:\n    os.kill(-1, 9)\nexcept ProcessLookupError:\n    pass\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", child, str(user)], stderr=subprocess.DEVNULL, timeout=30)
