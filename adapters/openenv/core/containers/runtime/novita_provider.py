"""Sandboxes of novita. New code uses `openenv_sandbox.launch`."""

from openenv_adapters.containers.novita import NovitaSandboxProvider as NovitaSandboxProvider

__all__ = ["NovitaSandboxProvider"]
