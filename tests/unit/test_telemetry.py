"""What OpenTelemetry gets, by its in-memory exporters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from openenv_sandbox import _observers, launch, telemetry
from openenv_sandbox.errors import OpenEnvError, ServerExited, SessionLost
from openenv_sandbox.testing import FakeCloud

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


class Recorded:
    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.end = telemetry.instrument(
            tracer_provider=tracers, meter_provider=MeterProvider(metric_readers=[self.reader])
        )

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def metric(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        points = [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return [(dict(p.attributes or {}), getattr(p, "value", getattr(p, "count", None))) for p in points]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    yield recorded
    recorded.end()
    assert not _observers.events
    assert not _observers.calls


async def test_a_launch_and_its_steps(recorded: Recorded) -> None:
    """A span for the launch with its stages inside it, one for each call, and what was moved; no secret in any.

    Mutation: record the stages beside the launch instead of in it
    """
    with FakeCloud() as cloud:
        options = {"address": cloud.address}
        secret = "sekret-canary-of-this-test"
        async with launch("fake-env:1", provider=cloud.provider(), options=options, secrets={"KEY": secret}) as env:
            await env.reset()
            await env.step({"message": "hi"})
            assert recorded.metric("openenv.sandboxes") == [({"provider": "fake"}, 1)]
    by_name = {span.name: span for span in recorded.spans}
    whole = by_name["openenv.launch"]
    for stage in ("creating", "starting"):
        child = by_name[f"openenv.launch.{stage}"]
        assert child.parent is not None
        assert whole.context is not None
        assert child.parent.span_id == whole.context.span_id
        assert child.start_time is not None
        assert whole.start_time is not None
        assert child.start_time >= whole.start_time
    step = by_name["openenv.step"]
    assert step.attributes is not None
    assert step.attributes["openenv.provider"] == "fake"
    assert int(str(step.attributes["openenv.sent"])) > len('{"message":"hi"}')
    assert recorded.metric("openenv.sandboxes") == [({"provider": "fake"}, 0)]
    moved = {attributes["direction"] for attributes, value in recorded.metric("openenv.bytes") if value}
    assert moved == {"sent", "received"}
    assert secret not in "".join(span.to_json() for span in recorded.spans)
    assert "hi" not in str([span.attributes for span in recorded.spans])


async def test_failures_by_kind(recorded: Recorded) -> None:
    """A launch that fails and a session that is lost are counted by what they are.

    Mutation: count calls without their outcome
    """
    with FakeCloud() as cloud:
        options = {"address": cloud.address}
        cloud.faults.add("create", status=429, message="quota", times=None)
        with pytest.raises(OpenEnvError):
            await launch("fake-env:1", provider=cloud.provider(), options=options, timeouts={"create": 0.5})
        cloud.faults.clear()
        cloud.faults.add("create", die={"after_steps": 1, "code": 17})
        async with launch("fake-env:1", provider=cloud.provider(), options=options) as env:
            await env.reset()
            await env.step({"message": "hi"})
            with pytest.raises((ServerExited, SessionLost)) as lost:
                await env.step({"message": "hi"})
    failures = {attributes["kind"]: value for attributes, value in recorded.metric("openenv.failures")}
    assert (failures["launch"], failures["server"]) == (1, 1)
    assert failures[type(lost.value).__name__] == 1
    outcomes = {attributes["outcome"]: value for attributes, value in recorded.metric("openenv.launch.duration")}
    assert outcomes == {"failed": 1, "ready": 1}


async def test_a_blocking_client_counts_too(recorded: Recorded) -> None:
    """Steps over the blocking socket are seen as well."""
    import anyio.to_thread

    def play(cloud: FakeCloud) -> None:
        with launch("fake-env:1", provider=cloud.provider(), options={"address": cloud.address}).sync() as env:
            env.reset()
            env.step({"message": "hi"})

    with FakeCloud() as cloud:
        await anyio.to_thread.run_sync(play, cloud)
    assert [span.name for span in recorded.spans if span.name in ("openenv.reset", "openenv.step")] == [
        "openenv.reset",
        "openenv.step",
    ]


async def test_telemetry_that_fails_harms_nothing(recorded: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    """An exporter that raises is logged, and the call goes on.

    Mutation: let what an observer raises through
    """

    def broken(what: object) -> None:
        raise ValueError("exporter")

    _observers.calls.append(broken)
    try:
        with FakeCloud() as cloud:
            async with launch("fake-env:1", provider=cloud.provider(), options={"address": cloud.address}) as env:
                assert (await env.reset()).done is False
    finally:
        _observers.calls.remove(broken)
    assert "telemetry failed" in caplog.text


async def test_launches_that_fail_are_not_remembered(recorded: Recorded) -> None:
    """A program that tries for weeks does not grow.

    Mutation: keep the stages of a launch until its sandbox stops
    """
    recorder = _observers.events[-1].__self__  # type: ignore[attr-defined]
    with FakeCloud() as cloud:
        for _ in range(3):
            with pytest.raises(OpenEnvError):
                await launch("fake-env:1", provider=cloud.provider(), options={"address": "127.0.0.1:9"})
    assert len(recorded.metric("openenv.failures")) == 1
    assert not recorder._open
