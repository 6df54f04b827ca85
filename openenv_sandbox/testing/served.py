"""An application on a free port of this machine, for tests of an environment through its own client."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 30.0
STOP_S = 30.0


@contextmanager
def serve_app(app: Any) -> Iterator[str]:
    """Serve an ASGI application in a thread of this process and yield its address, ``http://127.0.0.1:PORT``.

    Args:
        app: The application, such as `openenv_sandbox.server.create_app` makes it.

    Raises:
        RuntimeError: It did not start, or does not stop, in time.
    """
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        failed: list[BaseException] = []

        def run() -> None:
            try:
                server.run(sockets=[listener])
            except BaseException as error:  # uvicorn leaves by SystemExit where the application does not start
                failed.append(error)

        thread = threading.Thread(target=run, name="openenv-serve-app", daemon=True)
        thread.start()
        try:
            for _ in range(int(START_S / 0.01)):
                if server.started or not thread.is_alive():
                    break
                thread.join(0.01)
            if not server.started:
                raise RuntimeError(f"the application did not start: {failed[0] if failed else 'no answer in time'}")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(STOP_S)
            if thread.is_alive():
                raise RuntimeError(f"the application did not stop within {STOP_S:g} s")
