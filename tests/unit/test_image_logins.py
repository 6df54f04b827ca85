"""Logins of image registries: where they come from, who gets them, and that nobody sees them."""

from __future__ import annotations

import base64
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import config, image, image_registries, launch, sandbox
from openenv_sandbox.errors import CapabilityError, ConfigError, ImageError, TrustError
from openenv_sandbox.provider import ImageConfig
from openenv_sandbox.spec import RegistryAuth, SandboxSpec
from openenv_sandbox.testing.fake import FULL, FakeCloud

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openenv_sandbox.provider import Image, LogSink, Prepared

LOGIN, SECRET = "me", "r3gistry-pass"
BASIC = "Basic " + base64.b64encode(f"{LOGIN}:{SECRET}".encode()).decode()


def login() -> RegistryAuth:
    return RegistryAuth.model_validate({"username": LOGIN, "password": SECRET})


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def known(found: RegistryAuth | None) -> tuple[str, str] | None:
    return None if found is None else (found.username, found.password.get_secret_value())


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("ghcr.io", {"auths": {"ghcr.io": {"auth": base64.b64encode(b"me:r3gistry-pass").decode()}}}),
        ("ghcr.io", {"auths": {"https://ghcr.io": {"username": "me", "password": "r3gistry-pass"}}}),
        ("docker.io", {"auths": {"https://index.docker.io/v1/": {"username": "me", "password": "r3gistry-pass"}}}),
        ("ghcr.io", {"credHelpers": {"ghcr.io": "oetest"}}),
        ("ghcr.io", {"auths": {"ghcr.io": {}}, "credsStore": "oetest"}),
    ],
)
def test_what_the_docker_command_line_knows(
    docker_config: Path, monkeypatch: pytest.MonkeyPatch, host: str, written: dict[str, Any]
) -> None:
    """Mutation: read only `auth` entries"""
    helper = docker_config / "docker-credential-oetest"
    helper.write_text(
        '#!/bin/sh\n[ "$1" = get ] && [ "$(cat)" = ghcr.io ] && echo \'{"Username":"me","Secret":"r3gistry-pass"}\'\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker_config}:/usr/bin:/bin")
    (docker_config / "config.json").write_text(json.dumps(written))
    assert known(image_registries.login_for(host)) == (LOGIN, SECRET)
    assert image_registries.login_for("quay.io") is None


def test_a_helper_that_is_missing_is_said(docker_config: Path) -> None:
    (docker_config / "config.json").write_text('{"credHelpers": {"ghcr.io": "nowhere"}}')
    with pytest.raises(ConfigError, match="docker-credential-nowhere"):
        image_registries.login_for("ghcr.io")


def test_the_users_own_file_comes_first_and_a_projects_is_refused(docker_config: Path) -> None:
    """A cloned repository must not bring a login, and none is shown.

    Mutation: `_check_file` lets image.registries of a project pass
    """
    text = f'[image.registries."ghcr.io"]\nusername = "{LOGIN}"\npassword = "{SECRET}"\n'
    own = docker_config / "xdg" / "openenv" / "openenv.toml"
    own.parent.mkdir(parents=True)
    own.write_text(text)
    (docker_config / "config.json").write_text('{"auths": {"ghcr.io": {"username": "x", "password": "y"}}}')
    assert known(image_registries.login_for("ghcr.io")) == (LOGIN, SECRET)
    assert SECRET not in repr(config.load().explain())
    assert SECRET not in repr(config.load().registry_logins)
    (docker_config / "openenv.toml").write_text(text)
    with pytest.raises(TrustError, match=r"image\.registries"):
        config.load()
    (docker_config / "openenv.toml").write_text('[spec.registry_auth]\nusername = "a"\npassword = "b"\n')
    with pytest.raises(TrustError, match="registry_auth"):
        config.load()


class Registry(BaseHTTPRequestHandler):
    """Wants the login itself below /basic/, a token for it below /bearer/."""

    def do_GET(self) -> None:
        path, sent = self.path.partition("?")[0], self.headers.get("authorization", "")
        here = f"http://{self.headers['host']}"
        want = {"basic": BASIC, "bearer": "Bearer t0k"}.get(path.split("/")[2] if path.count("/") > 2 else "", "")
        body: Any = {"config": {"digest": "sha256:c"}} if "/manifests/" in path else {"config": {"Cmd": ["serve"]}}
        status, challenge = 200, ""
        if path == "/token":
            status, body = (200, {"token": "t0k"}) if sent == BASIC else (401, {})
        elif sent != want:
            status = 401
            challenge = 'Basic realm="r"' if "basic" in path else f'Bearer realm="{here}/token",service="s"'
        data = json.dumps(body).encode()
        self.send_response(status)
        if challenge:
            self.send_header("www-authenticate", challenge)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["basic", "bearer"])
