"""The connections of a local sandbox's supervisor: one poll loop, frames with file descriptors, owners."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket

from openenv_providers import _local_frames as wire


class Peer:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.set_inheritable(False)
        self.sock = sock
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.fds: list[int] = []
        self.owner = False
        self.command = 0

    def close(self) -> None:
        """Close it and the descriptors that came with it."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self.sock.close()


class Hub:
    """Accepts, reads and writes. What a request means is the subclass's."""

    def __init__(self, owner: int, listener: int) -> None:
        self.poll = select.poll()
        self.listener = socket.socket(fileno=listener)
        # Listening here makes this process the one that the kernel names to whoever connects (SO_PEERCRED).
        self.listener.listen(512)
        self.listener.setblocking(False)
        self.listener.set_inheritable(False)
        self.peers: dict[int, Peer] = {}
        self.ended = False
        self.output = -1
        self.wakeup, wake = os.pipe()
        for fd in (self.wakeup, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        for fd in (self.wakeup, listener):
            self.poll.register(fd, select.POLLIN)
        self._add(socket.socket(fileno=owner)).owner = True

    def run(self) -> None:
        """Serve until something ends the sandbox."""
        while not self.ended:
            for fd, event in self.poll.poll():
                if fd == self.wakeup:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                    self.reap()
                elif fd == self.listener.fileno():
                    with contextlib.suppress(OSError):
                        self._add(self.listener.accept()[0])
                elif fd == self.output:
                    self.read_output()
                elif fd in self.peers:
                    self._serve(self.peers[fd], event)

    def reap(self) -> None:
        """Children ended."""

    def read_output(self) -> None:
        """The server wrote."""

    def request(self, peer: Peer, kind: int, payload: bytes) -> None:
        """A whole frame arrived."""

    def lost(self, peer: Peer) -> None:
        """A connection that is not an owner's ended."""

    def send(self, peer: Peer, kind: int, payload: bytes = b"") -> None:
        """Queue a frame; a connection that is gone takes it silently."""
        if peer.sock.fileno() in self.peers:
            peer.outbox += wire.frame(kind, payload)
            try:
                self._flush(peer)
            except OSError:
                self._gone(peer)

    def tell_owners(self, kind: int, payload: bytes = b"") -> None:
        """An event."""
        for peer in [p for p in self.peers.values() if p.owner]:
            self.send(peer, kind, payload)

    def _signalled(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self.ended = True

    def _add(self, sock: socket.socket) -> Peer:
        peer = self.peers[sock.fileno()] = Peer(sock)
        self.poll.register(sock, select.POLLIN)
        return peer

    def _serve(self, peer: Peer, event: int) -> None:
        try:
            if event & select.POLLOUT:
                self._flush(peer)
            if event & ~select.POLLOUT:
                data, fds, _, _ = socket.recv_fds(peer.sock, 2**16, 3)
                for fd in fds:
                    os.set_inheritable(fd, False)
                peer.fds += fds
                if not data:
                    return self._gone(peer)
                peer.inbox += data
            while peer.sock.fileno() >= 0 and (message := wire.take(peer.inbox)) is not None:
                self.request(peer, *message)
        except BlockingIOError:
            return None
        except (OSError, ValueError, IndexError):
            self._gone(peer)

    def _gone(self, peer: Peer) -> None:
        if self.peers.pop(peer.sock.fileno(), None) is None:
            return
        self.poll.unregister(peer.sock)
        peer.close()
        if not peer.owner:
            self.lost(peer)
        elif not any(other.owner for other in self.peers.values()):
            self.ended = True

    def _flush(self, peer: Peer) -> None:
        with contextlib.suppress(BlockingIOError):
            while peer.outbox:
                del peer.outbox[: peer.sock.send(peer.outbox)]
        self.poll.modify(peer.sock, select.POLLIN | (select.POLLOUT if peer.outbox else 0))
