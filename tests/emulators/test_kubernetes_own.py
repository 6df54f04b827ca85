"""Kubernetes: what the contract suite cannot ask: objects beside the Pod, kill points, reasons, protocols."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("kubernetes.aio", reason="needs the kubernetes SDK: pip install 'openenv[kubernetes]'")
pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")

from openenv_providers import _kube_api
from openenv_providers.kubernetes import KubernetesProvider

from openenv_sandbox import launch, reaper, sandbox
from openenv_sandbox.errors import (
    AuthError,
    CapabilityError,
    ConfigError,
    CreateTimeout,
    ImageError,
    OpenEnvError,
    SandboxGone,
    ServerExited,
)
from openenv_sandbox.journal import Journal
from openenv_sandbox.provider import Image, ImageConfig, Prepared
from openenv_sandbox.spec import SandboxSpec
from tests.emulators.engine import LOGIN, Front
from tests.emulators.faces.kube_face import KubeFace, kubeconfig
from tests.emulators.faces.kube_streams import V4, V5
from tests.emulators.proof_stage import HANG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.emulators.engine import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.emulator]
SECRETS = {"OE_SECRET": "s3kret-canary"}
WORK = {"timeouts": {"create": 20.0}}


@pytest.fixture
def face(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeFace]:
    face = KubeFace(engine)
    with Front(engine, face) as front:
        monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, front.url))
        yield face
    assert face.warnings == []


def box(face: KubeFace, image: str = "light", options: dict[str, Any] | None = None, **fields: Any) -> Any:
    return sandbox(face.engine.image(image), provider=KubernetesProvider, options=options or {}, **{**WORK, **fields})


def objects(face: KubeFace) -> list[str]:
    """Kinds of everything that exists."""
    return sorted(kind for kind, items in face.store.objects.items() for _ in items)


async def until(what: str, probe: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + HANG_S
    while not probe():
        assert loop.time() < end, what
        await asyncio.sleep(0.02)


ENFORCED = {"network_policy": "enforced"}
ALL = ["networkpolicies", "pods", "secrets"]


async def test_three_objects_of_one_name(face: KubeFace) -> None:
    """Secret and NetworkPolicy belong to the Pod, carry our labels, and go with it; no secret is in the Pod."""
    async with box(face, options=ENFORCED, secrets=SECRETS, network="none") as made:
        assert objects(face) == ALL
        pod = face.store.objects["pods"][made.ref.id]
        for kind in ("secrets", "networkpolicies"):
            item = face.store.objects[kind][made.ref.id]
            assert item["metadata"]["labels"] == pod["metadata"]["labels"]
            (owner,) = item["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["uid"]) == ("Pod", pod["metadata"]["uid"])
        assert "s3kret-canary" not in json.dumps(pod)
        assert base64.b64encode(b"s3kret-canary").decode() not in json.dumps(pod)
        policy = face.store.objects["networkpolicies"][made.ref.id]["spec"]
        assert (policy["policyTypes"], policy["egress"]) == (["Egress"], [])
        assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert (await made.exec('printf %s "$OE_SECRET"', redact=False)).text() == "s3kret-canary"
    await until("nothing is left", lambda: objects(face) == [])


KILLED = ["POST secrets", "POST networkpolicies", "POST pods", "PATCH secrets", "PATCH networkpolicies"]


@pytest.mark.parametrize("last", KILLED)
async def test_killed_between_two_requests(
    face: KubeFace, last: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever was the last request of a creator that died: gc finds all of what it left, by label, and removes it."""

    class Killed(BaseException):
        pass

    send = _kube_api.Api.request
    method, kind = last.split()

    async def dying(self: Any, verb: str, path: str, **kw: Any) -> Any:
        answer = await send(self, verb, path, **kw)
        if verb == "DELETE":
            raise Killed
        if verb == method and f"/{kind}" in path:
            raise Killed
        return answer

    provider = await asyncio.to_thread(KubernetesProvider, ENFORCED)
    journal = await Journal.open()
    key = journal.new_key()
    labels = {"oe-key": key, "oe-install": journal.install_id, "oe-run": "gone0000", "oe-expires": "1"}
    spec = SandboxSpec(image="x", secrets=SECRETS, network="none", labels=labels)
    with monkeypatch.context() as patch:
        patch.setattr(_kube_api.Api, "request", dying)
        patch.setattr("openenv_providers._kube_provider.KubeProvider.delete", _nothing)
        with pytest.raises(Killed):
            await provider.create(Prepared(face.engine.image("light")), spec, key=key)
    assert objects(face) != []
    try:
        assert {ref.id for ref in await provider.find(key)} == {key}
        report = await reaper.gc(journal, providers=[provider])
        assert [item.id for item in report.removed] == [key]
        await until("gc leaves nothing", lambda: objects(face) == [] and face.engine.alive() == 0)
    finally:
        await provider.aclose()