async def test_the_config_of_a_private_image(registry: str, docker_config: Path, kind: str) -> None:
    """By the login given, or the one that is configured; without any the registry's wish is told.

    Mutation: `_Asking._answer` ignores the login
    """
    named = image.parse(f"{registry}/{kind}/env:1")
    with pytest.raises(ImageError, match="wants a login"):
        await image.resolve_config(named)
    wrong = RegistryAuth.model_validate({"username": LOGIN, "password": "wrong"})
    with pytest.raises(ImageError, match="refuses the login") as caught:
        await image.resolve_config(named, auth=wrong)
    assert "wrong" not in str(caught.value).replace("wants", "")
    assert await image.resolve_config(named, auth=login()) == ImageConfig(cmd=("serve",))
    entry = {"username": LOGIN, "password": SECRET}
    (docker_config / "config.json").write_text(json.dumps({"auths": {registry: entry}}))
    assert await image.resolve_config(image.parse(f"{registry}/{kind}/other:1")) == ImageConfig(cmd=("serve",))


@pytest.mark.anyio
async def test_the_provider_gets_the_login_and_nobody_sees_it(
    docker_config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """prepare and create have it; events, logs, errors and the spec's repr have not.

    Mutation: the pipeline does not register the password for masking
    """
    (docker_config / "config.json").write_text(
        json.dumps({"auths": {"ghcr.io": {"username": LOGIN, "password": SECRET}}})
    )
    seen: list[SandboxSpec] = []
    events: list[Any] = []
    with FakeCloud() as cloud:

        class Private(cloud.provider(private_images=True)):  # type: ignore[misc]
            async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
                seen.append(spec)
                assert spec.registry_auth is not None
                on_log(f"pulling with {spec.registry_auth.password.get_secret_value()}")
                prepared: Prepared = await super().prepare(spec, image, on_log=on_log)
                return prepared

            async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Any:
                seen.append(spec)
                assert spec.registry_auth is not None
                raise ImageError(f"cannot pull with {spec.registry_auth.password.get_secret_value()}")

        with pytest.raises(ImageError) as caught:
            await launch("ghcr.io/me/env:1", provider=Private, on_event=events.append)
        assert [known(spec.registry_auth) for spec in seen] == [(LOGIN, SECRET)] * 2
        for text in (str(caught.value), repr(caught.value.__dict__), repr(events), caplog.text, repr(seen)):
            assert SECRET not in text
        async with sandbox("quay.io/me/env:1", provider=cloud.provider(private_images=True)) as box:
            assert box.spec.registry_auth is None
        given = RegistryAuth.model_validate({"username": "other", "password": "passw0rd"})
        async with sandbox(
            "ghcr.io/me/env:1", provider=cloud.provider(private_images=True), registry_auth=given
        ) as box:
            assert box.spec.registry_auth == given, "what the caller says comes first"


@pytest.mark.anyio
async def test_a_login_that_cannot_be_used_is_refused() -> None:
    assert not replace(FULL).private_images
    with FakeCloud() as cloud:
        with pytest.raises(CapabilityError, match="registry_auth"):
            await launch("ghcr.io/me/env:1", provider=cloud.provider(), registry_auth=login())
        assert not [call for call in cloud.calls if call.op == "create"]
