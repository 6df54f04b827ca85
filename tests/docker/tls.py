"""A docker daemon behind TLS: certificates of a CA of our own, and an end of TLS before the daemon's socket."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def certificates(folder: Path) -> Path:
    """``ca.pem``, ``cert.pem`` and ``key.pem`` for a client, and ``server.pem`` for 127.0.0.1."""
    folder.mkdir()

    def run(*argv: str) -> None:
        subprocess.run(["openssl", *argv], cwd=folder, capture_output=True, check=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test ca", "-days", "2")
    for name, alternative in (("server", "IP:127.0.0.1"), ("client", "DNS:client")):
        (folder / "more").write_text(f"subjectAltName={alternative}\n")
        run("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "more")
        run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signer)
    (folder / "cert.pem").write_bytes((folder / "client.crt").read_bytes())
    (folder / "key.pem").write_bytes((folder / "client.key").read_bytes())
    return folder


@contextlib.contextmanager
def behind_tls(target: str, folder: Path) -> Iterator[str]:
    """Take clients with a certificate of the CA to the socket ``target``; yields the port's ``tcp://`` address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    open_: set[socket.socket] = {listener}
    threads: list[threading.Thread] = []

    def start(run: object, *args: object) -> None:
        threads.append(threading.Thread(target=run, args=args, daemon=True))  # type: ignore[arg-type]
        threads[-1].start()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                open_.add(plain)
                start(one, plain)

    def one(plain: socket.socket) -> None:
        try:
            here = context.wrap_socket(plain, server_side=True)
        except OSError:
            return plain.close()
        there = socket.socket(socket.AF_UNIX)
        there.connect(target)
        open_.update((here, there))
        start(down, there, here)
        pump(here, there)
        with contextlib.suppress(OSError):
            there.shutdown(socket.SHUT_WR)  # the daemon may have more to say, and so does a daemon with TLS of its own

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(65536):
                sink.sendall(data)

    def down(there: socket.socket, here: socket.socket) -> None:
        pump(there, here)
        for end in (there, here):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    start(serve)
    try:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for end in tuple(open_):  # a thread may add one meanwhile
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(10)
        for end in open_:
            end.close()
