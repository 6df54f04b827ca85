"""The client that knows no types: dicts in, dicts out."""

from __future__ import annotations

from typing import Any

from openenv_sandbox.client.base import EnvClient
from openenv_sandbox.client.parsing import GenericObservation, payload_of

__all__ = ["GenericAction", "GenericEnvClient", "GenericObservation"]


class GenericAction(dict[str, Any]):
    """An action made of keyword arguments: ``GenericAction(code="1 + 1")``."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)

    def __repr__(self) -> str:
        return f"GenericAction({', '.join(f'{name}={value!r}' for name, value in self.items())})"


class GenericEnvClient(EnvClient[Any, GenericObservation, dict[str, Any]]):
    """A client of any environment: actions are dicts (or models), observations and states are dicts."""

    def _step_payload(self, action: Any) -> dict[str, Any]:
        return payload_of(action)
