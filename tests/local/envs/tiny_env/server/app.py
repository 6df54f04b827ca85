"""The smallest server: answers every path with what it knows about its process."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ..models import GREETING  # noqa: TID252  # existing packages import like this


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["path"] == "/die":
        sys.stderr.write("dying now\n")
        os._exit(17)
    if scope["path"] == "/big":
        body = b"x" * 16 * 2**20
    else:
        body = json.dumps(
            {"greeting": GREETING, "env": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid()}
        ).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})
