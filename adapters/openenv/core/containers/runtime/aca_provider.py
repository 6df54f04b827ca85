"""Sandboxes of aca. New code uses `openenv_sandbox.launch`."""

from openenv_adapters.containers.aca import ACASandboxProvider as ACASandboxProvider

__all__ = ["ACASandboxProvider"]
