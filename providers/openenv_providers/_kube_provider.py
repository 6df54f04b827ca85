"""Sandboxes as Pods: what kubernetes, gke, ack and openshift have in common."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_providers import _kube_objects as objects
from openenv_providers import _kube_streams as streams
from openenv_providers._kube_api import Api, Gone, Taken
from openenv_providers._kube_config import Where
from openenv_providers._kube_watch import DELETED, Follower, PodWatch
from openenv_sandbox.backend_kit import undo
from openenv_sandbox.errors import (
    CapabilityError,
    ConfigError,
    CreateTimeout,
    EndpointError,
    ImageError,
    OpenEnvError,
    ProviderError,
    SandboxGone,
    ServerExited,
)
from openenv_sandbox.provider import Exit, Sandbox, SandboxInfo, SandboxProvider, SandboxRef
from openenv_sandbox.values import KEY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_sandbox.provider import Endpoint, Image, OutputSink, Prepared, RawResult
    from openenv_sandbox.spec import SandboxSpec

_IMAGE = {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_START = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"}
_TAIL, _ATTACH_S = 100, 60.0
_PATIENCE = 0.9
"""Of the create timer: core gives up at its end, without knowing why the Pod does not start."""


class KubeSandbox(Sandbox):
    """One Pod."""

    def __init__(self, provider: KubeProvider, info: SandboxInfo) -> None:
        self._provider, self.info = provider, info

    async def exec_raw(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, user: str | None, stdin: Any,
        on_output: OutputSink,
    ) -> RawResult:  # fmt: skip
        try:
            return await streams.run(self._provider.api, self._path, self.ref, argv, stdin, on_output)
        except (ProviderError, streams.ConnectionCut) as error:
            if isinstance(error, Gone) or await self._ended():
                raise self._gone() from error
            raise

    async def endpoint(self, port: int) -> Endpoint:
        from openenv_sandbox.tunnel import forward

        if await self._ended():
            raise self._gone()
        return await forward(partial(self._connect, port), ref=self.ref, port=port)

    async def wait_exit(self) -> Exit:
        with self._provider.follow(self.ref.id) as follower:
            follower.offer(await self._read())
            while True:
                if follower.pod is DELETED:
                    return Exit(None)
                if follower.pod and (status := follower.pod.get("status") or {}).get("reason"):
                    # A deadline, an eviction: how that ended the container is no word of the server's.
                    raise SandboxGone(f"the cluster ended the Pod: {objects.why(status)}", ref=self.ref)
                if follower.pod and (ended := objects.terminated(follower.pod)) is not None:
                    return Exit(ended.get("exitCode"), await self._tail(), objects.why(ended))
                await follower.change()

    async def delete(self) -> None:
        await self._provider.delete(self.ref)

    async def logs(self, *, tail: int | None = None) -> bytes:
        query = {"container": objects.CONTAINER, **({"tailLines": str(tail)} if tail is not None else {})}
        try:
            return await self._provider.api.raw(f"{self._path}/log", query=query)
        except Gone as error:
            raise self._gone() from error

    @property
    def _path(self) -> str:
        return self._provider.path("pods", self.ref.id)

    async def _connect(self, port: int) -> streams.PortStream:
        try:
            return await streams.connect(self._provider.api, self._path, self.ref, port)
        except Gone as error:
            raise self._gone() from error
        except ProviderError as error:
            raise EndpointError(f"port {port} cannot be reached: {error.message}", ref=self.ref) from error

    async def _read(self) -> Mapping[str, Any]:
        try:
            return await self._provider.api.request("GET", self._path)
        except Gone:
            return DELETED

    async def _ended(self) -> bool:
        pod = await self._read()
        return pod is DELETED or "deletionTimestamp" in pod["metadata"] or objects.terminated(pod) is not None

    async def _tail(self) -> bytes:
        try:
            return await self.logs(tail=_TAIL)
        except OpenEnvError:
            return b""

    def _gone(self) -> SandboxGone:
        return SandboxGone(f"the Pod {self.ref.id} has ended or does not exist", ref=self.ref)


class KubeProvider(SandboxProvider):
    """Subclasses say which cluster, and what it wants of every Pod."""

    sdk: ClassVar[tuple[str, ...]] = ("kubernetes.aio.client", "kubernetes.aio.config")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        # Here, where files may be read; without a usable one the first use says so.
        self._where: Where | ConfigError
        try:
            self._where = Where(self.options.kubeconfig, self.options.context, self.options.namespace)
        except ConfigError as error:
            self._where = error
        self._api: Api | None = None
        self._watch: PodWatch | None = None

    @property
    def profile(self) -> objects.Profile:
        """What every Pod gets."""
        return objects.Profile()

    @property
    def where(self) -> Where:
        """The cluster and namespace.

        Raises:
            ConfigError: No kubeconfig names one.
        """
        if isinstance(self._where, ConfigError):
            raise self._where
        return self._where

    @property
    def api(self) -> Api:
        """The cluster's API."""
        if self._api is None:
            self._api = Api(self.name, self.where)
        return self._api

    def follow(self, name: str) -> Follower:
        """News of one Pod."""
        if self._watch is None:
            self._watch = PodWatch(self.api)
        return Follower(self._watch, name)

    def path(self, kind: str, name: str = "") -> str:
        """Address of an object, or of all of a kind."""
        group = "/apis/networking.k8s.io/v1" if kind == "networkpolicies" else "/api/v1"
        return f"{group}/namespaces/{self.where.namespace}/{kind}{'/' if name else ''}{name}"

    def scope(self) -> str:
        return f"{self.where.server} {self.where.namespace}"

    def fit(self, spec: SandboxSpec, image: Image) -> SandboxSpec:
        return objects.fit(spec, image, self.profile, self.name)

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        name = objects.object_name(key)
        beside = {"secrets": objects.secret(spec, prepared, key), "networkpolicies": objects.network_policy(spec, key)}
        made = False
        with self.follow(name) as follower:
            try:
                for kind, body in beside.items():
                    if body is not None:
                        await self._post(kind, body)
                        made = True
                pod = await self._post("pods", objects.pod(spec, prepared, key, self.profile))
                made = True
                for kind, body in beside.items():
                    if body is not None:
                        await self._patch(kind, name, {"metadata": {"ownerReferences": [objects.owner(pod)]}})
                follower.offer(pod)
                pod = await self._started(follower, spec.timeouts.create * _PATIENCE)
            except BaseException as error:
                # Of unknown outcome: who repeats this create takes over what there is, and `find` shows it.
                if made and (not isinstance(error, OpenEnvError) or error.outcome == "failed"):
                    await undo(self.delete(SandboxRef(self.name, self.scope(), name, key)), error)
                raise
        return KubeSandbox(self, self._info(pod))

    async def attach(self, ref: SandboxRef) -> Sandbox:
        try:
            pod = await self.api.request("GET", self.path("pods", ref.id))
        except Gone as error:
            raise SandboxGone(f"there is no Pod {ref.id}", ref=ref) from error
        if "deletionTimestamp" in pod["metadata"]:
            raise SandboxGone(f"the Pod {ref.id} is being deleted", ref=ref)
        with self.follow(ref.id) as follower:
            follower.offer(pod)
            return KubeSandbox(self, self._info(await self._started(follower, _ATTACH_S)))

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        selector = ",".join([*(f"{name}={value}" for name, value in labels.items()), KEY])
        seen: set[str] = set()
        for kind in ("pods", "secrets", "networkpolicies"):
            token = ""
            while True:
                query = {"labelSelector": selector, "limit": "200", **({"continue": token} if token else {})}
                answer = await self.api.request("GET", self.path(kind), query=query)
                for item in answer.get("items") or []:
                    name = item["metadata"]["name"]
                    if name not in seen and not item["metadata"].get("deletionTimestamp"):
                        seen.add(name)
                        yield self._info(item)
                token = (answer.get("metadata") or {}).get("continue") or ""
                if not token:
                    break

    async def delete(self, ref: SandboxRef) -> None:
        for kind in ("pods", "secrets", "networkpolicies"):
            grace = {"gracePeriodSeconds": 1} if kind == "pods" else {}
            body = {"apiVersion": "v1", "kind": "DeleteOptions", **grace}
            try:
                await self.api.request("DELETE", self.path(kind, ref.id), body=body)
            except Gone:
                continue

    async def aclose(self) -> None:
        if self._watch is not None:
            await self._watch.aclose()
        if self._api is not None:
            await self._api.aclose()

    async def _post(self, kind: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return await self.api.request("POST", self.path(kind), query={"fieldValidation": "Strict"}, body=body)
        except Taken:
            # The key is ours alone: an earlier request whose reply was lost has made it.
            return await self.api.request("GET", self.path(kind, body["metadata"]["name"]))

    async def _patch(self, kind: str, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self.api.request(
            "PATCH", self.path(kind, name), query={"fieldValidation": "Strict"}, body=body,
            content_type="application/merge-patch+json",
        )  # fmt: skip

    async def _started(self, follower: Follower, seconds: float) -> Mapping[str, Any]:
        try:
            return await asyncio.wait_for(self._until_started(follower), seconds)
        except (asyncio.TimeoutError, TimeoutError):
            why = objects.waiting(follower.pod or {})
            raise CreateTimeout(
                f"the Pod did not start in {seconds:g} s: {why[0]}: {why[1]}", provider=self.name, outcome="failed"
            ) from None

    async def _until_started(self, follower: Follower) -> Mapping[str, Any]:
        while True:
            pod = follower.pod or {}
            if follower.pod is DELETED:
                raise ProviderError("the Pod was deleted while it started", provider=self.name, retryable=True)
            ended = objects.terminated(pod)
            reason, message = (ended.get("reason"), ended.get("message")) if ended else objects.waiting(pod)
            if message and "runAsNonRoot" in message:
                hint = "set user=1000, or USER 1000 in the image"
                raise CapabilityError(f"{reason}: {message}", field="hardening", provider=self.name, hint=hint)
            if reason in _IMAGE:
                raise ImageError(f"the image cannot be pulled: {reason}: {message}", provider=self.name)
            if reason in _START:
                raise ServerExited(f"the container cannot be started: {reason}: {message}", provider=self.name)
            if ended is not None or objects.running(pod):
                return pod
            await follower.change()

    def _info(self, item: Mapping[str, Any]) -> SandboxInfo:
        return objects.info(item, provider=self.name, scope=self.scope(), isolation=self.profile.isolation)
