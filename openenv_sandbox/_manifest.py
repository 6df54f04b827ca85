"""``openenv.yaml``: what an environment folder says about itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "openenv.yaml"
DEFAULT_PORT = 8000
_APP = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*(\(\))?\Z")


@dataclass(frozen=True)
class Manifest:
    """The fields that starting an environment needs; everything else stays in ``raw``.

    Attributes:
        name: The environment's name.
        app: ``module:attribute`` of the ASGI application; None when the file does not say.
        port: Where its server listens.
        image: A registry ref of the ready image; None when the file does not say.
        path: The file.
        raw: Every field as written.
    """

    name: str
    app: str | None
    port: int
    image: str | None
    path: Path
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


def load(folder: Path) -> Manifest:
    """Read ``openenv.yaml`` of ``folder``. Unknown fields are kept, known ones must have their type.

    Raises:
        ImageError: The file is missing, not a mapping, or a known field is malformed.
    """
    import yaml

    path = folder / FILE
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ImageError(
            f"{folder} has no {FILE}", hint=f"an environment folder holds {FILE} with at least a name, and a Dockerfile"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ImageError(f"{path} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise ImageError(f"{path} is not a mapping of fields", hint="begin with: name: my_env")
    name = raw.get("name", folder.name)
    if not isinstance(name, str) or not name.strip():
        raise _bad(path, "name", "a text", name)
    app = raw.get("app")
    if app is not None and (not isinstance(app, str) or not _APP.match(app)):
        raise _bad(path, "app", "module:attribute, e.g. server.app:app", app)
    port = raw.get("port", DEFAULT_PORT)
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise _bad(path, "port", "a number from 1 to 65535", port)
    image = raw.get("image", raw.get("default_image"))
    if image is not None and not isinstance(image, str):
        raise _bad(path, "image", "a registry ref", image)
    return Manifest(name=name, app=app, port=port, image=image or None, path=path, raw=raw)


def _bad(path: Path, name: str, wanted: str, value: object) -> ImageError:
    return ImageError(f"{path}: {name} must be {wanted}, not {value!r}")