async def test_a_pod_that_appears_after_gc(face: KubeFace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """gc removes the Secret of a creator that died in its last request: the Pod never starts, and the next gc has it.

    Mutation: gc looks for Pods of the journal's keys alone, or only for running ones
    """
    send = _kube_api.Api.request
    provider = await asyncio.to_thread(KubernetesProvider, ENFORCED)
    journal = await Journal.open()
    key = journal.new_key()
    labels = {"oe-key": key, "oe-install": journal.install_id, "oe-run": "gone0000", "oe-expires": "1"}
    spec = SandboxSpec(image="x", secrets=SECRETS, labels=labels)
    earlier: list[str] = []

    class Killed(BaseException):
        pass

    with monkeypatch.context() as patch:

        async def late(self: Any, verb: str, path: str, **kw: Any) -> Any:
            if verb != "POST" or not path.endswith("/pods"):
                return await send(self, verb, path, **kw)
            patch.setattr(_kube_api.Api, "request", send)
            earlier.extend(str(item.id) for item in (await reaper.gc(journal, providers=[provider])).removed)
            await until("gc removes the Secret", lambda: objects(face) == [])
            await send(self, verb, path, **kw)
            patch.setattr("openenv_providers._kube_provider.KubeProvider.delete", _nothing)
            raise Killed

        patch.setattr(_kube_api.Api, "request", late)
        with pytest.raises(Killed):
            await provider.create(Prepared(face.engine.image("light")), spec, key=key)
    try:
        assert (earlier, objects(face), face.engine.alive()) == ([key], ["pods"], 0)
        report = await reaper.gc(journal, providers=[provider])
        assert [item.id for item in report.removed] == [key]
        await until("gc leaves nothing", lambda: objects(face) == [])
    finally:
        await provider.aclose()


async def _nothing(self: Any, ref: Any) -> None:
    return


async def test_the_end_of_a_lifetime_leaves_an_object_that_gc_removes(face: KubeFace) -> None:
    """The dead-man's switch ends the processes; the Pod's object stays, and is found."""
    made = await box(face, timeouts={"create": 20.0, "ready": 10.0, "episode": 30.0, "margin": 0.0})
    pod = face.store.objects["pods"][made.ref.id]
    assert pod["spec"]["activeDeadlineSeconds"] == 40
    face.engine.clock.advance(45.0)
    await until("the node ends it", lambda: face.engine.alive() == 0 and pod["status"]["phase"] == "Failed")
    with pytest.raises(SandboxGone, match="DeadlineExceeded: Pod was active"):
        await asyncio.wait_for(made.wait_exit(), HANG_S)
    await made.stop(confirm=True)
    await until("nothing is left", lambda: objects(face) == [])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"resources": {"cpus": 4000}}, "Insufficient cpu"),
        ({"resources": {"gpus": "*:1"}}, "Insufficient nvidia.com/gpu"),
        ({"provider_options": {"node_selector": {"disk": "ssd"}}}, "didn't match"),
    ],
)
async def test_why_it_is_not_scheduled(face: KubeFace, fields: dict[str, Any], reason: str) -> None:
    """The scheduler's own words are in the error, and nothing is left."""
    options = fields.pop("provider_options", {})
    with pytest.raises(CreateTimeout, match=reason) as caught:
        await box(face, options=options, timeouts={"create": 4.0}, **fields)
    assert caught.value.outcome == "failed"
    await until("nothing is left", lambda: objects(face) == [])


