"""What the emulated Runloop refuses, asked without its SDK and without the provider."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

pytest.importorskip("runloop_api_client", reason="needs the Runloop SDK: pip install 'openenv[runloop]'")

from tests.emulators.faces import runloop_shapes as shapes
from tests.emulators.faces.runloop_api import KEY, RunloopFace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine

pytestmark = pytest.mark.emulator
AUTH = {"Authorization": f"Bearer {KEY}"}
TUNNEL = {"auth_mode": "authenticated"}


class Bench:
    """One running devbox, and a way to ask for anything."""

    def __init__(self, engine: Engine, face: RunloopFace, url: str) -> None:
        self.engine, self.face, self.url = engine, face, url
        made = self.ask("POST", "/v1/blueprints", {"name": "b", "dockerfile": f"FROM {engine.image('light')}"})
        self.blueprint = made.json()["id"]
        while self.ask("GET", f"/v1/blueprints/{self.blueprint}").json()["status"] != "build_complete":
            time.sleep(0.02)
        self.id = self.create(tunnel=TUNNEL).json()["id"]
        self.wait("running")

    def create(self, **fields: Any) -> httpx.Response:
        return self.ask("POST", "/v1/devboxes", {"blueprint_id": self.blueprint, **fields})

    def wait(self, status: str, seconds: float = 5) -> httpx.Response:
        asked = {"statuses": [status], "timeout_seconds": seconds}
        return self.ask("POST", f"/v1/devboxes/{self.id}/wait_for_status", asked)

    def ask(self, method: str, path: str, json: Any = None, headers: dict[str, str] | None = None) -> httpx.Response:
        path = path.replace("{id}", getattr(self, "id", ""))
        return httpx.request(
            method, self.url + path, json=json, headers=AUTH if headers is None else headers, trust_env=False
        )


@pytest.fixture
def bench(engine: Engine) -> Iterator[Bench]:
    from tests.emulators.engine import Front

    face = RunloopFace(engine)
    with Front(engine, face) as front:
        yield Bench(engine, face, front.url)


def launch(**fields: Any) -> dict[str, Any]:
    return {"launch_parameters": fields}


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"nonsense": 1}, 400, "nonsense"),
        ({"name": 7}, 400, "valid string"),
        ({"metadata": {"a": 1}}, 400, "valid string"),
        ({"snapshot_id": "snp_x"}, 400, "only one of"),
        ({"blueprint_id": "bpt_none"}, 404, "bpt_none not found"),
        ({"blueprint_id": None, "snapshot_id": "snp_none"}, 404, "snp_none not found"),
        ({"tunnel": {"auth_mode": "public"}}, 400, "authenticated"),
        (launch(keep_alive_time_seconds=172_801), 400, "172800"),
        (launch(keep_alive_time_seconds="60"), 400, "valid integer"),
        (launch(custom_cpu_cores=2), 400, "CUSTOM_SIZE"),
        (launch(resource_size_request="CUSTOM_SIZE", custom_cpu_cores=2), 400, "custom_gb_memory"),
        (launch(resource_size_request="CUSTOM_SIZE", custom_cpu_cores=3, custom_gb_memory=6), 400, "multiple of 2"),
        (launch(resource_size_request="CUSTOM_SIZE", custom_cpu_cores=1, custom_gb_memory=3), 400, "multiple of 2"),
        (launch(resource_size_request="CUSTOM_SIZE", custom_cpu_cores=2, custom_gb_memory=2), 400, "ratio"),
        (launch(resource_size_request="HUGE"), 400, "X_SMALL"),
        (launch(network_policy_id="npol_none"), 400, "npol_none not found"),
        (launch(user_parameters={"username": "root"}), 400, "uid"),
    ],
)
def test_a_create_that_is_refused(bench: Bench, fields: dict[str, Any], status: int, says: str) -> None:
    answer = bench.create(**fields)
    assert (answer.status_code, says in answer.json()["message"]) == (status, True), answer.text
    assert bench.engine.alive() == 1


@pytest.mark.parametrize(
    ("method", "path", "json", "status", "says"),
    [
        ("GET", "/v1/devboxes/dbx_none", None, 404, "dbx_none not found"),
        ("GET", "/v1/devboxes?limit=5001", None, 400, "limit"),
        ("GET", "/v1/devboxes?limit=0", None, 400, "limit"),
        ("GET", "/v1/devboxes?metadata[a]=b", None, 400, "unknown parameter"),
        ("GET", "/v1/devboxes?starting_after=dbx_none", None, 400, "dbx_none"),
        ("POST", "/v1/devboxes/dbx_none/shutdown", None, 404, "not found"),
        ("POST", "/v1/devboxes/{id}/shutdown?now=1", None, 400, "unknown parameter"),
        ("POST", "/v1/devboxes/{id}/wait_for_status", {"statuses": []}, 400, "at least 1"),
        ("POST", "/v1/devboxes/{id}/wait_for_status", {"statuses": ["x"], "timeout_seconds": 31}, 400, "30"),
        ("POST", "/v1/devboxes/{id}/execute_async", {"command": ""}, 400, "at least 1"),
        ("POST", "/v1/devboxes/{id}/execute_async", {"command": ["true"]}, 400, "valid string"),
        ("POST", "/v1/devboxes/{id}/execute_async", {"command": "true", "cwd": "/"}, 400, "cwd"),
        ("POST", "/v1/devboxes/{id}/executions/exec_none/wait_for_status", {"statuses": ["completed"]}, 404, "Exec"),
        ("POST", "/v1/devboxes/{id}/upload_file", None, 400, "path and file"),
        ("POST", "/v1/devboxes/{id}/snapshot_disk_async", {"commit_message": "x" * 1001}, 400, "1000"),
        ("POST", "/v1/devboxes/disk_snapshots/snp_none/delete", None, 404, "not found"),
        ("POST", "/v1/blueprints", {"name": ""}, 400, "at least 1"),
        ("POST", "/v1/blueprints", {"name": "x", "image": "debian"}, 400, "image"),
        (
            "POST",
            "/v1/blueprints",
            {"name": "x", "build_context": {"type": "object", "object_id": "obj_none"}},
            400,
            "obj_none",
        ),
        ("GET", "/v1/blueprints/bpt_none/logs", None, 404, "not found"),
        ("POST", "/v1/objects", {"name": "x", "content_type": "zip"}, 400, "tgz"),
        ("POST", "/v1/objects/obj_none/complete", None, 404, "not found"),
        (
            "POST",
            "/v1/network-policies",
            {"name": "x", "allow_all": True, "allowed_hostnames": ["a"]},
            400,
            "allow_all",
        ),
        ("POST", "/v1/network-policies/npol_none/delete", None, 404, "not found"),
    ],
)
def test_refused(bench: Bench, method: str, path: str, json: Any, status: int, says: str) -> None:
    answer = bench.ask(method, path, json)
    assert (answer.status_code, says in answer.json()["message"]) == (status, True), answer.text


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer ak_wrong"}, {"Authorization": f"Basic {KEY}"}])
@pytest.mark.parametrize("path", ["/v1/devboxes", "/v1/devboxes/{id}", "/v1/blueprints", "/v1/network-policies"])
def test_credentials(bench: Bench, path: str, headers: dict[str, str]) -> None:
    answer = bench.ask("GET", path, headers=headers)
    assert (answer.status_code, answer.json()["message"]) == (401, "Invalid API key")


def test_over_quota(bench: Bench) -> None:
    bench.engine.quota = 1
    assert bench.create().status_code == 429


def test_a_question_that_is_held_too_long(bench: Bench) -> None:
    assert bench.wait("shutdown", 0.05).status_code == 408


def test_a_devbox_after_its_end(bench: Bench) -> None:
    """Its record stays, and takes nothing any more."""
    assert bench.ask("POST", "/v1/devboxes/{id}/shutdown").json()["status"] == "shutdown"
    assert bench.ask("GET", "/v1/devboxes/{id}").json()["shutdown_reason"] == "api_shutdown"
    assert bench.ask("POST", "/v1/devboxes/{id}/execute_async", {"command": "true"}).status_code == 400
    listed = bench.ask("GET", "/v1/devboxes").json()["devboxes"]
    assert [row["status"] for row in listed] == ["shutdown"]


def test_a_policy_in_use(bench: Bench) -> None:
    policy = bench.ask("POST", "/v1/network-policies", {"name": "x"}).json()["id"]
    made = bench.create(**launch(network_policy_id=policy)).json()["id"]
    remove = f"/v1/network-policies/{policy}/delete"
    assert bench.ask("POST", remove).status_code == 409
    bench.ask("POST", f"/v1/devboxes/{made}/shutdown")
    assert bench.ask("POST", remove).status_code == 200


def test_tunnels(bench: Bench) -> None:
    """By host name; an authenticated one wants its own token, one that was never asked for does not exist."""
    tunnel = bench.ask("GET", "/v1/devboxes/{id}").json()["tunnel"]
    host = {"Host": f"8000-{tunnel['tunnel_key']}.tunnel.127.0.0.1"}
    name = "X-Runloop-Tunnel-Authorization"
    assert bench.ask("GET", "/health", headers=host).status_code == 401
    assert bench.ask("GET", "/health", headers={**host, name: f"Bearer {KEY}"}).status_code == 401
    # Nobody listens there: the request has passed the check.
    assert bench.ask("GET", "/health", headers={**host, name: f"Bearer {tunnel['auth_token']}"}).status_code == 502
    assert bench.ask("GET", "/health", headers={"Host": "8000-nokey.tunnel.127.0.0.1"}).status_code == 404
    other = bench.create().json()
    assert other["tunnel"] is None
    key = bench.face.devboxes[other["id"]].key
    assert bench.ask("GET", "/health", headers={"Host": f"8000-{key}.tunnel.127.0.0.1"}).status_code == 404


def test_uploads_to_the_store(bench: Bench) -> None:
    """The address and its header are the credential; the API's key must not go there."""
    made = bench.ask("POST", "/v1/objects", {"name": "x", "content_type": "tgz"}).json()
    path, right = made["upload_url"].removeprefix(bench.url), made["upload_headers"]
    assert bench.ask("PUT", path, headers={}).status_code == 403
    assert bench.ask("PUT", path, headers={**right, **AUTH}).status_code == 403
    assert bench.ask("PUT", path.replace("signature=", "signature=x"), headers=right).status_code == 403
    assert bench.ask("PUT", path, headers=right).status_code == 200


def test_the_shapes_are_the_sdks() -> None:
    """No name is taken that the SDK's parameter types do not have.

    Mutation: the emulator takes a parameter that the vendor does not know
    """
    from runloop_api_client import types as sdk
    from runloop_api_client.types import devbox_create_params as devbox
    from runloop_api_client.types import shared_params

    for ours, theirs in (
        (shapes.CreateDevbox, sdk.DevboxCreateParams),
        (shapes.Tunnel, devbox.Tunnel),
        (shapes.Launch, shared_params.LaunchParameters),
        (shapes.Execute, sdk.DevboxExecuteAsyncParams),
        (shapes.SnapshotDisk, sdk.DevboxSnapshotDiskAsyncParams),
        (shapes.CreateBlueprint, sdk.BlueprintCreateParams),
        (shapes.CreateObject, sdk.ObjectCreateParams),
        (shapes.CreatePolicy, sdk.NetworkPolicyCreateParams),
        (shapes.Cidr, sdk.AllowedCidrParam),
    ):
        known: set[str] = set(theirs.__required_keys__ | theirs.__optional_keys__)
        assert set(ours.model_fields) <= known, ours
