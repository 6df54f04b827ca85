"""PID 1 of a local sandbox: starts the server, runs commands, reaps, reaches ports, and dies with its owners.

It runs under the environment's own interpreter (``-I -S``), so it needs nothing but the standard library, and imports
little of that: it stands before every server start.

Owners are connections. A sandbox whose last owner vanished without saying that it lets go (``RELEASE``) ends with every
descendant: at once where it is PID 1 of a namespace, else by killing all it has become the parent of.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time
from typing import NoReturn

from openenv_providers import _local_frames as wire
from openenv_providers._local_hub import Hub, Peer
from openenv_providers._local_process import Prctl, become, bindable, exit_code, free_port, kill_tree


class Supervisor(Hub):
    """The loop. Single-threaded, so forking is safe at any point.

    Args:
        owner: Descriptor of the first owner's connection.
        listener: Descriptor of the listening unix socket.
        record: Descriptor of the file that takes the exit code and the last output.
        tcp: Descriptor of the server's listening socket, -1 where there is none.
        linux: Whether there are prctl and /proc; otherwise process groups have to do.
    """

    def __init__(self, owner: int, listener: int, record: int, tcp: int, linux: bool) -> None:
        self.pid1 = os.getpid() == 1
        self.linux = linux
        self.prctl = Prctl(linux)
        # Otherwise the workload, which has the same user, could take these file descriptors.
        self.prctl.set(Prctl.DUMPABLE, 0)
        self.prctl.set(Prctl.SUBREAPER, 1)
        for fd in (record, *([tcp] if tcp >= 0 else [])):
            os.set_inheritable(fd, False)
        self.record, self.tcp = record, tcp
        self.commands: dict[int, Peer] = {}
        self.log = bytearray()
        self.server = self.port = 0
        self.start: list[bytes] = []
        self.env: dict[bytes, bytes] = {}
        self.cwd = b"/"
        self.retried = self.paused = False
        super().__init__(owner, listener)

    def run(self) -> None:
        """Serve until something ends the sandbox, then end everything in it."""
        super().run()
        if not self.pid1:  # the kernel does, when PID 1 ends
            self._kill_everything()

    def request(self, peer: Peer, kind: int, payload: bytes) -> None:
        """Do what a frame asks for."""
        if kind == wire.START and not self.start:
            self.start = payload.split(b"\0")
            self.send(peer, wire.HELLO, wire.NUMBER.pack(self._start_server()))
        elif kind == wire.ADOPT:
            peer.owner = True
            self.send(peer, wire.HELLO, wire.NUMBER.pack(self.port))
            if self.log:
                self.send(peer, wire.OUTPUT)
        elif kind == wire.RELEASE:
            peer.owner = False
            self.send(peer, wire.DONE)
        elif kind == wire.QUIT:
            self.ended = True
        elif kind == wire.EXEC:
            self._exec(peer, payload.split(b"\0"))
        elif kind == wire.DIAL:
            self._dial(peer, int(payload))
        elif kind == wire.LOGS:
            self.send(peer, wire.DONE, bytes(self.log[-wire.KEPT_LOG :]))
        elif kind in (wire.PAUSE, wire.RESUME) and self.pid1:
            # From PID 1 of a namespace, -1 is every other process of it, in one go.
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGSTOP if kind == wire.PAUSE else signal.SIGCONT)
            self.paused = kind == wire.PAUSE
            self.send(peer, wire.DONE)
        elif kind == wire.STATUS:
            self.send(peer, wire.DONE, b"paused" if self.paused else b"running")
        else:
            self.send(peer, wire.FAILED, wire.NUMBER.pack(errno.ENOSYS))

    def _dial(self, peer: Peer, port: int) -> None:
        code = errno.ECONNREFUSED
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with contextlib.suppress(OSError), socket.socket(family) as sock:
                # Loopback answers at once, unless the server is too busy to accept.
                sock.settimeout(0.5)
                code = sock.connect_ex((host, port))
                if code == 0:
                    sock.setblocking(False)
                    socket.send_fds(peer.sock, [wire.frame(wire.CHANNEL)], [sock.fileno()])
                    return
        self.send(peer, wire.FAILED, wire.NUMBER.pack(code))

    # ---------------------------------------------------------------------------------------------- the server

    def _start_server(self) -> int:
        """Start it and return its port. It listens on the given socket (``tcp``), on one made here, or by itself.

        START is: how it listens, port, working directory, how many of the variables are for the server alone (they come
        first), the number of arguments, arguments, variables.
        """
        mode, port, cwd, secret = self.start[0], int(self.start[1]), self.start[2], int(self.start[3])
        argv, env = _split(self.start[4:])
        keep = -1
        if mode == b"tcp":
            keep = self.tcp
        elif mode == b"bind":
            keep = socket.create_server(("127.0.0.1", port), backlog=2048).detach()
        elif not bindable(port):
            port = free_port()
        self.port, self.cwd = port, cwd
        env[b"PORT"] = b"%d" % port
        self.env = {name: value for number, (name, value) in enumerate(env.items()) if number >= secret}
        argv = [b"%d" % keep if item == b"{fd}" else item for item in argv]
        reading, writing = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        self.server = os.fork()
        if self.server == 0:
            os.setsid()
            error = become(argv, env, cwd, (null, writing, writing), keep)
            os.write(writing, b"%s: %s\n" % (argv[0], os.fsencode(error.strerror or "")))
            os._exit(126 if error.errno == errno.EACCES else 127)
        for fd in (null, writing, *([keep] if keep >= 0 else [])):
            os.close(fd)
        os.set_blocking(reading, False)
        self._close_output()
        self.output = reading
        self.poll.register(reading, select.POLLIN)
        return port

    def read_output(self) -> None:
        """Keep the end of what the server writes, so that it never waits for a reader."""
        try:
            data = os.read(self.output, 2**16)
        except BlockingIOError:
            return
        if not data:
            return self._close_output()
        first = not self.log
        self.log += data
        if len(self.log) > 2 * wire.KEPT_LOG:
            del self.log[: -wire.KEPT_LOG]
        if first:
            self.tell_owners(wire.OUTPUT)

    def _close_output(self) -> None:
        if self.output >= 0:
            self.poll.unregister(self.output)
            os.close(self.output)
            self.output = -1

    def _server_ended(self, code: int) -> None:
        # Whole pipes at most: what survives the server may write for ever.
        for _ in range(64):
            if self.output >= 0:
                self.read_output()
        if code and self.start[0] == b"port" and not self.retried and not bindable(self.port):
            # Somebody took the port between the probe and the server's bind.
            self.retried = True
            self.log.clear()
            return self.tell_owners(wire.PORT, wire.NUMBER.pack(self._start_server()))
        tail = wire.NUMBER.pack(code) + bytes(self.log[-wire.TAIL :])
        with contextlib.suppress(OSError):
            os.pwrite(self.record, tail, 0)
        self.tell_owners(wire.EXITED, tail)
        self.ended = True

    # ---------------------------------------------------------------------------------------------- commands

    def _exec(self, peer: Peer, items: list[bytes]) -> None:
        stdio, peer.fds = peer.fds, []
        argv, env = _split(items[1:])
        if len(stdio) == 3 and not self.paused and not peer.command:
            pid = os.fork()
            if pid == 0:
                self._command(peer, argv, self.env | env, items[0] or self.cwd, (stdio[0], stdio[1], stdio[2]))
            peer.command = pid
            self.commands[pid] = peer
        else:
            self.send(peer, wire.FAILED, wire.NUMBER.pack(errno.EAGAIN))
        for fd in stdio:
            os.close(fd)

    def _command(
        self, peer: Peer, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, stdio: tuple[int, int, int]
    ) -> NoReturn:
        """In a child: run the command below a parent of its own, so that whatever it leaves behind can be found."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)  # a command that signals its own group means itself
        self.prctl.set(Prctl.SUBREAPER, 1)
        pid = os.fork()
        if pid == 0:
            error = become(argv, env, cwd, stdio, -1)
            with contextlib.suppress(OSError):
                peer.sock.send(wire.frame(wire.FAILED, wire.NUMBER.pack(error.errno or errno.EIO)))
            os._exit(127)
        os.closerange(0, 2**16)
        while True:
            ended, status = os.wait()
            if ended == pid:
                os._exit(exit_code(status))

    def lost(self, peer: Peer) -> None:
        """Whoever waited for a command is gone: so is the command, before anything else is asked for."""
        group = peer.command
        if group not in self.commands:
            return
        os.kill(group, signal.SIGSTOP)  # it may only now be about to start the command
        if self.linux:
            kill_tree(group)
        os.kill(group, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                os.killpg(group, signal.SIGKILL)
            except OSError:
                if group not in self.commands:
                    return
            self.reap()
            time.sleep(0.001)

    def reap(self) -> None:
        """Wait for whatever ended; orphans of the sandbox end up here."""
        with contextlib.suppress(ChildProcessError):
            while not self.ended:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.server:
                    self._server_ended(exit_code(status))
                elif pid in self.commands:
                    self.send(self.commands.pop(pid), wire.EXITED, wire.NUMBER.pack(exit_code(status)))

    def _kill_everything(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if self.linux:
                kill_tree(os.getpid())
            for group in (self.server, *self.commands):
                if group:
                    with contextlib.suppress(OSError):
                        os.killpg(group, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.002)


def _split(items: list[bytes]) -> tuple[list[bytes], dict[bytes, bytes]]:
    """A count, so many arguments, then variables."""
    count = int(items[0])
    env: dict[bytes, bytes] = {}
    for item in items[count + 1 :]:
        name, _, value = item.partition(b"=")
        env[name] = value
    return items[1 : count + 1], env


def main(arguments: list[str]) -> None:
    """Entry: five numbers as `Supervisor` takes them; what follows tells people which sandbox this is."""
    owner, listener, record, tcp, linux = map(int, arguments[:5])
    Supervisor(owner, listener, record, tcp, bool(linux)).run()
