"""The data plane of Daytona: what the daemon inside a sandbox does, behind ``toolboxProxyUrl``.

A command is run by the first shell there is, stdout and stderr merged into text, and the call returns when both are at
their end: a process left in the background with them open holds it, as the SDK's docs say. Ten seconds without a
``timeout`` (the model's description). UNVERIFIED: the code and status of a command that was ended at its timeout (408
by the SDK's table), and what the proxy says when the sandbox ends meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import daytona_toolbox_api_client_async as sdk
from starlette.responses import JSONResponse, Response

from tests.emulators.engine import Box, BoxGone

if TYPE_CHECKING:
    from starlette.requests import Request

    from tests.emulators.faces.daytona_api import DaytonaFace

TIMEOUT_S = 10
SHELL = next(path for path in ("/bin/bash", "/bin/sh") if os.path.exists(path))


class Toolbox:
    """Commands and files of every sandbox of one face.

    Attributes:
        commands: Command lines that were run, in order.
    """

    def __init__(self, face: DaytonaFace) -> None:
        self.face = face
        self.commands: list[str] = []

    def routes(self) -> list[tuple[str, str, Any]]:
        one = "/toolbox/{id}"
        return [
            ("POST", one + "/process/execute", self.execute),
            ("POST", one + "/files/upload-v2", self.upload),
        ]

    def box(self, request: Request) -> Box:
        from tests.emulators.faces.daytona_api import Problem

        box = self.face.engine.boxes.get(request.path_params["id"])
        if box is None:
            raise Problem(404, "sandbox not found")
        if box.state != "running":
            raise Problem(400, "bad request: no IP address found. Is the Sandbox started?")
        box.touch()
        return box

    async def execute(self, request: Request) -> Response:
        from tests.emulators.faces.daytona_api import Problem

        box, asked = self.box(request), await self.face.body(request, sdk.ExecuteRequest)
        if not asked.command:
            raise Problem(400, "command is required")
        self.commands.append(asked.command)
        engine = self.face.engine
        async with engine.hooked("exec", command=asked.command):
            env = {**box.env, **(asked.envs or {})}
            try:
                proc = await box.exec(
                    [SHELL, "-c", f"exec 2>&1\n{asked.command}"], env=env, cwd=asked.cwd or box.workdir, user=box.user
                )
            except BoxGone:
                raise Problem(502, "sandbox connection lost") from None
            except OSError as error:
                raise Problem(400, f"{error.filename}: {error.strerror}") from None
            try:
                text = await asyncio.wait_for(proc.stdout.read(), asked.timeout or TIMEOUT_S)
            except asyncio.TimeoutError:
                await proc.kill()
                raise Problem(408, "command execution timeout") from None
            code = await proc.wait()
            if box.state == "stopped":
                raise Problem(502, "sandbox connection lost")
        answer = sdk.ExecuteResponse(exit_code=code, result=text.decode("utf-8", "replace"))
        return JSONResponse(answer.to_dict())

    async def upload(self, request: Request) -> Response:
        from tests.emulators.faces.daytona_api import Problem

        box = self.box(request)
        path = request.query_params.get("path", "")
        if set(request.query_params) != {"path"} or not path:
            raise Problem(400, "path is required")
        async with request.form() as form:
            file = form.get("file")
            if file is None or isinstance(file, str):
                raise Problem(400, "file is required")
            data = await file.read()
        try:
            await box.write(path, data, user=box.user)
        except BoxGone:
            raise Problem(502, "sandbox connection lost") from None
        answer = sdk.UploadedFile(name=path.rpartition("/")[2], path=path, type="file")
        return JSONResponse(answer.to_dict())

    def refusal(self, request: Request, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
        """The daemon's envelope."""
        answer = sdk.ErrorResponse(
            message=message,
            path=request.url.path,
            method=request.method,
            source="DAYTONA_DAEMON",
            status_code=status,
            timestamp="2026-11-30T00:00:00Z",
        )
        return JSONResponse(answer.to_dict(), status, headers)
