"""A certificate for the loopback, trusted by nobody who was not given it."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COMMAND = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
    *("-days", "2", "-subj", "/CN=openenv emulator", "-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
)
_lock = threading.Lock()


def make(folder: Path, names: Sequence[str] = ()) -> tuple[ssl.SSLContext, Path]:
    """A server context (HTTP/1.1 only) and the certificate that clients must trust."""
    every = ("localhost", "*.localhost", *names)
    stem = folder / f"tls-{hashlib.sha256(' '.join(every).encode()).hexdigest()[:12]}"
    cert, key = stem.with_suffix(".pem"), stem.with_suffix(".key")
    with _lock:
        if not cert.exists():
            alternatives = ",".join(["IP:127.0.0.1", *(f"DNS:{name}" for name in every)])
            subprocess.run(
                [*COMMAND, "-addext", f"subjectAltName={alternatives}", "-keyout", key, "-out", cert], check=True
            )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["http/1.1"])
    return context, cert
