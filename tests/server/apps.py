"""``uvicorn tests.server.apps:app``."""

from __future__ import annotations

from openenv_sandbox.server import create_app
from tests.server.environments import Asynchronous, Do, Inline, Recording, Saw

app = create_app(Recording, Do, Saw)
inline = create_app(Inline, Do, Saw)
asynchronous = create_app(Asynchronous, Do, Saw)
