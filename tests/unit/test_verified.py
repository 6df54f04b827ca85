from __future__ import annotations

import json
from pathlib import Path

import pytest

from openenv_sandbox import registry

RECORD = Path(__file__).parents[2] / "docs" / "verified.json"


@pytest.mark.parametrize("name", ["docker", "local"])
def test_a_backend_claims_no_more_than_what_ran(name: str) -> None:
    claimed = registry.get(name).verified
    if claimed.how == "none":
        return
    ran = json.loads(RECORD.read_text(encoding="utf-8"))["backends"].get(name)
    assert ran is not None, f"{name} claims {claimed.how}, but docs/verified.json has no run of it"
    assert ran["how"] == claimed.how
    assert ran["sdk"].split(".")[:2] == claimed.sdk.split(".")[:2]
