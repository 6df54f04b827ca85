"""Scheduler and kubelet of one node: Pods really run, each in a box of the engine."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from typing import TYPE_CHECKING, Any

from tests.emulators.engine import LOGIN, Box, QuotaReached
from tests.emulators.faces.kube_store import Object, Problem, Store, stamp

if TYPE_CHECKING:
    from tests.emulators.engine import Engine

CPUS, MEMORY_MI = 64.0, 512 * 1024
BACK_OFF_S = 0.05


class Kubelet:
    """Attributes:
    node: Labels of the node.
    order: Events of `PATCH` and creation that tests look at.
    """

    def __init__(self, engine: Engine, store: Store) -> None:
        self.engine, self.store = engine, store
        self.node = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        self.gpus = 0
        self.starts: dict[str, float] = {}
        self.starting: dict[str, asyncio.Task[Box]] = {}

    def box(self, name: str) -> Box | None:
        """The box of a Pod that runs."""
        return self.engine.boxes.get(name)

    async def admit(self, pod: Object) -> None:
        """Run the Pod, or say in its status why not; the store has it already.

        Raises:
            Problem: 403, a quota is reached.
        """
        name = pod["metadata"]["name"]
        pod["status"] = {"phase": "Pending", "conditions": []}
        starting = None
        if why := self._unschedulable(pod["spec"]):
            said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
            pod["status"]["conditions"] = [said]
            self.store.changed("pods", pod)
            return
        container = pod["spec"]["containers"][0]
        image = self.engine.find_image(container["image"])
        if image is not None and self._may_pull(pod, container["image"]) and not self._config_error(pod, image.user):
            starting = self.engine.keep(self._create(pod, container, image))
            await asyncio.sleep(0)  # the engine admits or refuses in its first step
            if starting.done() and isinstance(starting.exception(), QuotaReached):
                raise Problem(403, "Forbidden", quota(name, self.engine.quota or 1))
            self.starting[name] = starting
        self.engine.keep(self._run(pod, starting))

    def _unschedulable(self, spec: Object) -> str:
        requests = (spec["containers"][0].get("resources") or {}).get("requests") or {}
        wrong = []
        if not (spec.get("nodeSelector") or {}).items() <= self.node.items():
            wrong.append("1 node(s) didn't match Pod's node affinity/selector")
        if number(requests.get("cpu", "0")) > CPUS:
            wrong.append("1 Insufficient cpu")
        if number(requests.get("memory", "0")) > MEMORY_MI * 2**20:
            wrong.append("1 Insufficient memory")
        if int(requests.get("nvidia.com/gpu", 0)) > self.gpus:
            wrong.append("1 Insufficient nvidia.com/gpu")
        return f"0/1 nodes are available: {', '.join(wrong)}." if wrong else ""

    def _may_pull(self, pod: Object, ref: str) -> bool:
        if "/private/" not in ref:
            return True
        for item in pod["spec"].get("imagePullSecrets") or []:
            secret = self.store.objects["secrets"].get(item["name"])
            if secret is None or secret.get("type") != "kubernetes.io/dockerconfigjson":
                continue
            auths = json.loads(base64.b64decode(secret["data"][".dockerconfigjson"]))["auths"]
            auth = auths.get(ref.partition("/")[0], {}).get("auth", "")
            if base64.b64decode(auth).decode() == ":".join(LOGIN):
                return True
        return False

    def _config_error(self, pod: Object, image_user: str | None) -> str:
        container = pod["spec"]["containers"][0]
        security = container.get("securityContext") or {}
        user = security.get("runAsUser", image_user or "0")
        if security.get("runAsNonRoot"):
            first = str(user).partition(":")[0]
            if not first.isdigit():
                return f"container has runAsNonRoot and image has non-numeric user ({first}), cannot verify user"
            if int(first) == 0:
                return "container has runAsNonRoot and image will run as root"
        for item in container.get("env") or []:
            ref = (item.get("valueFrom") or {}).get("secretKeyRef")
            if ref and ref["key"] not in (self.store.objects["secrets"].get(ref["name"]) or {}).get("data", {}):
                return f"secret {ref['name']!r} not found"
        return ""

    async def _create(self, pod: Object, container: Object, image: Any) -> Box:
        security = container.get("securityContext") or {}
        env = dict(image.env)
        for item in container.get("env") or []:
            if ref := (item.get("valueFrom") or {}).get("secretKeyRef"):
                data = self.store.objects["secrets"][ref["name"]]["data"]
                env[item["name"]] = base64.b64decode(data[ref["key"]]).decode()
            else:
                env[item["name"]] = expand(item.get("value", ""), env)
        user = image.user
        if "runAsUser" in security:
            user = ":".join(str(security[n]) for n in ("runAsUser", "runAsGroup") if n in security)
        argv = None
        if "command" in container or "args" in container:
            first = container.get("command") or image.entrypoint
            argv = [expand(word, env) for word in (*first, *(container.get("args") or ()))]
        seconds = pod["spec"].get("activeDeadlineSeconds")
        return await self.engine.create(
            image, id=pod["metadata"]["name"], argv=argv, env=env, user=user, workdir=container.get("workingDir"),
            labels=pod["metadata"].get("labels"), ttl_s=seconds, on_ttl="delete", exits=True,
        )  # fmt: skip

    async def _run(self, pod: Object, starting: asyncio.Task[Box] | None) -> None:
        container = pod["spec"]["containers"][0]
        started = self.engine.clock.now()
        self.starts[pod["metadata"]["name"]] = started
        pod["status"]["startTime"] = stamp(started)
        if starting is None:
            await self._never(pod, container)
            return
        try:
            box = await starting
        except OSError as error:
            why = f"failed to create containerd task: exec: {str(error.filename)!r}: executable file not found in $PATH"
            self._ended(pod, {"exitCode": 128, "reason": "StartError", "message": why}, "Failed")
            return
        pod["status"]["phase"] = "Running"
        running = {"running": {"startedAt": stamp(self.engine.clock.now())}}
        self._say(pod, running, ready=True)
        await self._follow(pod, box)

    async def _never(self, pod: Object, container: Object) -> None:
        image = self.engine.find_image(container["image"])
        if image is not None and (why := self._config_error(pod, image.user)) and self._may_pull(pod, image.ref):
            self._say(pod, {"waiting": {"reason": "CreateContainerConfigError", "message": why}})
            return
        why = f'failed to pull and unpack image "{container["image"]}": not found'
        if image is not None:
            why = f'failed to pull and unpack image "{container["image"]}": 401 Unauthorized'
        self._say(pod, {"waiting": {"reason": "ErrImagePull", "message": why}})
        await asyncio.sleep(BACK_OFF_S)
        back = f'Back-off pulling image "{container["image"]}": ErrImagePull: {why}'
        self._say(pod, {"waiting": {"reason": "ImagePullBackOff", "message": back}})

    async def _follow(self, pod: Object, box: Box) -> None:
        name = pod["metadata"]["name"]
        assert box.main is not None
        ends = [asyncio.ensure_future(box.main.wait()), asyncio.ensure_future(box.gone.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()
        await box.gone.wait()
        if self.store.objects["pods"].get(name) is not pod or "deletionTimestamp" in pod["metadata"]:
            return
        seconds = pod["spec"].get("activeDeadlineSeconds")
        if seconds is not None and self.engine.clock.now() >= self.starts[name] + seconds:
            why = "Pod was active on the node longer than the specified deadline"
            pod["status"] |= {"reason": "DeadlineExceeded", "message": why}
            self._ended(pod, {"exitCode": 137, "reason": "Error"}, "Failed")
        elif name not in self.engine.boxes:
            self.store.remove("pods", name)  # its node is gone, and what looks after nodes has removed it
        else:
            code = box.main.code or 0
            reason = "Completed" if code == 0 else pod.pop("_reason", "Error")
            self._ended(pod, {"exitCode": code, "reason": reason}, "Succeeded" if code == 0 else "Failed")

    def _ended(self, pod: Object, how: Object, phase: str) -> None:
        pod["status"]["phase"] = phase
        self._say(pod, {"terminated": how})

    def _say(self, pod: Object, state: Object, *, ready: bool = False) -> None:
        if self.store.objects["pods"].get(pod["metadata"]["name"]) is not pod:
            return
        container = pod["spec"]["containers"][0]
        said = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        pod["status"]["containerStatuses"] = [{**said, "ready": ready, "state": state}]
        self.store.changed("pods", pod)

    def shorten(self, pod: Object) -> None:
        """The deadline of a Pod that runs was set."""
        name, seconds = pod["metadata"]["name"], pod["spec"].get("activeDeadlineSeconds")
        box = self.box(name)
        if box is not None and seconds is not None:
            box.ends_at = self.starts[name] + seconds

    async def delete(self, pod: Object) -> None:
        """Accept a deletion; the object goes when its processes have ended."""
        name = pod["metadata"]["name"]
        pod["metadata"]["deletionTimestamp"] = stamp(self.engine.clock.now())
        self.store.changed("pods", pod)

        async def end() -> None:
            if (starting := self.starting.pop(name, None)) is not None:
                await asyncio.wait({starting})
            await self.engine.delete(name)
            if self.store.objects["pods"].get(name) is pod:
                self.store.remove("pods", name)

        self.engine.keep(end())
        await asyncio.sleep(0)

    async def log(self, name: str, tail: int | None) -> bytes:
        """What the container wrote."""
        box = self.box(name)
        if box is None:
            raise Problem(400, "BadRequest", f'container "env" in pod "{name}" is waiting to start')
        lines = bytes(box.log.data).splitlines(keepends=True)
        return b"".join(lines if tail is None else lines[max(0, len(lines) - tail) :])


def quota(name: str, most: int) -> str:
    """What admission says when a quota is reached."""
    counted = f"requested: pods=1, used: pods={most}, limited: pods={most}"
    return f'pods "{name}" is forbidden: exceeded quota: sandboxes, {counted}'


def expand(text: str, env: dict[str, str]) -> str:
    """``$(NAME)`` of what is known, and ``$$`` for one dollar, as the kubelet reads commands and values."""

    def one(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)


def number(quantity: str) -> float:
    """A quantity as a number."""
    units = {"m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 1e3, "M": 1e6, "G": 1e9}
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", quantity)
    assert found is not None
    return float(found[1]) * units.get(found[2], 1.0)
