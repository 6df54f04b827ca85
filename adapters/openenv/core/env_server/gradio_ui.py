"""What a page built with Gradio takes over from the one it replaces."""

from openenv_sandbox.server.web.app import get_gradio_display_title as get_gradio_display_title
from openenv_sandbox.server.web.custom import build_gradio_app as build_gradio_app

__all__ = [
    "build_gradio_app",
    "get_gradio_display_title",
]
