"""The program that runs the code: ``python -I _interpreter_main.py FD LIFE MEMORY``, with nothing of openenv imported.

Each message on the socket FD is a length (4 bytes, big endian) and that many bytes of source; each answer is the exit
code (4 bytes, signed). What the code writes goes to this process's own standard output and error.
LIFE is a pipe on which nothing ever comes: when its other end is gone, the kernel kills this process and its group,
whatever the code is doing.
"""

import builtins
import contextlib
import fcntl
import linecache
import os
import resource
import signal
import socket
import struct
import sys
import traceback
import types

TIME_IS_UP = 124
FILE = "<step>"
PROCESSES = 64
FILE_BYTES = 256 << 20


class TimeIsUp(KeyboardInterrupt):
    """The server's interrupt, as against one that the code raises itself."""


def main(fd: int, life: int, memory: int) -> None:
    """Run code until the other end closes.

    Args:
        fd: The socket.
        life: The pipe that ends with the server.
        memory: Limit of the address space, in bytes.
    """
    tie(life)
    limit(memory)
    signal.signal(signal.SIGINT, _interrupt)
    own = os.getpid()
    channel = socket.socket(fileno=fd)
    module = types.ModuleType("__main__")
    module.__builtins__ = builtins
    sys.modules["__main__"] = module
    sys.argv = [""]
    del sys.path[0:1]
    sys.path.insert(0, "")
    while True:
        head = _read(channel, 4)
        if head is None:
            os._exit(0)
        source = _read(channel, struct.unpack(">I", head)[0])
        if source is None:
            os._exit(0)
        code = run(source.decode("utf-8", "surrogatepass"), module.__dict__)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # closed or replaced by the code
                code = code or 1
        if os.getpid() != own:  # a fork of the code's has come to its end: the answer is its parent's to give
            os._exit(code & 0xFF)
        channel.sendall(struct.pack(">i", code))


def tie(life: int) -> None:
    """End with the server, even one that was killed while the code runs."""
    with contextlib.suppress(OSError):  # a kernel without such signals: then the end is seen when the code has ended
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC)


def _interrupt(number: int, frame: object) -> None:
    raise TimeIsUp


def limit(memory: int) -> None:
    """Set limits that the code cannot raise again."""
    for kind, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        *([(resource.RLIMIT_NPROC, PROCESSES)] if os.getuid() else []),
    ):
        highest = resource.getrlimit(kind)[1]
        value = value if highest == resource.RLIM_INFINITY else min(value, highest)
        resource.setrlimit(kind, (value, value))


def run(source: str, names: dict) -> int:  # type: ignore[type-arg]
    """Run one piece of code; returns its exit code and never raises."""
    try:
        linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
        exec(compile(source, FILE, "exec"), names)
        return 0
    except SystemExit as error:
        return _exit_code(error.code)
    except TimeIsUp:
        return TIME_IS_UP
    except BaseException as error:
        _tell(error)
        return 1


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _tell(error: BaseException) -> None:
    try:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
    except BaseException:  # a __str__ of the code's own, or no memory left
        os.write(2, f"{type(error).__name__}\n".encode())


def _read(channel: socket.socket, size: int) -> "bytes | None":
    parts = []
    while size:
        try:
            part = channel.recv(min(size, 1 << 20))
        except KeyboardInterrupt:  # came after the code had ended
            continue
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
