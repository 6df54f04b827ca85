"""Novita's control plane, as its SDK 2.1.1 speaks to it: E2B's of an older version, with the fork's own models.

The same daemon, builder and proxy stand behind it. UNVERIFIED: that the traffic token's header is the one that its
code interpreter sends (the SDK names no other), and that connect sets the end of a running sandbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from starlette.responses import JSONResponse

from tests.emulators.faces.e2b_builder import Builder
from tests.emulators.faces.e2b_face import E2bFace, Shape

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from tests.emulators.engine import Engine

KEY = "sk_0123456789abcdef0123456789abcdef"
DOMAIN = "novita.test"


class NovitaBuilder(Builder):
    """Its models say less of a template with its builds, and a build takes one more field."""

    def extra_shape(self) -> dict[str, Any]:
        return {"preBootScript": str}

    def with_builds(self, facts: dict[str, Any]) -> dict[str, Any]:
        dropped = {"build_id", "cpu_count", "memory_mb", "disk_size_mb", "created_by", "build_count", "envd_version"}
        return {name: value for name, value in facts.items() if name not in {*dropped, "build_status"}}


class NovitaFace(E2bFace):
    """What differs."""

    root: ClassVar[str] = "novita_sandbox.core"
    key: ClassVar[str] = KEY
    domain: ClassVar[str] = DOMAIN
    boundary: ClassVar[str] = "novita-sandbox-id"
    create_path: ClassVar[str] = "/sandboxes"
    connect_path: ClassVar[str] = "/sandboxes/{id}/connect"
    create_shape: ClassVar[Shape] = {
        "templateID": str,
        "timeout": int,
        "autoPause": bool,
        "autoResume": dict,
        "allow_internet_access": bool,
        "network": dict,
        "metadata": dict,
        "envVars": dict,
        "mcp": (dict, type(None)),
        "secure": bool,
        "volumeMounts": list,
        "secrets": dict,
        "nodeID": str,
    }
    network_shape: ClassVar[Shape] = {
        "allowPublicTraffic": bool,
        "allowOut": list,
        "denyOut": list,
        "maskRequestHost": str,
    }
    snapshot_shape: ClassVar[Shape] = {"name": str}
    connect_shape: ClassVar[Shape] = {"timeout": int, "secure": bool, "allowPublicTraffic": bool, "network": dict}

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.connects: list[int] = []

    def make_builder(self) -> Builder:
        return NovitaBuilder(self)

    async def connect(self, request: Request) -> Response:
        """Resume it, or tell a running one's tokens; its end is set to what is asked for."""
        asked = await self.body(request, self.connect_shape)
        seconds, box = self.seconds(asked, 300), self.box(request)
        self.connects.append(seconds)
        resumed = box.state == "paused"
        if resumed:
            await box.resume()
        box.set_ttl(seconds)
        return JSONResponse(self.shown(box), 201 if resumed else 200)
