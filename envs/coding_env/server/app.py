"""The ASGI application.

Installed, ``uvicorn coding_env.server.app:app`` serves it; in the environment's folder, ``uvicorn server.app:app``.
"""

from __future__ import annotations

import os

from openenv_sandbox.server.app import create_app

from .coding_environment import CodeAction, CodeObservation, CodeState, PythonCodeActEnv

_capacity = os.environ.get("MAX_CONCURRENT_ENVS")

app = create_app(
    PythonCodeActEnv,
    CodeAction,
    CodeObservation,
    env_name="coding_env",
    max_concurrent_envs=int(_capacity) if _capacity else None,
    state_cls=CodeState,
)


def main(host: str = "0.0.0.0", port: int | None = None) -> None:
    """Serve until stopped.

    Args:
        host: Address to listen on.
        port: Port; ``PORT`` or 8000 by default.
    """
    import uvicorn

    uvicorn.run(app, host=host, port=port if port is not None else int(os.environ.get("PORT", "8000")))


if __name__ == "__main__":
    main()