async def test_a_private_image(face: KubeFace) -> None:
    """With the registry's login it is pulled; without, the node's words are in the error. The login is in no error."""
    auth = {"username": LOGIN[0], "password": LOGIN[1]}
    async with box(face, "private/light", registry_auth=auth) as made:
        assert (await made.exec("echo here")).text() == "here\n"
    with pytest.raises(ImageError, match="401") as caught:
        await box(face, "private/light", registry_auth={**auth, "password": "wrong-pass"})
    assert "wrong-pass" not in f"{caught.value}{vars(caught.value)}"
    await until("nothing is left", lambda: objects(face) == [])


async def test_a_command_that_does_not_exist(face: KubeFace) -> None:
    """The container runtime's words are in the error."""
    with pytest.raises((ServerExited, OpenEnvError), match="executable file not found"):
        await launch(
            face.engine.image("light"),
            provider=KubernetesProvider,
            command=("/no/such/program",),
            timeouts=WORK["timeouts"],
        )
    await until("nothing is left", lambda: objects(face) == [])


async def test_dollars_arrive(face: KubeFace) -> None:
    """What the kubelet would expand in commands and variables is kept from it."""
    script = 'echo "$$ $(echo sub) $(HOME) $A" >/tmp/said 2>/dev/null; exec sleep 1000'
    async with box(face, command=("/bin/sh", "-c", script), env={"A": "$(PATH) $$ $B"}) as made:
        said = (await made.exec("until [ -s /tmp/said ]; do sleep 0.05; done; cat /tmp/said")).text()
        pid, *words = said.split()
        assert pid.isdigit()
        assert words == ["sub", "$(PATH)", "$$", "$B"]


def test_strict_is_refused_before_anything_is_created() -> None:
    """The restricted profile needs a numeric user that is not root, and says whose it is."""
    provider = KubernetesProvider()
    strict = SandboxSpec(image="x", hardening="strict")
    for user in (None, "0", "root", "app", "0:1000"):
        image = Image("ref", "x", config=ImageConfig(user=user))
        with pytest.raises(CapabilityError, match="not root") as caught:
            provider.fit(strict, image)
        assert caught.value.field == "hardening"
        assert (user or "root") in str(caught.value)
    for spec, user in ((strict, "1000:1000"), (strict.model_copy(update={"user": "1000"}), "app")):
        provider.fit(spec, Image("ref", "x", config=ImageConfig(user=user)))


async def test_hardening(face: KubeFace) -> None:
    """A namespace that enforces the restricted standard: the default is refused with the words to say, strict runs."""
    face.enforce = "restricted"
    with pytest.raises(CapabilityError, match="PodSecurity") as caught:
        await box(face)
    assert 'hardening="strict"' in (caught.value.hint or "")
    with pytest.raises(CapabilityError, match="run as root"):
        await box(face, hardening="strict")
    async with box(face, "user-env", hardening="strict") as made:
        assert (await made.exec("id -u")).text() == "1000\n"


async def test_network_only_where_the_option_says_that_it_is_enforced(face: KubeFace) -> None:
    """Without the option every policy is refused; with it host names still are."""
    with pytest.raises(CapabilityError):
        await box(face, network="none")
    with pytest.raises(CapabilityError):
        await box(face, options=ENFORCED, network={"mode": "allowlist", "hosts": ["example.org"]})
    cidrs = ["10.0.0.0/8", "fd00::/8"]
    async with box(face, options=ENFORCED, network={"mode": "allowlist", "cidrs": cidrs}) as made:
        policy = face.store.objects["networkpolicies"][made.ref.id]["spec"]
        assert [rule["to"][0]["ipBlock"]["cidr"] for rule in policy["egress"]] == cidrs


