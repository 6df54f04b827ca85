"""The client of the coding environment."""

from __future__ import annotations

from openenv_sandbox.client import EnvClient

from .models import CodeAction, CodeObservation, CodeState


class CodingEnv(EnvClient[CodeAction, CodeObservation, CodeState]):
    r"""Talks to a coding environment.

    async with CodingEnv(base_url="http://localhost:8000") as env:
        await env.reset()
        result = await env.step(CodeAction(code="print(6 * 7)"))
        assert result.observation.stdout == "42\n"
    """
