"""The plain HTTP routes. Each request has an environment of its own: HTTP carries no episode."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import Body, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, ValidationError

from openenv_sandbox.server import mcp
from openenv_sandbox.server.context import SessionContext
from openenv_sandbox.server.mcp_http import McpServer, is_mcp
from openenv_sandbox.server.metadata import load_environment_metadata
from openenv_sandbox.server.types import EnvelopeResponse, ResetRequest, ServerMode, StepRequest
from openenv_sandbox.wire import codec, messages

if TYPE_CHECKING:
    from openenv_sandbox.server.sessions import SessionManager


class HealthResponse(BaseModel):
    """Answer of ``/health``."""

    status: str = "healthy"


def add_routes(app: FastAPI, manager: SessionManager, models: dict[str, type[BaseModel]], mode: ServerMode) -> None:
    """Add the routes of a mode to an application.

    Args:
        app: The application.
        manager: Makes the environments.
        models: What ``/schema`` shows, by name.
        mode: Production has no ``/reset``, ``/step`` and ``/state``.
    """
    health = codec.dumps({"status": "healthy"})
    schemas: list[bytes] = []

    @app.get("/health", response_model=HealthResponse, tags=["Health"])
    async def get_health() -> Response:
        """Whether the server is up."""
        return _json(health)

    @app.get("/schema", tags=["Schema"])
    async def get_schema() -> Response:
        """JSON schemas of action, observation and state."""
        if not schemas:
            schemas.append(codec.dumps({name: model.model_json_schema() for name, model in models.items()}))
        return _json(schemas[0])

    @app.get("/metadata", tags=["Environment Info"])
    async def get_metadata() -> Response:
        """What the environment says about itself."""
        async with manager.temporary() as session:
            metadata = await session.call(_metadata)
        return _json(codec.dumps({**codec.fields_of(metadata), "openenv_version": own_version()}))

    agents = McpServer(manager, name=manager.factory_name, version=own_version())

    @app.post("/mcp", tags=["MCP"])
    async def post_mcp(request: Request) -> Response:
        """MCP over streamable HTTP, and the older JSON-RPC form."""
        message = mcp.parse_body(await request.body())
        if is_mcp(message, request.headers):
            return await agents.post(message, request)
        return _json(await mcp.answer_post(message, SessionContext(manager)))

    @app.delete("/mcp", include_in_schema=False)
    async def delete_mcp(request: Request) -> Response:
        """End a session of MCP."""
        return await agents.delete(request)

    if mode is ServerMode.SIMULATION:
        _add_episode_routes(app, manager)


def _add_episode_routes(app: FastAPI, manager: SessionManager) -> None:
    @app.post("/reset", response_model=EnvelopeResponse, tags=["Environment Control"])
    async def post_reset(request: Annotated[ResetRequest, Body(default_factory=ResetRequest)]) -> Response:
        """Reset a new environment."""
        async with manager.temporary() as session:
            observation = await session.reset(request.model_dump(exclude_unset=True))
        return _json(_envelope(observation))

    @app.post("/step", response_model=EnvelopeResponse, tags=["Environment Control"])
    async def post_step(request: StepRequest) -> Response:
        """Take one step in a new environment."""
        try:
            action = manager.dispatcher.action(request.action)
        except ValidationError as error:
            raise HTTPException(422, detail=orjson.loads(error.json())) from None
        kwargs = request.model_dump(exclude_unset=True, exclude={"action", "request_id"})
        async with manager.temporary() as session:
            observation = await session.step(action, kwargs)
        return _json(_envelope(observation))

    @app.get("/state", tags=["State Management"])
    async def get_state() -> Response:
        """State of a new environment."""
        async with manager.temporary() as session:
            state = await session.state()
        return _json(codec.dumps(None if state is None else codec.fields_of(state)))


def _metadata(env: Any) -> Any:
    own = getattr(env, "get_metadata", None)
    return own() if own is not None else load_environment_metadata(type(env))


def _envelope(observation: Any) -> bytes:
    data = messages.envelope(codec.fields_of(observation))
    data.setdefault("metadata", None)
    if isinstance(data["reward"], int):  # bool included: over HTTP a reward is a float
        data["reward"] = float(data["reward"])
    return codec.dumps(data)


def own_version() -> str:
    """Version of this library."""
    try:
        return version("openenv")
    except PackageNotFoundError:  # run from a copy of the sources
        return "0.0.0"


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
