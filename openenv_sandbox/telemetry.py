"""Spans and metrics by OpenTelemetry: launches with their stages, steps, bytes, failures by kind. Extra ``otel``.

    from openenv_sandbox import telemetry

    telemetry.instrument()

Where they go is set up by the program, as for any library. Nothing is recorded before `instrument`, and no value of an
environment, no argument and no secret ever is: names, sizes, times and kinds of errors alone.

Spans: ``openenv.launch`` with a child for each stage (``openenv.launch.creating``, ``starting``, ``stopping``), and
``openenv.reset``, ``openenv.step``, ``openenv.state``. Metrics: ``openenv.launch.duration`` (s),
``openenv.sandboxes`` (live), ``openenv.call.duration`` (s), ``openenv.bytes`` (By, by direction), ``openenv.failures``
(by kind).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from openenv_sandbox import _observers
from openenv_sandbox.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

    from openenv_sandbox._observers import Call
    from openenv_sandbox.events import Event

NAME = "openenv"
STAGES = {"created": "creating", "ready": "starting", "stopped": "stopping"}
"""Event that ends a stage, to the stage's name."""


def instrument(*, tracer_provider: Any = None, meter_provider: Any = None) -> Callable[[], None]:
    """Record from now on.

    Args:
        tracer_provider: Makes the tracer; None for OpenTelemetry's global one.
        meter_provider: Makes the meter; None for the global one.

    Returns:
        What ends it.

    Raises:
        MissingExtraError: The extra ``otel`` is not installed.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError as error:
        raise MissingExtraError("OpenTelemetry is not installed", hint="pip install 'openenv[otel]'") from error
    recorder = _Recorder(
        trace.get_tracer(NAME, tracer_provider=tracer_provider), metrics.get_meter(NAME, meter_provider=meter_provider)
    )
    _observers.events.append(recorder.event)
    _observers.calls.append(recorder.call)

    def end() -> None:
        if recorder.call in _observers.calls:
            _observers.events.remove(recorder.event)
            _observers.calls.remove(recorder.call)

    return end


class _Recorder:
    """Turns what is told into spans and metrics. Spans are made when they are over, with their true times."""

    def __init__(self, tracer: Any, meter: Any) -> None:
        self._tracer = tracer
        self._launches = meter.create_histogram("openenv.launch.duration", unit="s")
        self._calls = meter.create_histogram("openenv.call.duration", unit="s")
        self._bytes = meter.create_counter("openenv.bytes", unit="By")
        self._failures = meter.create_counter("openenv.failures")
        self._live = meter.create_up_down_counter("openenv.sandboxes")
        self._open: dict[str, list[tuple[str, float]]] = {}
        self._ready: set[str] = set()
        self._lock = threading.Lock()

    def event(self, event: Event) -> None:
        """One stage of a sandbox's life."""
        kind = {"provider": event.provider}
        if event.stage == "created":
            self._live.add(1, kind)
        elif event.stage == "stopped":
            self._live.add(-1, kind)
        if event.duration_s is None:
            return
        with self._lock:
            stages = self._open.setdefault(event.key, [])
            if event.stage in STAGES:
                stages.append((STAGES[event.stage], event.duration_s))
        if event.stage == "failed" and event.key in self._ready:
            self._failures.add(1, {**kind, "kind": "server"})
        elif event.stage in ("ready", "failed"):
            self._launched(event, stages)
            if event.stage == "failed":  # no sandbox of that key will ever stop
                with self._lock:
                    self._open.pop(event.key, None)
        elif event.stage == "stopped":
            self._span("openenv.stop", event.duration_s, event)
            with self._lock:
                self._open.pop(event.key, None)
                self._ready.discard(event.key)

    def _launched(self, event: Event, stages: list[tuple[str, float]]) -> None:
        with self._lock:
            parts, stages[:] = list(stages), []
            failed = event.stage == "failed"
            (self._ready.discard if failed else self._ready.add)(event.key)
        whole = event.duration_s if failed and event.duration_s is not None else sum(took for _, took in parts)
        self._launches.record(whole, {"provider": event.provider, "outcome": "failed" if failed else "ready"})
        if failed:
            self._failures.add(1, {"provider": event.provider, "kind": "launch"})
        from opentelemetry import trace

        span = self._span("openenv.launch", whole, event, end=False)
        at = time.time() - whole
        with trace.use_span(span, end_on_exit=False):
            for name, took in parts:
                child = self._tracer.start_span(f"openenv.launch.{name}", start_time=int(at * 1e9))
                at += took
                child.end(int(at * 1e9))
        if failed:
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        span.end()

    def _span(self, name: str, took: float, event: Event, *, end: bool = True) -> Any:
        attributes = {"openenv.provider": event.provider, "openenv.key": event.key}
        if event.ref is not None:
            attributes["openenv.sandbox"] = str(event.ref)
        span = self._tracer.start_span(name, start_time=int((time.time() - took) * 1e9), attributes=attributes)
        if end:
            span.end()
        return span

    def call(self, call: Call) -> None:
        """One message and its reply."""
        kind = {"call": call.kind, "provider": call.provider}
        self._calls.record(call.duration_s, {**kind, "outcome": "failed" if call.error is not None else "ok"})
        self._bytes.add(call.sent, {**kind, "direction": "sent"})
        self._bytes.add(call.received, {**kind, "direction": "received"})
        attributes: dict[str, Any] = {"openenv.sent": call.sent, "openenv.received": call.received}
        if call.sandbox:
            attributes |= {"openenv.sandbox": call.sandbox, "openenv.provider": call.provider}
        start = int((time.time() - call.duration_s) * 1e9)
        span = self._tracer.start_span(f"openenv.{call.kind}", start_time=start, attributes=attributes)
        if call.error is not None:
            from opentelemetry import trace

            name = type(call.error).__name__
            self._failures.add(1, {**kind, "kind": name})
            span.set_attribute("error.type", name)
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        span.end()
