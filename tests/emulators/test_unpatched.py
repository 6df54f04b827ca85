"""The vendors' SDKs stay as pip installed them: nothing in the tests or providers replaces anything in them."""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import registry
from openenv_sandbox.provider import Check
from tests.emulators import proof_guard
from tests.emulators.mini.provider import MiniProvider
from tests.emulators.proof_guard import Frame

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = Path(__file__).resolve().parents[2]
LOOKED_AT = [
    *sorted((REPO / "tests" / "emulators").rglob("*.py")),
    *sorted((REPO / "tests" / "live").rglob("*.py")),
    *sorted((REPO / "providers").rglob("*.py")),
]
# Roots of the SDKs, also of those that are not installed here.
SDKS = {"azure", "daytona", "daytona_api_client", "daytona_toolbox_api_client", "e2b", "grpclib", "httpx", "kubernetes"}
SDKS |= {"modal", "modal_proto", "novita_sandbox", "runloop_api_client", "islo", "requests", "aiohttp", "urllib3"}
SDKS |= {"connectrpc", "pyqwest", "synchronicity", "socketio", "obstore"}


def sdks() -> set[str]:
    """The roots of every SDK that a provider names."""
    named = {module.split(".")[0] for entry in registry.entries() if entry.cls for module in entry.cls.sdk}
    return SDKS | named


def offences(source: str, roots: set[str]) -> list[str]:
    """Lines that replace something in a module of ``roots``, or replace anything by name."""
    tree = ast.parse(source)
    imported = dict(_imports(tree))
    found = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
            found += [
                f"line {line}: {ast.unparse(target)}"
                for target in targets
                if isinstance(target, (ast.Attribute, ast.Subscript))
                and imported.get(_root(target), "").split(".")[0] in roots
            ]
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            whole = ast.unparse(node)
            replaces = name.endswith(("monkeypatch.setattr", "monkeypatch.delattr", "monkeypatch.setitem"))
            first = ast.unparse(node.args[0]) if node.args else ""
            theirs = imported.get(first.partition(".")[0].strip("'\""), first.strip("'\"")).split(".")[0] in roots
            if replaces and theirs:
                found.append(f"line {line}: {whole[:80]}")
            if name in ("setattr", "delattr") and theirs:
                found.append(f"line {line}: {whole[:80]}")
            if name.split(".")[0] in ("mock", "mocker") or name.endswith(("mock.patch", "patch.object", "patch.dict")):
                found.append(f"line {line}: {whole[:80]}")
        if isinstance(node, ast.ImportFrom) and node.module in (
            "unittest.mock",
            "mock",
            "respx",
            "responses",
            "aioresponses",
        ):
            found.append(f"line {line}: {ast.unparse(node)}")
    return found


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.asname or name.name.split(".")[0], name.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                yield name.asname or name.name, f"{node.module}.{name.name}"


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", LOOKED_AT, ids=lambda path: str(path.relative_to(REPO)))
def test_nothing_of_an_sdk_is_replaced(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8"), sdks()) == []


@pytest.mark.parametrize(
    "line",
    [
        "modal.Sandbox.create = fake",
        "Sandbox.create = fake",
        "del modal.Sandbox.create",
        "modal.config._profile['x'] = 1",
        "monkeypatch.setattr(modal.Sandbox, 'create', fake)",
        "monkeypatch.setattr('modal.Sandbox.create', fake)",
        "setattr(modal, 'Sandbox', fake)",
        "mock.patch('modal.Sandbox')",
        "from unittest.mock import patch",
        "with patch.object(modal, 'Sandbox'): pass",
    ],
)
def test_a_replacement_is_seen(line: str) -> None:
    assert offences(f"import modal\nfrom modal import Sandbox\n{line}\n", {"modal"})


def test_what_is_allowed_is_allowed() -> None:
    source = "import modal\nclient = modal.Client()\nclient.url = 'x'\nmonkeypatch.setattr(breaker, '_breakers', {})\n"
    assert offences(source, {"modal"}) == []


class TestFiles:
    """`proof_guard.altered` and `replaced` see what they look for."""

    def test_the_distribution_is_found(self) -> None:
        assert proof_guard.distributions(MiniProvider) == ["httpx"]
        assert proof_guard.altered(["httpx"]) == []

    def test_an_altered_file_is_seen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        digest = base64.urlsafe_b64encode(hashlib.sha256(b"as it came").digest()).rstrip(b"=").decode()
        folder = tmp_path / "vendor_sdk-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor-sdk\nVersion: 1.0\n")
        (folder / "RECORD").write_text(f"vendor_sdk.py,sha256={digest},10\nvendor_gone.py,sha256={digest},10\n")
        (tmp_path / "vendor_sdk.py").write_text("as it came")
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()
        assert [line.partition(":")[0] for line in proof_guard.altered(["vendor-sdk"])] == ["vendor_gone.py"]
        (tmp_path / "vendor_sdk.py").write_text("as we like")
        assert len(proof_guard.altered(["vendor-sdk"])) == 2

    def test_a_replaced_function_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = types.ModuleType("vendor_sdk")

        class Client:
            __module__ = "vendor_sdk"

        module.Client = Client  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "vendor_sdk", module)
        assert proof_guard.replaced({"vendor_sdk"}) == []
        Client.create = _ours  # type: ignore[attr-defined]
        assert proof_guard.replaced({"vendor_sdk"}) == ["vendor_sdk.Client.create"]


def _ours() -> Check:
    return Check(True)


SITE = "/venv/lib/python3.11/site-packages"
TEST = Frame(str(REPO / "tests" / "emulators" / "test_mini.py"), "test_x", waits=True)
RUNNER = Frame(f"{SITE}/_pytest/python.py", "call")
SOCKET = Frame("/lib/python3.11/socket.py", "connect")
SDK = Frame(f"{SITE}/vendor/http.py", "get")
PROVIDER = Frame(str(REPO / "providers/openenv_providers/x.py"), "create", waits=True)
PARSE = Frame(str(REPO / "openenv_sandbox/image.py"), "parse")
SUITE = Frame(str(REPO / "openenv_sandbox/testing/suite_launch.py"), "test_launch", waits=True)


@pytest.mark.parametrize(
    ("stack", "guilty"),
    [
        ([SOCKET, SDK, PROVIDER, TEST, RUNNER], True),
        ([PROVIDER, SUITE, RUNNER], True),
        ([PARSE, PROVIDER, TEST], True),
        ([SOCKET, SDK, RUNNER], True),
        ([PARSE, TEST, RUNNER], False),
        ([SOCKET, SDK, TEST, RUNNER], False),
        ([SOCKET, TEST, RUNNER], False),
        ([SOCKET, SUITE, RUNNER], False),
        ([SOCKET, RUNNER], False),
    ],
)
def test_whose_blocking_call_it_is(stack: list[Frame], guilty: bool) -> None:
    """Seen from the inside outwards: what a test awaits is not its own doing, what it calls plainly is."""
    assert proof_guard.guilty(stack) == guilty
