"""What JSON-RPC can reach: the sessions of the server, and the one of the socket a request came by."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from openenv_sandbox.server.session import Session
    from openenv_sandbox.server.sessions import SessionManager


class SessionContext:
    """The context `openenv_sandbox.server.mcp.handle_rpc` works in.

    Args:
        manager: The sessions of the server.
        own: The session of the socket; None over HTTP.
    """

    def __init__(self, manager: SessionManager, own: Session | None = None) -> None:
        self.manager = manager
        self.own = own

    @property
    def tool_actions(self) -> bool:
        """Whether the environment takes tool calls as actions of ``step``."""
        return self.manager.dispatcher.tool_actions

    def find(self, session_id: str) -> Session | None:
        """An open session of that id."""
        return self.manager.sessions.get(session_id)

    async def create(self) -> Session:
        """Open a session that no socket holds.

        Raises:
            CapacityError: No slot is free.
            FactoryError: The environment could not be built.
        """
        return await self.manager.open()

    async def close(self, session_id: str) -> bool:
        """Close a session; False when that waits for the socket attached to it."""
        return await self.manager.close_session(session_id)

    def throwaway(self) -> AbstractAsyncContextManager[Session]:
        """A session for one request, outside the count."""
        return self.manager.temporary()
