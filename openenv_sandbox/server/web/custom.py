"""A page that the environment's author builds with Gradio, mounted beside ours."""

from __future__ import annotations

import contextlib
import json
import logging
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from openenv_sandbox.server.web.describe import action_fields, is_chat
from openenv_sandbox.server.web.manager import WebInterfaceManager

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from openenv_sandbox.models import Action, Observation
    from openenv_sandbox.server.environment import EnvironmentMetadata

logger = logging.getLogger("openenv.server")

PATH = "/web/custom"


def mount(
    app: FastAPI,
    builder: Callable[..., Any],
    env: Callable[[], Any],
    action_cls: type[Action],
    observation_cls: type[Observation],
    metadata: EnvironmentMetadata,
    title: str,
    quick_start: str,
) -> bool:
    """Build the author's page and mount it at `PATH`.

    Whatever fails is one error in the log: the environment is served all the same.

    Returns:
        Whether the page is there.
    """
    if find_spec("gradio") is None:
        logger.error("the environment has a page of its own for Gradio, which is not installed: pip install gradio")
        return False
    manager = None
    try:
        gradio: Any = import_module("gradio")
        manager = WebInterfaceManager(env, action_cls, observation_cls, metadata)
        blocks = builder(manager, action_fields(action_cls), metadata, is_chat(action_cls), title, quick_start)
        if not isinstance(blocks, gradio.Blocks):
            raise TypeError(f"gradio_builder must return a gradio.Blocks, not a {type(blocks).__name__}")
        blocks.title = title
        gradio.mount_gradio_app(app, blocks, path=PATH)
    except Exception:
        logger.exception("the environment's own page could not be built; everything else is served")
        if manager is not None:
            with contextlib.suppress(Exception):
                manager.env.close()
        return False
    app.state.openenv_web_manager = manager
    return True


def build_gradio_app(
    web_manager: WebInterfaceManager,
    action_fields: list[dict[str, Any]],
    metadata: EnvironmentMetadata | None,
    is_chat_env: bool,
    title: str = "OpenEnv Environment",
    quick_start_md: str | None = None,
) -> Any:
    """A plain Gradio page over a manager, for builders that add to one: reset, an action as JSON, what came back.

    Args:
        web_manager: Drives the environment.
        action_fields: Their defaults become the action that is offered.
        metadata: Its name and description head the page.
        is_chat_env: Not used; callers pass it.
        title: Title of the window.
        quick_start_md: Shown folded.

    Returns:
        A ``gradio.Blocks``.
    """
    gradio: Any = import_module("gradio")
    start = {f["name"]: f["default_value"] for f in action_fields if f["required"] or f["default_value"] is not None}

    async def reset() -> tuple[Any, Any]:
        return await web_manager.reset_environment(), web_manager.get_state()

    async def step(action: str) -> tuple[Any, Any]:
        try:
            return await web_manager.step_environment(json.loads(action)), web_manager.get_state()
        except ValueError as error:  # no JSON, or no such action
            raise gradio.Error(str(error)) from error

    with gradio.Blocks(title=title) as blocks:
        gradio.Markdown(f"# {metadata.name}\n\n{metadata.description}" if metadata else f"# {title}")
        with gradio.Row():
            with gradio.Column():
                action = gradio.Code(json.dumps(start, indent=2), language="json", label="Action")
                stepping = gradio.Button("Step", variant="primary")
                resetting = gradio.Button("Reset")
            with gradio.Column():
                observation = gradio.JSON(label="Observation")
                state = gradio.JSON(label="State")
        if quick_start_md:
            with gradio.Accordion("Connect a program", open=False):
                gradio.Markdown(quick_start_md)
        stepping.click(step, [action], [observation, state])
        resetting.click(reset, [], [observation, state])
    return blocks
