"""Proof: what is declared is what the SDK can do, the SDK is the vendor's, and no secret is shown."""

from __future__ import annotations

import logging
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv_sandbox.capabilities import ISOLATION_ORDER, Capabilities, ExecCapabilities
from tests.emulators import proof_guard

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from openenv_sandbox.events import Event
    from tests.emulators.proof_stage import Stage

EXPECTED = Path(__file__).resolve().parents[1] / "expected.toml"
# From the least to the most that a backend can do.
ORDERS: dict[str, tuple[str, ...]] = {
    "start": ("exec", "image", "command"),
    "ports": ("none", "tunnel", "at-create", "any"),
    "lifetime": ("none", "idle-only", "server-fixed", "server-extendable"),
    "labels": ("journal", "client-side", "name", "filter"),
    "findable": ("none", "id", "name", "label"),
    "isolation": ("unknown", *ISOLATION_ORDER),
}
# What is no ability: bounds, times, and what core supplies anyway.
NO_ABILITY = {
    "keeps",
    "keep_alive_s",
    "max_lifetime_s",
    "create_settle_s",
    "max_connection_s",
    "max_concurrency",
    "sizes",
    "reload",  # watching a folder on this machine is no SDK's
}
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def expected(name: str) -> dict[str, Any]:
    """What the SDK of a backend can do, from ``tests/expected.toml``."""
    with EXPECTED.open("rb") as file:
        return dict(tomllib.load(file).get(name, {}))


def differences(wanted: Mapping[str, Any], declared: Capabilities) -> list[str]:
    """Where the declaration is less than what the SDK can do, or more, without a reason that stands for it."""
    wrong = []
    declined = dict(wanted.get("declined", {}))
    known = {item.name for item in fields(Capabilities)} - NO_ABILITY - {"exec"}
    known |= {f"exec.{item.name}" for item in fields(ExecCapabilities)} - {"exec.max_s", "exec.max_stdin"}
    given = {
        key: value for key, value in wanted.items() if key in {item.name for item in fields(Capabilities)} - {"exec"}
    }
    given |= {f"exec.{key}": value for key, value in dict(wanted.get("exec", {})).items()}
    wrong += [f"{key}: not listed" for key in sorted(known - set(given))]
    wrong += [f"{key}: no such field" for key in sorted(set(given) - known)]
    for key in sorted(known & set(given)):
        less, more = compare(key.rpartition(".")[2], given[key], _value(declared, key))
        reason = declined.pop(key, "") or declined.pop(key.replace(".", "_"), "")
        if less and not reason:
            wrong.append(f"{key}: the SDK can {less}, which is neither declared nor declined with a reason")
        if more:
            wrong.append(f"{key}: declares {more}, which tests/expected.toml does not list")
        if reason and not less:
            wrong.append(f"{key}: declined, but nothing is missing")
    return wrong + [f"declined.{key}: no such field" for key in sorted(declined)]


def compare(field: str, wanted: Any, declared: Any) -> tuple[str, str]:
    """What is missing, and what is too much."""
    if field in ORDERS:
        order = ORDERS[field]
        less, more = order.index(declared) < order.index(wanted), order.index(declared) > order.index(wanted)
        return (str(wanted) if less else ""), (str(declared) if more else "")
    if isinstance(wanted, list):
        missing, surplus = set(wanted) - set(declared), set(declared) - set(wanted)
        return ", ".join(sorted(missing)), ", ".join(sorted(surplus))
    return (field if wanted and not declared else ""), (field if declared and not wanted else "")


def _value(declared: Capabilities, key: str) -> Any:
    if not key.startswith("exec."):
        return getattr(declared, key)
    return declared.exec is not None and getattr(declared.exec, key[5:])


class SdkProof:
    """Declaration, origin, discretion."""

    def test_declares_what_the_sdk_can(self, stage: Stage) -> None:
        """``capabilities`` says what ``tests/expected.toml`` says, or there is a reason there.

        Mutation: a capability is declared away so that its tests are skipped
        """
        wanted = expected(stage.provider.name)
        assert wanted, f"tests/expected.toml has no section [{stage.provider.name}]"
        assert differences(wanted, stage.provider.capabilities) == []
        assert wanted["private"].strip().endswith((".", ")")), "`private`: one sentence for the docs"

    def test_the_sdk_is_the_vendors(self, stage: Stage) -> None:
        """The SDK's files are what its RECORD says, before and after; nothing loaded from it was replaced by ours."""
        stage.provider(dict(stage.emulated.options))
        names = list(stage.emulated.dists) or proof_guard.distributions(stage.provider)
        assert names, f"no distribution holds {stage.provider.sdk}"
        assert proof_guard.altered(names) == []
        assert proof_guard.replaced({module.split(".")[0] for module in stage.provider.sdk}) == []

    async def test_credentials_are_not_shown(
        self, stage: Stage, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """The vendor's key and the port's token are in no event, repr or log line of ours, and on no terminal.

        Scenario: M01
        Mutation: options or headers are logged, or a repr shows them
        """
        secret = {value for name, value in stage.emulated.env.items() if any(word in name for word in SECRET)}
        secret |= {str(value) for name, value in stage.emulated.options.items() if "key" in name or "token" in name}
        events: list[Event] = []
        with caplog.at_level(logging.DEBUG, logger="openenv"):
            async with stage.launch(on_event=events.append) as env:
                await env.reset()
                endpoint = await env.sandbox.endpoint()
                secret |= set(endpoint.headers.values())
                shown = f"{env!r}{env.sandbox!r}{env.sandbox.info!r}{endpoint!r}{env.sandbox._provider!r}"
        shown += repr(events) + "".join(
            record.getMessage() for record in caplog.records if record.name[:7] == "openenv"
        )
        shown += "".join(capfd.readouterr())
        assert [value for value in secret if len(value) > 5 and value in shown] == []
