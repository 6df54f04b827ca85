"""What a folder says, without running it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv_sandbox import _manifest, dockerfile, folder
from openenv_sandbox.errors import ImageError

if TYPE_CHECKING:
    from openenv_sandbox.authoring.checks.report import Report

_OWN = re.compile(r"openenv(\[[\w,\s-]*\])?(?![\w-])", re.IGNORECASE)
_OLD = re.compile(r"openenv[-_]core(?![\w-])", re.IGNORECASE)


def check(report: Report, path: Path) -> None:
    """Look at the files of an environment's folder."""
    manifest = _manifest_of(report, path)
    try:
        project = folder._project(path)
    except ImageError as error:
        report.add("entry-point", False, error.message)
        return
    _entry_point(report, path, project, manifest)
    _dependencies(report, path, project)
    _dockerfile(report, path)
    locked = (path / "uv.lock").is_file()
    report.add("lock-file", locked, "" if locked else "uv lock writes one", required=False)


def _manifest_of(report: Report, path: Path) -> _manifest.Manifest | None:
    try:
        manifest = _manifest.load(path)
    except ImageError as error:
        report.add("manifest", False, error.message)
        return None
    missing = [name for name in ("name", "app", "port") if name not in manifest.raw]
    report.add("manifest", not missing, f"missing: {', '.join(missing)}" if missing else f"{manifest.name}")
    return manifest


def _entry_point(report: Report, path: Path, project: dict[str, Any], manifest: _manifest.Manifest | None) -> None:
    scripts = project.get("scripts")
    script = scripts.get("server") if isinstance(scripts, dict) else None
    named = isinstance(script, str) and script.endswith(":main")
    report.add("entry-point", named, str(script or "no [project.scripts] server"))
    try:
        module = folder.read(path).module
    except ImageError as error:
        report.add("app", False, error.message)
        return
    if module is None:
        report.add("app", False, "neither openenv.yaml nor pyproject.toml says which application to serve")
        return
    dotted = module.partition(":")[0].split(".")
    candidates = [path.joinpath(*dotted[start:]).with_suffix(".py") for start in range(len(dotted))]
    candidates.append(path.parent.joinpath(*dotted).with_suffix(".py"))
    file = next((one for one in candidates if one.is_file()), None)
    if file is None:
        report.add("app", False, f"{module} is no file of this folder")
        return
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as error:
        report.add("app", False, f"{file.relative_to(path.parent)} cannot be parsed: {error}")
        return
    has_main = any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
    guarded = any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body)
    lacking = [text for text, there in (("def main", has_main), ("if __name__ == '__main__'", guarded)) if not there]
    where = file.relative_to(path.parent).as_posix()
    report.add("app", not lacking, f"{where} lacks {' and '.join(lacking)}" if lacking else where)


def _dependencies(report: Report, path: Path, project: dict[str, Any]) -> None:
    declared = [str(one) for one in project.get("dependencies") or []]
    own = any(_OWN.match(one.strip()) for one in declared)
    old = [one for one in declared if _OLD.match(one.strip())]
    report.add("dependency", own or bool(old), ", ".join(declared) or "no dependencies are declared")
    lock = path / "uv.lock"
    in_lock = lock.is_file() and re.search(r'^name = "openenv-core"$', lock.read_text(encoding="utf-8"), re.MULTILINE)
    where = "pyproject.toml" if old else "uv.lock" if in_lock else ""
    text = f"{where} names openenv-core; it is removed wherever openenv builds or installs" if where else ""
    report.add("older-distribution", not where, text, required=False)


def _dockerfile(report: Report, path: Path) -> None:
    from openenv_sandbox import image

    try:
        found = image.parse(str(path))
    except ImageError as error:
        report.add("dockerfile", False, error.message)
        return
    if found.dockerfile is None:
        report.add("dockerfile", False, "there is none")
        return
    config = dockerfile.config(image.read_dockerfile(Path(found.dockerfile)))
    argv = config.argv if config is not None else ()
    report.add("dockerfile", bool(argv), " ".join(argv) or "it has neither CMD nor ENTRYPOINT")