@pytest.mark.parametrize("protocol", [V5, V4])
async def test_stdin_of_64_mib(face: KubeFace, protocol: str) -> None:
    """Both protocols carry a large input to its end: v5 closes stdin, v4 is told how long it is."""
    face.streams.protocols = (V5, V4) if protocol == V5 else (V4,)
    size = 64 << 20
    async with box(face) as made:
        for _ in range(2):  # the first finds out what the server speaks
            result = await made.exec("wc -c", stdin=b"x" * size, timeout=HANG_S * 4)
            assert int(result.text()) == size
    assert set(face.streams.spoken) == {protocol}


async def test_another_server_that_is_older(face: KubeFace) -> None:
    """A load balancer with an older server behind it: the command is sent once more, and runs once."""
    async with box(face) as made:
        assert (await made.exec("cat", stdin=b"one")).stdout == b"one"
        face.streams.protocols = (V4,)
        ran = len(face.streams.commands)
        assert (await made.exec("cat", stdin=b"two")).stdout == b"two"
        assert len(face.streams.commands) == ran + 1


async def test_one_watch(face: KubeFace) -> None:
    """Ten sandboxes at once are followed by one watch, and a version that has expired is no end of it."""
    async with contextful(face, 10) as boxes:
        assert (face.store.watches, face.store.opened) == (1, 1)
        waiting = [asyncio.ensure_future(one.wait_exit()) for one in boxes]
        await asyncio.sleep(0)
        face.engine.call(forget(face))
        await until("the watch is opened again", lambda: face.store.opened > 1 and face.store.watches == 1)
        name = boxes[3].ref.id
        face.engine.call(face.engine.delete(name))
        done, _ = await asyncio.wait(waiting, timeout=HANG_S, return_when=asyncio.FIRST_COMPLETED)
        assert done == {waiting[3]}
        for each in waiting:
            each.cancel()


async def forget(face: KubeFace) -> None:
    face.store.forget()


class contextful:
    """So many sandboxes."""

    def __init__(self, face: KubeFace, count: int) -> None:
        self._face, self._count = face, count

    async def __aenter__(self) -> list[Any]:
        self.made = await asyncio.gather(*(_made(self._face) for _ in range(self._count)))
        return list(self.made)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(one.stop() for one in self.made))


async def _made(face: KubeFace) -> Any:
    return await box(face)


async def test_a_namespace_that_does_not_exist(face: KubeFace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names it and says what to do."""
    with pytest.raises(OpenEnvError, match="nowhere") as caught:
        await box(face, options={"namespace": "nowhere"})
    assert "namespace" in (caught.value.hint or "")


def test_without_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be made and listed; using it says what is missing, as does the check."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    provider = KubernetesProvider()
    with pytest.raises(ConfigError, match="no kubeconfig"):
        provider.scope()
    check = KubernetesProvider.check()
    assert not check.ready
    assert "KUBECONFIG" in check.hint


def test_the_context_says_which_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scope is server and namespace; a context that does not exist is named with those that do."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, "https://cluster.example:6443", namespace="rl"))
    assert KubernetesProvider().scope() == "https://cluster.example:6443 rl"
    assert KubernetesProvider({"namespace": "other"}).scope() == "https://cluster.example:6443 other"
    with pytest.raises(ConfigError, match=r"'nope'; known: emulated"):
        KubernetesProvider({"context": "nope"}).scope()


async def test_a_token_that_has_run_out_is_asked_for_again(
    face: KubeFace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """401 reads the kubeconfig again, once; a token that stays refused is an AuthError."""
    monkeypatch.setattr(_kube_api, "_RELOAD_S", 0.0)
    config = tmp_path / "config"
    good = config.read_text()
    provider = await asyncio.to_thread(KubernetesProvider)
    try:
        config.write_text(good.replace("kube-token", "stale-token"))
        with pytest.raises(AuthError):
            await provider.find("oe-0-0")
        assert len(face.seen) == 2
        config.write_text(good)
        assert list(await provider.find("oe-0-0")) == []
    finally:
        await provider.aclose()
