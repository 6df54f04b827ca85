"""What emulated modal refuses, asked by raw gRPC and HTTP requests that neither provider nor SDK would send."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.emulators.modal_bench import Modal, emulated_modal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine

pytest.importorskip("modal")
pytestmark = [pytest.mark.anyio, pytest.mark.emulator]

LOGIN = {"x-modal-token-id": "ak-emulated0000000000000", "x-modal-token-secret": "as-emulated-secret-0001"}


@pytest.fixture
def modal(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modal]:
    with emulated_modal(engine, monkeypatch) as modal:
        yield modal


class Raw:
    """A gRPC client of the stubs alone."""

    def __init__(self, url: str) -> None:
        from grpclib.client import Channel

        host, _, port = url.removeprefix("http://").partition(":")
        self.channel = Channel(host, int(port))

    async def ask(self, service: str, name: str, request: Any, reply: Any, metadata: dict[str, str]) -> tuple[str, str]:
        """Status name and message."""
        from grpclib import GRPCError
        from grpclib.client import UnaryUnaryMethod

        method: Any = UnaryUnaryMethod(self.channel, f"/{service}/{name}", type(request), reply)
        try:
            await method(request, metadata=metadata, timeout=20)
        except GRPCError as error:
            return error.status.name, str(error.message)
        return "OK", ""

    async def __aenter__(self) -> Raw:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.channel.close()


def _unknown_field() -> Any:
    from modal_proto import api_pb2

    return api_pb2.AppGetOrCreateRequest.FromString(
        api_pb2.AppGetOrCreateRequest(app_name="a").SerializeToString() + b"\xfa\x7f\x01x"
    )


def _create(**definition: Any) -> Any:
    from modal_proto import api_pb2

    app_id = definition.pop("app_id", "ap-none")
    tags = [api_pb2.SandboxTag(tag_name=name, tag_value="v") for name in definition.pop("tags", ())]
    return api_pb2.SandboxCreateV2Request(
        app_id=app_id, definition=api_pb2.Sandbox(**{"timeout_secs": 60, **definition}), tags=tags
    )


CONTROL, WORKER = "modal.client.ModalClient", "modal.task_command_router.TaskCommandRouter"


async def test_control_plane_refusals(modal: Modal) -> None:
    from modal_proto import api_pb2 as pb

    async with Raw(modal.server_url) as raw:

        async def ask(name: str, request: Any, reply: str, metadata: dict[str, str]) -> tuple[str, str]:
            return await raw.ask(CONTROL, name, request, getattr(pb, reply), metadata)

        app = pb.AppGetOrCreateRequest(app_name="a", object_creation_type=pb.OBJECT_CREATION_TYPE_CREATE_IF_MISSING)
        assert await ask("AppGetOrCreate", app, "AppGetOrCreateResponse", LOGIN) == ("OK", "")
        app_id = next(iter(modal.face.control.apps.values()))
        token = await modal.face.control.AuthTokenGet.__wrapped__(modal.face.control, None)
        v2 = {**LOGIN, "x-modal-auth-token": token.token}
        modal.face.control.auth["old"] = time.time() - 1
        gpu = pb.Resources(gpu_config=pb.GPUConfig(gpu_type="H100", count=1))
        wait = pb.SandboxWaitRequest(sandbox_id="sb-nobody")
        table: list[tuple[str, Any, str, dict[str, str], str, str]] = [
            ("AppGetOrCreate", app, "AppGetOrCreateResponse", {}, "UNAUTHENTICATED", "Token validation"),
            (
                "AppGetOrCreate",
                app,
                "AppGetOrCreateResponse",
                {**LOGIN, "x-modal-token-secret": "no"},
                "UNAUTHENTICATED",
                "",
            ),
            ("AppGetOrCreate", _unknown_field(), "AppGetOrCreateResponse", LOGIN, "INVALID_ARGUMENT", "unknown field"),
            (
                "AppGetOrCreate",
                pb.AppGetOrCreateRequest(app_name="b"),
                "AppGetOrCreateResponse",
                LOGIN,
                "NOT_FOUND",
                "App",
            ),
            (
                "AppGetOrCreate",
                pb.AppGetOrCreateRequest(app_name="a/b"),
                "AppGetOrCreateResponse",
                LOGIN,
                "INVALID_ARGUMENT",
                "name",
            ),
            ("SandboxWaitV2", wait, "SandboxWaitResponse", LOGIN, "UNAUTHENTICATED", "auth token"),
            (
                "SandboxWaitV2",
                wait,
                "SandboxWaitResponse",
                {**LOGIN, "x-modal-auth-token": "old"},
                "UNAUTHENTICATED",
                "expired",
            ),
            ("SandboxWaitV2", wait, "SandboxWaitResponse", v2, "NOT_FOUND", "sb-nobody"),
            ("SandboxCreateV2", _create(), "SandboxCreateV2Response", v2, "NOT_FOUND", "App"),
            (
                "SandboxCreateV2",
                _create(app_id=app_id, image_id="im-none"),
                "SandboxCreateV2Response",
                v2,
                "NOT_FOUND",
                "Image",
            ),
            (
                "SandboxCreateV2",
                _create(app_id=app_id, timeout_secs=0),
                "SandboxCreateV2Response",
                v2,
                "INVALID_ARGUMENT",
                "timeout",
            ),
            (
                "SandboxCreateV2",
                _create(app_id=app_id, timeout_secs=90_000),
                "SandboxCreateV2Response",
                v2,
                "INVALID_ARGUMENT",
                "timeout",
            ),
            (
                "SandboxCreateV2",
                _create(app_id=app_id, name="a b"),
                "SandboxCreateV2Response",
                v2,
                "INVALID_ARGUMENT",
                "name",
            ),
            (
                "SandboxCreateV2",
                _create(app_id=app_id, tags=["a b"]),
                "SandboxCreateV2Response",
                v2,
                "INVALID_ARGUMENT",
                "tags",
            ),
            (
                "SandboxCreateV2",
                _create(app_id=app_id, resources=gpu),
                "SandboxCreateV2Response",
                v2,
                "INVALID_ARGUMENT",
                "GPU",
            ),
            ("SandboxListV2", pb.SandboxListRequest(app_id="ap-x"), "SandboxListResponse", v2, "NOT_FOUND", "App"),
            ("ImageFromId", pb.ImageFromIdRequest(image_id="im-x"), "ImageFromIdResponse", LOGIN, "NOT_FOUND", "im-x"),
            (
                "ImageGetOrCreate",
                pb.ImageGetOrCreateRequest(app_id=app_id),
                "ImageGetOrCreateResponse",
                LOGIN,
                "INVALID_ARGUMENT",
                "commands",
            ),
            (
                "SandboxTerminateV2",
                pb.SandboxTerminateRequest(sandbox_id="sb-x"),
                "SandboxTerminateResponse",
                v2,
                "NOT_FOUND",
                "sb-x",
            ),
            ("VolumeList", pb.VolumeListRequest(), "VolumeListResponse", LOGIN, "UNIMPLEMENTED", "VolumeList"),
        ]
        for name, request, reply, metadata, status, text in table:
            got = await ask(name, request, reply, metadata)
            assert got[0] == status, f"{name}({request}): {got}"
            assert text in got[1], f"{name}({request}): {got}"


async def test_worker_and_gateway_refusals(modal: Modal) -> None:
    from modal_proto import task_command_router_pb2 as pb

    provider = await modal.provider()
    sandbox, other = await modal.create(provider), await modal.create(provider)
    record = modal.face.records[sandbox.ref.id]
    access = await modal.face.control._access(record)
    foreign = await modal.face.control._access(modal.face.records[other.ref.id])
    async with Raw(modal.face.router_url) as raw:
        start = pb.TaskExecStartRequest(task_id=record.task_id, exec_id="1", command_args=["true"])
        empty = pb.TaskExecStartRequest(task_id=record.task_id, exec_id="2")
        relative = pb.TaskExecStartRequest(task_id=record.task_id, exec_id="3", command_args=["true"], workdir="a")
        nobody = pb.TaskExecWaitRequest(task_id=record.task_id, exec_id="nobody")
        good = {"authorization": f"Bearer {access['jwt']}"}
        table: list[tuple[str, Any, str, dict[str, str], str]] = [
            ("TaskExecStart", start, "TaskExecStartResponse", {}, "UNAUTHENTICATED"),
            ("TaskExecStart", start, "TaskExecStartResponse", {"authorization": "Bearer a.b.c"}, "UNAUTHENTICATED"),
            (
                "TaskExecStart",
                start,
                "TaskExecStartResponse",
                {"authorization": f"Bearer {foreign['jwt']}"},
                "PERMISSION_DENIED",
            ),
            ("TaskExecStart", empty, "TaskExecStartResponse", good, "INVALID_ARGUMENT"),
            ("TaskExecStart", relative, "TaskExecStartResponse", good, "INVALID_ARGUMENT"),
            ("TaskExecWait", nobody, "TaskExecWaitResponse", good, "NOT_FOUND"),
        ]
        for name, request, reply, metadata, status in table:
            got = await raw.ask(WORKER, name, request, getattr(pb, reply), metadata)
            assert got[0] == status, f"{name}({request}): {got}"
    endpoint = await sandbox.endpoint(8000)
    async with httpx.AsyncClient(trust_env=False) as client:
        for headers in (
            {},
            {"Authorization": "Bearer nobody"},
            {"Authorization": endpoint.headers["Authorization"][7:]},
        ):
            answer = await client.get(f"{endpoint.url}/health", headers=headers)
            assert (answer.status_code, answer.text) == (401, "modal: invalid or missing connect token\n")
        await provider.delete(sandbox.ref)
        answer = await client.get(f"{endpoint.url}/health", headers=endpoint.headers)
        assert answer.status_code == 404
    await provider.delete(other.ref)
    await provider.aclose()


async def test_over_quota(modal: Modal) -> None:
    from openenv_sandbox.errors import RateLimited

    provider = await modal.provider()
    modal.engine.quota = 0
    with pytest.raises(RateLimited) as caught:
        await modal.create(provider)
    assert (caught.value.outcome, caught.value.retry_after) == ("failed", None)
    assert modal.names().count("SandboxCreateV2") == 1
    await provider.aclose()
