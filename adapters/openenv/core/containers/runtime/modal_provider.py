"""Sandboxes of modal. New code uses `openenv_sandbox.launch`."""

from openenv_adapters.containers.modal import ModalProvider as ModalProvider

__all__ = ["ModalProvider"]
