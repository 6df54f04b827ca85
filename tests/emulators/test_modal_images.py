"""Modal: folders by its builder, registries with a login, ENTRYPOINT and CMD, snapshots."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import launch
from openenv_sandbox.errors import BuildError, ImageError
from openenv_sandbox.image import parse
from openenv_sandbox.spec import RegistryAuth, SandboxSpec
from tests.emulators.engine import LOGIN
from tests.emulators.modal_bench import Modal, emulated_modal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.emulators.engine import Engine

pytest.importorskip("modal")
pytestmark = [pytest.mark.anyio, pytest.mark.emulator]


@pytest.fixture
def modal(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modal]:
    monkeypatch.delenv("OPENENV_BASE_IMAGE", raising=False)
    with emulated_modal(engine, monkeypatch) as modal:
        yield modal


@pytest.fixture
def folder(tmp_path: Path, modal: Modal) -> Path:
    """An environment folder that stands on an image of the registry."""
    root = tmp_path / "small_env"
    root.mkdir()
    (root / "openenv.yaml").write_text("name: small_env\nport: 8000\n")
    (root / ".dockerignore").write_text("*.log\n")
    (root / "noise.log").write_text("never uploaded")
    (root / "data").mkdir()
    (root / "data" / "words.txt").write_text("from the folder")
    (root / "run.sh").write_text("#!/bin/sh\nexec python3 -c 'import sys'\n")
    (root / "run.sh").chmod(0o755)
    (root / "Dockerfile").write_text(
        f"FROM {modal.engine.image('light')}\n"
        "ENV MARK=built\nWORKDIR /app\nCOPY . /app\n"
        "RUN echo building here && test -x run.sh && test ! -e noise.log && cat data/words.txt > made.txt\n"
    )
    return root


def spec_of(folder: Path, **fields: Any) -> SandboxSpec:
    labels = {"oe-install": "t", "oe-key": "oe-00000000-00000000f01d"}
    return SandboxSpec(image=str(folder), labels=labels, **fields)


async def test_a_folder_is_uploaded_built_and_launched(modal: Modal, folder: Path) -> None:
    options = {"keep_openenv": True}
    provider, lines = await modal.provider(**options), list[str]()
    spec = spec_of(folder)
    prepared = await provider.prepare(spec, parse(str(folder)), on_log=lines.append)
    assert prepared.owned
    assert any("building here" in line for line in lines), lines
    uploaded = modal.names().count("MountPutFile")
    assert uploaded >= 3
    assert b"never uploaded" not in modal.face.store.files.values()
    again = await provider.prepare(spec, parse(str(folder)), on_log=lines.append)
    assert (again.ref, modal.names().count("MountPutFile")) == (prepared.ref, uploaded)
    assert prepared.ref in [kept.ref for kept in await provider.list_prepared()]
    from openenv_providers.modal import ModalProvider

    async with launch(str(folder), provider=ModalProvider, options=options) as env:
        seen = (await env.reset()).observation
        assert (seen["mark"], seen["cwd"], seen["starts"]) == ("built", "/app", 1)
        assert await env.sandbox.read("/app/made.txt") == b"from the folder"
    await provider.drop(prepared)
    await provider.drop(prepared)
    with pytest.raises(ImageError, match="no image"):
        await (await modal.provider()).images.get(prepared.ref)
    await provider.aclose()


async def test_a_large_file_goes_by_the_blob_store(modal: Modal, folder: Path) -> None:
    data = bytes(range(256)) * 20_000
    (folder / "large.bin").write_bytes(data)
    with (folder / "Dockerfile").open("a") as file:
        file.write("RUN wc -c < large.bin\n")
    provider, lines = await modal.provider(keep_openenv=True), list[str]()
    await provider.prepare(spec_of(folder), parse(str(folder)), on_log=lines.append)
    assert "BlobCreate" in modal.names()
    assert str(len(data)) in "\n".join(lines)
    await provider.aclose()


async def test_waiters_share_one_build(modal: Modal, folder: Path) -> None:
    from openenv_providers.modal import ModalProvider

    from openenv_sandbox import prepare

    provider = await asyncio.to_thread(ModalProvider, {"keep_openenv": True})
    image, spec = parse(str(folder)), spec_of(folder)
    made = await asyncio.gather(*(prepare.prepare(provider, spec, image, on_log=lambda line: None) for _ in range(5)))
    assert len({one.ref for one in made}) == 1
    assert modal.names().count("MountGetOrCreate") == 1
    assert len([b for b in modal.face.store.builds.values() if any("building here" in line for line in b.lines)]) == 1
    await provider.aclose()


async def test_the_running_openenv_goes_in(modal: Modal, folder: Path) -> None:
    provider, lines = await modal.provider(), list[str]()
    prepared = await provider.prepare(spec_of(folder), parse(str(folder)), on_log=lines.append)
    build = modal.face.store.builds[prepared.ref]
    assert any(line.startswith("=> COPY .openenv-install/install.sh") for line in build.lines) or any(
        ".openenv-install/install.sh" in line for line in lines
    )
    assert any("openenv 0.11" in line for line in lines), lines[-5:]
    await provider.aclose()


async def test_a_failing_build_tells_its_log(modal: Modal, folder: Path) -> None:
    with (folder / "Dockerfile").open("a") as file:
        file.write("RUN echo about to fail >&2; exit 3\n")
    provider = await modal.provider(keep_openenv=True)
    with pytest.raises(BuildError) as caught:
        await provider.prepare(spec_of(folder), parse(str(folder)), on_log=lambda line: None)
    assert "about to fail" in caught.value.log
    assert "im-" in caught.value.message
    await provider.aclose()


async def test_local_files_of_add_are_refused_before_anything_is_sent(modal: Modal, folder: Path) -> None:
    with (folder / "Dockerfile").open("a") as file:
        file.write("ADD --chown=1:1 data /data\n")
    provider = await modal.provider(keep_openenv=True)
    with pytest.raises(BuildError, match="line 6: modal"):
        await provider.prepare(spec_of(folder), parse(str(folder)), on_log=lambda line: None)
    assert modal.names() == []
    await provider.aclose()


async def test_a_private_registry_takes_the_login(modal: Modal) -> None:
    provider = await modal.provider()
    image = parse(modal.engine.image("private/light"))
    spec = modal.spec("private/light")
    with pytest.raises(ImageError, match="denied"):
        await provider.prepare(spec, image, on_log=lambda line: None)
    login = RegistryAuth(username=LOGIN[0], password=LOGIN[1])
    prepared = await provider.prepare(spec.model_copy(update={"registry_auth": login}), image, on_log=lambda line: None)
    assert modal.face.store.get(prepared.ref).cmd
    await provider.aclose()


async def test_a_secret_of_the_workspace_logs_in(modal: Modal) -> None:
    secret = modal.face.store.mint("st")
    modal.face.store.secrets[secret] = {"REGISTRY_USERNAME": LOGIN[0], "REGISTRY_PASSWORD": LOGIN[1]}
    modal.face.store.named["my-registry"] = secret
    provider = await modal.provider(registry_secret="my-registry")
    prepared = await provider.prepare(
        modal.spec("private/light"), parse(modal.engine.image("private/light")), on_log=lambda line: None
    )
    assert modal.face.store.get(prepared.ref).cmd
    await provider.aclose()


async def test_an_image_that_does_not_exist(modal: Modal) -> None:
    provider = await modal.provider()
    name = f"{modal.engine.registry}/nobody:1"
    with pytest.raises(ImageError, match="manifest unknown"):
        await provider.prepare(SandboxSpec(image=name), parse(name), on_log=lambda line: None)
    for text in ("template:im-0000000000000000000000", "snapshot:im-0000000000000000000000"):
        with pytest.raises(ImageError, match="no image im-0"):
            await provider.prepare(SandboxSpec(image=text), parse(text), on_log=lambda line: None)
    await provider.aclose()


async def test_a_command_replaces_entrypoint_and_cmd(modal: Modal) -> None:
    provider = await modal.provider()
    own = await modal.create(provider, "user-env")
    box = modal.box(own)
    # CMD is told, which follows the ENTRYPOINT: older image builders would sleep without it.
    assert box.data["asked"] == box.image.cmd != ()
    assert box.data["argv"] == (*box.image.entrypoint, *box.image.cmd)
    given = await modal.create(provider, "user-env", command=("/bin/sh", "-c", "exec sleep 300"))
    box = modal.box(given)
    assert box.data["argv"] == ("/bin/sh", "-c", "exec sleep 300")
    plain = await modal.create(provider, "light", command=("/bin/sh", "-c", "exec sleep 300"))
    assert modal.box(plain).image.ref != box.image.ref
    layers = [line for build in modal.face.store.builds.values() for line in build.lines if "ENTRYPOINT" in line]
    assert layers == ["=> ENTRYPOINT []\n"], "one layer for the image that has an ENTRYPOINT, none for the other"
    for sandbox in (own, given, plain):
        await provider.delete(sandbox.ref)
    await provider.aclose()


async def test_a_snapshot_boots_without_the_secrets(modal: Modal) -> None:
    provider = await modal.provider()
    first = await modal.create(provider, secrets={"MARK": "s3kret-value"})
    box = modal.box(first)
    modal.engine.call(box.write("/kept", b"kept"))
    kept = await first.snapshot()
    assert (kept.owned, kept.image) == (True, first._config)  # type: ignore[attr-defined]
    spec = SandboxSpec(image=f"snapshot:{kept.ref}", labels={"oe-key": "oe-00000000-00000000beef"})
    again = await provider.create(
        await provider.prepare(spec, parse(spec.image), on_log=print), spec, key="oe-00000000-00000000beef"
    )
    assert modal.engine.call(modal.box(again).read("/kept")) == b"kept"
    assert "MARK" not in modal.box(again).env
    other = await modal.provider()
    assert (await other.prepare(spec, parse(spec.image), on_log=print)).ref == kept.ref
    await other.aclose()
    for sandbox in (first, again):
        await provider.delete(sandbox.ref)
    await provider.drop(kept)
    await provider.aclose()
