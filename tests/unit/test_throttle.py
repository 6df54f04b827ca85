"""SDK exceptions in every shape in which "slow down" and "your account is full" have been seen."""

from __future__ import annotations

import enum
from email.utils import formatdate
from typing import Any

import pytest

from openenv_sandbox import retry
from openenv_sandbox.errors import ProviderError, QuotaExceeded, RateLimited


class Shape(Exception):
    def __init__(self, text: str = "", **attributes: Any) -> None:
        super().__init__(text)
        self.__dict__.update(attributes)


class Response:
    def __init__(self, status_code: int, headers: dict[str, str] | None = None) -> None:
        self.status_code, self.headers = status_code, headers or {}


class Grpc(enum.Enum):
    RESOURCE_EXHAUSTED = 8
    UNAVAILABLE = 14


LIMITED = {
    "status": Shape("nope", status_code=429),
    "status in the response": Shape("nope", response=Response(429)),
    "status as text": Shape("nope", status="429"),
    "503 with Retry-After": Shape("busy", response=Response(503, {"Retry-After": "7"})),
    "grpc code()": Shape("x", code=lambda: Grpc.RESOURCE_EXHAUSTED),
    "grpclib status": Shape("x", status=Grpc.RESOURCE_EXHAUSTED),
    "connect code": Shape("x", code="resource_exhausted"),
    "text": Shape("HTTP error: Too Many Requests"),
    "text of a plain error": RuntimeError("Rate limit exceeded, try later"),
    "throttling": Shape("ThrottlingException: Rate exceeded", status_code=400),
    "quota per time": Shape("Quota of 10 requests per minute exceeded", status_code=429),
    "limit with Retry-After": Shape("sandbox quota reached", response=Response(429, {"retry-after": "3"})),
    "ours": RateLimited("x", retry_after=7.0),
}


@pytest.mark.parametrize("name", LIMITED)
def test_every_shape_of_throttling_is_rate_limited(name: str) -> None:
    """429, 503 with Retry-After, gRPC RESOURCE_EXHAUSTED and mere text are one error.

    Scenario: I02
    Mutation: throttled() looks at status 429 only
    """
    error = retry.throttled(LIMITED[name], provider="p")
    assert isinstance(error, RateLimited)
    assert (error.retryable, error.outcome) == (True, "failed")


QUOTA = {
    "402": Shape("Payment required", status_code=402),
    "disk": Shape("Total disk limit exceeded. Maximum allowed: 30GiB", status_code=403),
    "text": RuntimeError("Organization quota exceeded for sandboxes"),
    "grpc": Shape("quota for GPUs is used up", code=lambda: Grpc.RESOURCE_EXHAUSTED),
    "credits": Shape("You are out of credits", status_code=429),
}


@pytest.mark.parametrize("name", QUOTA)
def test_an_account_limit_is_not_retried(name: str) -> None:
    """A quota is an error that no waiting lifts, whatever status it comes with.

    Scenario: I03
    Mutation: throttled() tests the status before the text
    """
    error = retry.throttled(QUOTA[name], provider="p")
    assert isinstance(error, QuotaExceeded)
    assert not error.retryable


@pytest.mark.parametrize(
    "error",
    [
        Shape("busy", status_code=503),
        Shape("x", status_code=500),
        Shape("x", code=lambda: Grpc.UNAVAILABLE),
        Shape("no such image", status_code=404),
        ValueError("bad"),
        Shape("x", code=True),
        Shape("x", status="running"),
        ProviderError("x"),
    ],
)
def test_other_errors_are_somebody_elses(error: Exception) -> None:
    assert retry.throttled(error, provider="p") is None


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Shape(retry_after=4), 4.0),
        (Shape(response=Response(429, {"Retry-After": "12"})), 12.0),
        (Shape(headers={"retry-after-ms": "1500"}), 1.5),
        (Shape(headers=[("Retry-After", "0.5")]), 0.5),
        (Shape(headers={"Retry-After": formatdate(1060, usegmt=True)}), 60.0),
        (Shape(headers={"Retry-After": formatdate(900, usegmt=True)}), 0.0),
        (Shape(trailing_metadata=lambda: (("retry-after", "3"),)), 3.0),
        (Shape(headers={"Retry-After": "soon"}), None),
        (Shape(headers=7), None),
        (Shape(retry_after=True), None),
        (Shape(), None),
    ],
)
def test_what_the_backend_asks_for_is_read(error: Exception, seconds: float | None) -> None:
    assert retry.retry_after(error, now=1000.0) == seconds


def test_the_text_of_an_sdk_is_masked_and_cleaned() -> None:
    error = retry.throttled(Shape("429 for https://me:hunter22@x/ \x1b[31mred", status_code=429), provider="p")
    assert error is not None
    assert "hunter22" not in str(error)
    assert "\x1b" not in str(error)
