"""Commands and files of Runloop's devboxes, and the snapshots of their disks.

A command is run by a fresh login shell in the user's home. The answer holds the last hundred lines of each stream as
text and says whether more was written; the streams replay all of it as server-sent events. UNVERIFIED: what becomes of
bytes that are no UTF-8 (replaced here), and what a command of a devbox that ends answers (400).
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runloop_api_client import types as sdk
from runloop_api_client.types import devboxes as parts
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.emulators.engine import BoxGone
from tests.emulators.faces import runloop_shapes as shapes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from tests.emulators.engine import Box, Proc
    from tests.emulators.faces.runloop_api import RunloopFace

LAST_N = 100
EXEC_HOLD_S = 25.0
DEFAULT_USER = "1000:1000"
"""Stands for the account named ``user`` that the vendor's own images have."""


@dataclass
class Execution:
    """One command."""

    id: str
    proc: Proc
    output: dict[str, bytearray] = field(default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Commands:
    """Those of one face.

    Attributes:
        run: Command lines, in order.
        snapshots: Of disks, by id.
        fails: Why snapshots fail, if they do.
    """

    def __init__(self, face: RunloopFace) -> None:
        self.face = face
        self.run: list[str] = []
        self.executions: dict[str, Execution] = {}
        self.snapshots: dict[str, dict[str, Any]] = {}
        self.fails: str | None = None

    def routes(self) -> list[tuple[str, str, Any]]:
        one, execution = "/v1/devboxes/{id}", "/v1/devboxes/{id}/executions/{execution}"
        return [
            ("POST", one + "/execute_async", self.execute),
            ("POST", execution + "/wait_for_status", self.wait),
            ("GET", execution + "/stream_{name}_updates", self.stream),
            ("POST", one + "/upload_file", self.upload),
            ("POST", one + "/snapshot_disk_async", self.snapshot),
        ]

    def early_routes(self) -> list[tuple[str, str, Any]]:
        """Before ``/v1/devboxes/{id}``."""
        every = "/v1/devboxes/disk_snapshots"
        return [
            ("GET", every, self.list_snapshots),
            ("GET", every + "/{snapshot}/status", self.snapshot_status),
            ("POST", every + "/{snapshot}/delete", self.drop_snapshot),
        ]

    # ------------------------------------------------------------------------------------------------- commands

    async def execute(self, request: Request) -> Response:
        asked = await self.face.body(request, shapes.Execute)
        devbox = self.face.running(request.path_params["id"])
        self.run.append(asked.command)
        async with self.face.engine.hooked("exec", command=asked.command):
            try:
                proc = await devbox.box.exec(
                    ["/bin/bash", "-lc", asked.command], env=devbox.box.env, cwd="/tmp", user=self.user(devbox.asked)
                )
            except BoxGone:
                raise self.ended(devbox.id) from None
            execution = Execution(f"exec_{secrets.token_hex(8)}", proc)
            self.executions[execution.id] = execution
            self.face.engine.keep(self.follow(execution))
        return self.told(devbox.id, execution, LAST_N)

    def user(self, asked: shapes.CreateDevbox) -> str:
        who = asked.launch_parameters.user_parameters
        return DEFAULT_USER if who is None else str(who.uid)

    def ended(self, id: str) -> Exception:
        from tests.emulators.faces.runloop_api import Problem

        return Problem(400, f"Devbox {id} is not running: shutdown")

    async def follow(self, execution: Execution) -> None:
        async def one(name: str, stream: AsyncIterator[bytes]) -> None:
            async for chunk in stream:
                execution.output[name] += chunk

        streams = asyncio.gather(one("stdout", execution.proc.stdout), one("stderr", execution.proc.stderr))
        await execution.proc.wait()
        # What a process left in the background writes later belongs to nobody.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(streams, 0.2)
        execution.done.set()

    def execution(self, request: Request) -> Execution:
        from tests.emulators.faces.runloop_api import Problem

        self.face.running(request.path_params["id"])
        found = self.executions.get(request.path_params["execution"])
        if found is None:
            raise Problem(404, "Execution not found")
        return found

    async def wait(self, request: Request) -> Response:
        from tests.emulators.faces.runloop_api import Problem

        asked, execution = await self.face.body(request, shapes.Wait), self.execution(request)
        await self.face.engine.hook("wait", "before")
        hold = min(asked.timeout_seconds or EXEC_HOLD_S, EXEC_HOLD_S, self.face.hold_s)
        if asked.statuses == ["completed"]:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(execution.done.wait(), hold)
        self.face.running(request.path_params["id"])
        if ("completed" if execution.done.is_set() else "running") not in asked.statuses:
            raise Problem(408, "Timed out waiting for the status")
        last = int(request.query_params.get("last_n", LAST_N))
        return self.told(request.path_params["id"], execution, last)

    def told(self, devbox: str, execution: Execution, last: int) -> Response:
        from tests.emulators.faces.runloop_api import checked

        answer: dict[str, Any] = {"devbox_id": devbox, "execution_id": execution.id, "status": "running"}
        if execution.done.is_set():
            answer |= {"status": "completed", "exit_status": execution.proc.code}
            for name, data in execution.output.items():
                lines = data.decode("utf-8", "replace").splitlines(keepends=True)
                answer |= {name: "".join(lines[-last:]), f"{name}_truncated": len(lines) > last}
        return checked(sdk.DevboxAsyncExecutionDetailView, answer)

    async def stream(self, request: Request) -> Response:
        from tests.emulators.faces.runloop_api import Problem

        execution, name = self.execution(request), request.path_params["name"]
        if name not in execution.output or set(request.query_params) - {"offset"}:
            raise Problem(400, "no such stream")
        start = int(request.query_params.get("offset", "0"))

        async def events() -> AsyncIterator[bytes]:
            sent, decoder = start, codecs.getincrementaldecoder("utf-8")("replace")
            while True:
                ended = execution.done.is_set()
                data = bytes(execution.output[name][sent : sent + 50_000])
                if data:
                    chunk = {"output": decoder.decode(data), "offset": sent}
                    parts.ExecutionUpdateChunk.model_validate(chunk)
                    sent += len(data)
                    yield f"data: {json.dumps(chunk)}\n\n".encode()
                elif ended:
                    return
                else:
                    await asyncio.sleep(0.02)

        return StreamingResponse(events(), media_type="text/event-stream")

    async def upload(self, request: Request) -> Response:
        from tests.emulators.faces.runloop_api import Problem

        async with request.form() as form:
            file, path = form.get("file"), form.get("path")
            if set(form) != {"file", "path"} or file is None or isinstance(file, str) or not isinstance(path, str):
                raise Problem(400, "path and file are required")
            data = await file.read()
        devbox = self.face.running(request.path_params["id"])
        target = path if path.startswith("/") else f"/tmp/{path}"
        try:
            await devbox.box.write(target, data, user=self.user(devbox.asked))
        except BoxGone:
            raise self.ended(devbox.id) from None
        except OSError as error:
            raise Problem(400, f"{path}: {error.strerror}") from None
        return JSONResponse({})

    # ------------------------------------------------------------------------------------------------ snapshots

    async def snapshot(self, request: Request) -> Response:
        from tests.emulators.faces.runloop_api import checked

        asked = await self.face.body(request, shapes.SnapshotDisk)
        devbox = self.face.running(request.path_params["id"])
        id = f"snp_{secrets.token_hex(8)}"
        view = {
            "id": id,
            "name": asked.name,
            "metadata": asked.metadata,
            "create_time_ms": int(self.face.engine.clock.now() * 1000),
            "source_devbox_id": devbox.id,
            "source_blueprint_id": devbox.asked.blueprint_id,
        }
        self.snapshots[id] = {"view": view, "status": "in_progress", "image": None, "error": None}
        self.face.engine.keep(self.take(id, devbox.box))
        return checked(sdk.DevboxSnapshotView, view)

    async def take(self, id: str, box: Box) -> None:
        await asyncio.sleep(0.1)
        record = self.snapshots[id]
        if self.fails is not None:
            record |= {"status": "error", "error": self.fails}
        else:
            record["image"] = await self.face.engine.snapshot(box, f"runloop/{id}")
            record["status"] = "complete"

    def named(self, request: Request) -> dict[str, Any]:
        from tests.emulators.faces.runloop_api import Problem

        found = self.snapshots.get(request.path_params["snapshot"])
        if found is None:
            raise Problem(404, "Snapshot not found")
        return found

    async def snapshot_status(self, request: Request) -> Response:
        from tests.emulators.faces.runloop_api import checked

        record = self.named(request)
        answer = {"status": record["status"], "error_message": record["error"], "snapshot": None}
        if record["status"] == "complete":
            answer["snapshot"] = record["view"]
        return checked(parts.DevboxSnapshotAsyncStatusView, answer)

    async def list_snapshots(self, request: Request) -> Response:
        query = self.face.paging(request, "devbox_id", "source_blueprint_id")
        rows = [record["view"] for record in self.snapshots.values()]
        return self.face.rows("snapshots", sdk.DevboxSnapshotListView, rows, query)

    async def drop_snapshot(self, request: Request) -> Response:
        self.named(request)
        id = request.path_params["snapshot"]
        del self.snapshots[id]
        self.face.engine.drop_image(f"runloop/{id}")
        return JSONResponse({})
