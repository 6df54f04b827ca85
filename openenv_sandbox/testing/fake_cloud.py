"""The cloud behind `FakeProvider`: a ledger of sandboxes that outlives providers, clients and whole processes.

It answers on the loopback, one connection per call, in threads of its own: what a client does with its event loop, or
a ``kill -9`` of the client's process, changes nothing here. A request goes on when its client is gone, as in a cloud.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import socketserver
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from openenv_sandbox.testing.fake_box import ARGV, Box
from openenv_sandbox.testing.faults import FakeApiError, Faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from openenv_sandbox.testing.fake import FakeProvider


class _Clock(Protocol):
    def time(self) -> float: ...


class _SystemClock:
    def time(self) -> float:
        return time.time()


@dataclass
class Call:
    """One request the cloud received: what it asked and how it ended (an HTTP-like status; None while it runs)."""

    op: str
    args: dict[str, Any] = field(repr=False)
    status: int | None = None


class FakeCloud:
    """A cloud of one test.

    Args:
        clock: What its timers follow; a `FakeClock` stands still until the test moves it.
        lifetime: Whether a sandbox ends at its lifetime.
        dedupes: Whether a second create with one key gives the same sandbox.
        quota: How many sandboxes may exist at once; None for any number.
        exact_extend: ``extend`` also shortens, as some vendors' calls do.
    """

    def __init__(
        self,
        *,
        clock: _Clock | None = None,
        lifetime: bool = True,
        dedupes: bool = True,
        quota: int | None = None,
        exact_extend: bool = False,
    ) -> None:
        self.clock: Any = clock or _SystemClock()
        self.lifetime, self.dedupes, self.quota, self.exact_extend = lifetime, dedupes, quota, exact_extend
        self.faults = Faults()
        self.boxes: dict[str, Box] = {}
        self.prepared: dict[str, dict[str, Any]] = {}
        self.calls: list[Call] = []
        self.peak = 0
        self._lock = threading.RLock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.cloud = self
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        if hasattr(self.clock, "listeners"):
            self.clock.listeners.append(self.tick)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="fake-cloud").start()

    def provider(self, name: str = "fake", **capabilities: Any) -> type[FakeProvider]:
        """A provider class bound to this cloud; keywords replace fields of its `Capabilities`."""
        from openenv_sandbox.testing.fake import bound_provider

        return bound_provider(self, name, capabilities)

    def live(self) -> list[Box]:
        """Sandboxes that cost money now, whether a look-up shows them or not."""
        self.tick()
        with self._lock:
            return [box for box in self.boxes.values() if box.status != "stopped" or not box.exited.is_set()]

    def count(self, op: str) -> int:
        """How many requests of this kind arrived."""
        return sum(call.op == op for call in self.calls)

    def tick(self) -> None:
        """End what the clock has overtaken."""
        now = self.clock.time()
        with self._lock:
            due = [box for box in self.boxes.values() if box.due(now)]
            for box in due:
                del self.boxes[box.id]
        for box in due:
            box.end()

    def close(self) -> None:
        """End everything."""
        self.faults.clear()
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            boxes, self.boxes = list(self.boxes.values()), {}
        for box in boxes:
            box.end()
        for entry in self.prepared.values():
            if entry.get("files"):
                shutil.rmtree(entry["files"], ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------------- calls

    def handle(
        self, op: str, args: dict[str, Any], stdin: Iterator[bytes], out: Callable[[dict[str, Any]], None]
    ) -> Any:
        """Answer one request, faults included."""
        call = Call(op, args)
        self.calls.append(call)
        try:
            self.tick()
            rules = self.faults.take(op, args)
            for rule in rules:
                if rule.when == "before":
                    rule.apply()
                if rule.die is not None:
                    args["die"] = dict(rule.die)
                args["late"] = max(args.get("late", 0.0), rule.late)
                if rule.half is not None:
                    args["half"] = rule.half
            if op in ("exec", "list"):
                args.update(stdin=stdin, out=out)
            result = getattr(self, f"_op_{op}")(**args)
            for rule in rules:
                if rule.when == "after":
                    rule.apply()
        except FakeApiError as error:
            call.status = error.status
            raise
        call.status = 200
        return result

    def _box(self, id: str) -> Box:
        with self._lock:
            box = self.boxes.get(id)
        if box is None:
            raise FakeApiError(404, f"no sandbox {id}")
        return box

    def _seen(self) -> list[Box]:
        now = self.clock.time()
        with self._lock:
            return [box for box in self.boxes.values() if box.visible_at <= now]

    def _op_create(self, *, late: float = 0.0, **args: Any) -> dict[str, Any]:
        with self._lock:
            same = [box for box in self.boxes.values() if box.key == args["key"]]
            if same and self.dedupes:
                return self._info(same[0])
            if self.quota is not None and len(self.boxes) >= self.quota:
                raise FakeApiError(402, f"{len(self.boxes)} of {self.quota} sandboxes in use")
            now = self.clock.time()
            box = Box(f"box-{uuid.uuid4().hex[:12]}", args, now=now)
            box.visible_at = now + late
            if self.lifetime and args.get("lifetime_s"):
                box.expires_at = now + args["lifetime_s"]
            self.boxes[box.id] = box
            self.peak = max(self.peak, len(self.boxes))
        files = self.prepared.get(args["image"], {}).get("files")
        if files:
            shutil.copytree(files, box.root, dirs_exist_ok=True, symlinks=True)
        if args.get("start") != "exec":
            box.start(args.get("command") or ARGV, args.get("die"))
        return self._info(box)

    def _info(self, box: Box) -> dict[str, Any]:
        return {
            "id": box.id,
            "key": box.key,
            "status": box.status,
            "labels": box.labels,
            "created_at": box.created_at,
            "expires_at": box.expires_at,
            "image": box.args["image"],
            "resources": box.args.get("resources"),
        }

    def _op_find(self, *, key: str, late: float = 0.0) -> list[dict[str, Any]]:
        return [self._info(box) for box in self._seen() if box.key == key]

    def _op_info(self, *, id: str, late: float = 0.0) -> dict[str, Any]:
        return self._info(self._box(id))

    def _op_list(
        self, *, labels: dict[str, str], out: Callable[[Any], None], half: int | None = None, **_: Any
    ) -> None:
        for n, box in enumerate(self._seen()):
            if half is not None and n >= half:
                raise FakeApiError(0, "the listing broke off")
            if all(box.labels.get(name) == value for name, value in labels.items()):
                out({"item": self._info(box)})

    def _op_delete(self, *, id: str, late: float = 0.0) -> None:
        with self._lock:
            box = self.boxes.pop(id, None)
        if box is None:
            raise FakeApiError(404, f"no sandbox {id}")
        box.end()

    def _op_endpoint(self, *, id: str, port: int, late: float = 0.0) -> dict[str, Any]:
        box = self._box(id)
        box.alive()
        return {"url": f"http://127.0.0.1:{box.port if port == box.args['port'] else port}"}

    def _op_exec(
        self, *, id: str, argv: list[str], env: dict[str, str], cwd: str | None, user: str | None, **io: Any
    ) -> int:
        box = self._box(id)
        box.touch(self.clock.time())
        if io.get("die"):
            box.args["die"] = io["die"]

        def sink(name: str, data: bytes) -> None:
            io["out"]({"out": name, "data": base64.b64encode(data).decode()})

        return box.exec(argv, env, cwd, user, io["stdin"], sink)

    def _op_put(self, *, id: str, path: str, data: str, late: float = 0.0) -> None:
        try:
            (self._box(id).root / path).write_bytes(base64.b64decode(data))
        except OSError as error:
            raise FakeApiError(422, f"{path}: {error.strerror}") from error

    def _op_wait_exit(self, *, id: str, late: float = 0.0) -> dict[str, Any]:
        box = self._box(id)
        box.exited.wait()
        return {"code": box.exit_code, "tail": base64.b64encode(bytes(box.log[-65536:])).decode()}

    def _op_first_output(self, *, id: str, late: float = 0.0) -> None:
        self._box(id).spoke.wait()

    def _op_logs(self, *, id: str, late: float = 0.0) -> str:
        return base64.b64encode(bytes(self._box(id).log)).decode()

    def _op_extend(self, *, id: str, lifetime_s: float, late: float = 0.0) -> float:
        box = self._box(id)
        box.alive()
        end = self.clock.time() + lifetime_s
        box.expires_at = end if self.exact_extend else max(end, box.expires_at or 0.0)
        box.extended.append(lifetime_s)
        return box.expires_at

    def _op_keep_alive(self, *, id: str, late: float = 0.0) -> None:
        box = self._box(id)
        box.alive()
        box.touch(self.clock.time())

    def _op_pause(self, *, id: str, on: bool, late: float = 0.0) -> None:
        self._box(id).pause(on)

    def _op_snapshot(self, *, id: str, late: float = 0.0) -> str:
        box = self._box(id)
        box.alive()
        name = f"snap-{uuid.uuid4().hex[:12]}"
        target = Path(f"{box.root}-{name}")
        shutil.copytree(box.root, target, symlinks=True)
        self.prepared[name] = {"ref": name, "files": str(target)}
        return name

    def _op_prepare(self, *, key: str, ref: str, late: float = 0.0) -> str:
        self.prepared.setdefault(key, {"ref": ref})
        return ref

    def _op_list_prepared(self, *, late: float = 0.0) -> list[str]:
        return [entry["ref"] for entry in list(self.prepared.values())]

    def _op_drop(self, *, ref: str, late: float = 0.0) -> None:
        for key in [key for key, entry in self.prepared.items() if entry["ref"] == ref]:
            files = self.prepared.pop(key).get("files")
            if files:
                shutil.rmtree(files, ignore_errors=True)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256
    cloud: FakeCloud


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        line = self.rfile.readline()
        if not line:
            return
        request = json.loads(line)
        lock = threading.Lock()

        def out(message: dict[str, Any]) -> None:
            try:
                with lock:
                    self.wfile.write(json.dumps(message).encode() + b"\n")
            except OSError:
                return  # the client is gone; the call goes on

        try:
            out({"result": self.server.cloud.handle(request["op"], request["args"], self._stdin(), out)})
        except FakeApiError as error:
            if error.status:
                out({"status": error.status, "message": error.message, "retry_after": error.retry_after})
        # Closing with input unread would reset the connection, and the reply could be lost on the way.
        with contextlib.suppress(OSError):
            self.request.shutdown(socket.SHUT_WR)
            while self.rfile.read(1 << 16):
                pass

    def _stdin(self) -> Iterator[bytes]:
        while line := self.rfile.readline():
            data = json.loads(line).get("stdin")
            if data is None:
                return
            yield base64.b64decode(data)
