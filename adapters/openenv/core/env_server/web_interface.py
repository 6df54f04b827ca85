"""What an environment package takes to shape its page."""

from openenv_sandbox.server.metadata import load_environment_metadata as load_environment_metadata
from openenv_sandbox.server.web.app import create_web_interface_app as create_web_interface_app
from openenv_sandbox.server.web.episode import ActionLog as ActionLog
from openenv_sandbox.server.web.episode import EpisodeState as EpisodeState
from openenv_sandbox.server.web.manager import WebInterfaceManager as WebInterfaceManager
from openenv_sandbox.server.web.quickstart import get_quick_start_markdown as get_quick_start_markdown

__all__ = [
    "ActionLog",
    "EpisodeState",
    "WebInterfaceManager",
    "create_web_interface_app",
    "get_quick_start_markdown",
    "load_environment_metadata",
]
