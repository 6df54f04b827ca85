from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from pydantic import Field, SecretStr

from openenv_sandbox import config, registry
from openenv_sandbox.errors import ConfigError, TrustError, UnknownProvider
from openenv_sandbox.options import ProviderOptions, trusted
from openenv_sandbox.testing.fake import FakeProvider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Options(ProviderOptions):
    region: str = "us"
    sizes: dict[str, int] = Field(default_factory=dict)
    pat: SecretStr | None = None
    base_url: str = trusted("https://vendor")


class UseComputer(FakeProvider):
    name = "use-computer"
    Options: ClassVar[Any] = Options


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with registry.registered(UseComputer):
        yield


class Files:
    def __init__(self, tmp_path: Path, state_dir: Path) -> None:
        self.project = tmp_path / "repo"
        self.cwd = self.project / "deep" / "inside"
        self.cwd.mkdir(parents=True)
        self.own = state_dir / "config" / "openenv" / "openenv.toml"
        self.own.parent.mkdir(parents=True)

    def write(self, *, user: str = "", project: str = "", pyproject: str = "") -> None:
        for path, text in (
            (self.own, user),
            (self.project / "openenv.toml", project),
            (self.project / "pyproject.toml", pyproject),
        ):
            if text:
                path.write_text(text)

    def load(self, **kw: Any) -> config.Settings:
        return config.load(cwd=self.cwd, **kw)


@pytest.fixture
def files(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.delenv("OPENENV_BASE_IMAGE", raising=False)
    return Files(tmp_path, state_dir)


def test_nothing_configured_is_local(files: Files) -> None:
    settings = files.load()
    assert (settings.provider, settings.journal, settings.profile) == ("local", "on", None)
    assert (settings.spec_defaults, settings.options_for("use-computer"), settings.warnings) == ({}, {}, ())
    assert [(s.name, s.value, s.source) for s in settings.explain()] == [
        ("journal", "on", "default"),
        ("provider", "local", "default"),
    ]


USER = '[spec.timeouts]\ncreate = 1\nready = 1\nmargin = 1\nexec = 1\n[spec.env]\nA = "user"\n'
PROJECT = '[spec.timeouts]\ncreate = 2\nready = 2\nmargin = 2\n[spec.env]\nB = "project"\n'


def test_each_source_is_stronger_than_the_next(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(user=USER, project=PROJECT)
    monkeypatch.setenv("OPENENV_SPEC__TIMEOUTS__CREATE", "3")
    monkeypatch.setenv("OPENENV_SPEC__TIMEOUTS__READY", "3")
    monkeypatch.setenv("OPENENV_SPEC__ENV__Mixed_Case", "env")
    settings = files.load(arguments={"spec": {"timeouts": {"create": 4}}, "provider": None})
    assert settings.spec_defaults == {
        "timeouts": {"create": 4, "ready": "3", "margin": 2, "exec": 1},
        "env": {"A": "user", "B": "project", "Mixed_Case": "env"},
    }
    sources = {setting.name: setting.source for setting in settings.explain()}
    assert sources["spec.timeouts.create"] == "argument"
    assert sources["spec.timeouts.ready"] == "OPENENV_SPEC__TIMEOUTS__READY"
    assert sources["spec.timeouts.margin"] == str(files.project / "openenv.toml")
    assert sources["spec.timeouts.exec"] == str(files.own)


def test_every_setting_has_a_variable(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OPENENV_PROVIDER": "use-computer",
        "OPENENV_JOURNAL": "off",
        "OPENENV_BASE_IMAGE": "base:1",
        "OPENENV_IMAGE__REGISTRY": "ghcr.io/me",
        "OPENENV_PROVIDERS__USE_COMPUTER__REGION": "eu",
        "OPENENV_PROVIDERS__USE_COMPUTER__SIZES": '{"small": 1}',
        "OPENENV_SPEC__PORTS": '[{"number": 9000}]',
        "OPENENV_PROVIDERS__K8S__CONTEXT": "",
    }.items():
        monkeypatch.setenv(name, value)
    settings = files.load()
    assert (settings.provider, settings.journal) == ("use-computer", "off")
    assert (settings.base_image, settings.image_registry) == ("base:1", "ghcr.io/me")
    assert settings.options_for("use-computer") == {"region": "eu", "sizes": {"small": 1}}
    assert settings.spec_defaults == {"ports": [{"number": 9000}]}
    assert settings.warnings == ()


def test_the_nearest_project_counts_and_pyproject_works_too(files: Files) -> None:
    files.write(pyproject='[project]\nname = "x"\n[tool.openenv]\nprovider = "docker"\n')
    assert files.load().provider == "docker"
    (files.project / "deep" / "openenv.toml").write_text('provider = "podman"\n')
    assert files.load().provider == "podman"
    (files.cwd / "pyproject.toml").write_text("this is [ not toml")  # somebody else's, and not about us
    assert files.load().provider == "podman"
    (files.cwd / "pyproject.toml").write_text("[tool.openenv]\nprovider = ")
    with pytest.raises(ConfigError, match="must be TOML"):
        files.load()
    (files.cwd / "pyproject.toml").write_text('[tool.openenv]\nprovider = "local"\n')
    (files.cwd / "openenv.toml").write_text("")
    with pytest.raises(ConfigError, match="has both"):
        files.load()


PROFILES = """
provider = "docker"
[spec.timeouts]
create = 1
[profiles.train]
provider = "modal"
[profiles.train.spec.timeouts]
create = 9
[profiles.train.providers.use-computer]
region = "eu"
"""


def test_a_profile_named_by_an_argument_is_stronger_than_variables(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(project=PROFILES)
    assert files.load().provider == "docker"
    monkeypatch.setenv("OPENENV_PROVIDER", "podman")
    for settings in (files.load(profile="train"), files.load(arguments={"provider": "train"})):
        assert (settings.provider, settings.profile) == ("modal", "train")
        assert settings.spec_defaults == {"timeouts": {"create": 9}}
        assert settings.options_for("use-computer") == {"region": "eu"}
    sources = {setting.name: setting.source for setting in settings.explain()}
    assert sources["provider"].endswith("openenv.toml [profiles.train]")
    monkeypatch.setenv("OPENENV_PROFILE", "train")
    settings = files.load()
    assert (settings.provider, settings.profile) == ("podman", "train")
    assert settings.spec_defaults == {"timeouts": {"create": 9}}
    monkeypatch.delenv("OPENENV_PROFILE")
    monkeypatch.setenv("OPENENV_PROVIDER", "train")
    assert files.load().provider == "modal"
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        files.load(profile="trian")


def test_the_users_profile_is_stronger_than_the_projects_base(files: Files) -> None:
    files.write(user='[profiles.mine]\nprovider = "podman"\n', project='provider = "docker"\n')
    assert files.load(profile="mine").provider == "podman"


@pytest.mark.parametrize("name", ["docker", "use-computer", "k8s", "modal"])
def test_a_name_is_a_profile_or_a_backend(name: str, files: Files) -> None:
    files.write(project=f'[profiles.{name}]\nprovider = "local"\n')
    with pytest.raises(ConfigError, match="cannot name a profile"):
        files.load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('providr = "x"', "providr is no setting; did you mean 'provider'"),
        ("[image]\nregstry = 'x'", "image.regstry is no setting; did you mean 'registry'"),
        ("[profiles.a]\nprovidr = 'x'", "profiles.a.providr is no setting; did you mean 'provider'"),
        ("[spec.timeouts]\ncraete = 1", "spec.timeouts has no 'craete'; did you mean 'create'"),
        ("[spec]\nworkdri = '/x'", "no default 'workdri'; did you mean 'workdir'"),
        ("[spec]\nimage = 'x'", "no default 'image'"),
        ("[spec.timeouts]\ncreate = 'soon'", "create: Input should be a valid number"),
        ("[spec]\nisolation = 'lead'", "spec.isolation"),
        ("[providers.dokcer]\nx = 1", "did you mean 'docker'"),
        ("[spec.provider_options]\nbase_url = 'x'", "is for one call"),
        ("provider = 7", "Input should be a valid string"),
        ("journal = 'maybe'", "journal is one of"),
        ("[tool", "must be TOML"),
    ],
)
def test_what_means_nothing_is_an_error_with_the_nearest_match(text: str, message: str, files: Files) -> None:
    files.write(user=text)
    with pytest.raises(ConfigError, match=message):
        files.load()


def test_options_are_checked_where_they_are_used(files: Files) -> None:
    files.write(user='[providers.use-computer]\nregoin = "eu"\n')
    with pytest.raises(ConfigError, match="did you mean 'region'") as caught:
        files.load().options_for("use-computer")
    assert str(files.own) in str(caught.value)
    with pytest.raises(UnknownProvider):
        files.load().options_for("no-such-cloud")


def test_aliases_name_the_same_backend(files: Files) -> None:
    files.write(user='provider = "k8s"\n[providers.azure]\nx = 1\n')
    settings = files.load()
    assert settings.provider == "kubernetes"
    assert settings.provider_names() == {"kubernetes", "aca"}


def test_a_projects_file_cannot_redirect_keys(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(project='[providers.use-computer]\nbase_url = "https://evil"\nregion = "eu"\n')
    with pytest.raises(TrustError, match="decides where requests and keys go") as caught:
        files.load().options_for("use-computer")
    assert "OPENENV_PROVIDERS__USE_COMPUTER__BASE_URL" in str(caught.value)
    monkeypatch.setenv("OPENENV_PROVIDERS__USE_COMPUTER__BASE_URL", "https://mine")
    assert files.load().options_for("use-computer")["base_url"] == "https://mine"


def test_a_users_file_may(files: Files) -> None:
    files.write(user='[providers.use-computer]\nbase_url = "https://mine"\n')
    assert files.load().options_for("use-computer") == {"base_url": "https://mine"}


@pytest.mark.parametrize("text", ["[spec]\ntrust = true", "journal = 'off'", "[profiles.p.spec]\ntrust = true"])
def test_a_projects_file_vouches_for_nothing(text: str, files: Files) -> None:
    files.write(project=text)
    with pytest.raises(TrustError, match="only you can decide"):
        files.load()
    (files.project / "openenv.toml").unlink()
    files.write(user=text)
    files.load()


def test_variables_that_nobody_reads_are_warned_about(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENENV_PROVIDRE", "x")
    monkeypatch.setenv("OPENENV_PROVIDERS__DOKCER__HOST", "x")
    monkeypatch.setenv("OPENENV_SOMETHING_ELSE_ALTOGETHER", "x")
    for known in ("MODE", "AUTH_TOKEN", "ALLOWED_HOSTS", "CLIENT_MODE", "TRUST_REMOTE_CODE", "HARBOR_BUCKET"):
        monkeypatch.setenv(f"OPENENV_{known}", "x")
    warnings = files.load().warnings
    assert warnings == (
        "nothing reads OPENENV_PROVIDERS__DOKCER__HOST ('DOKCER' is no backend; did you mean 'DOCKER'?)",
        "nothing reads OPENENV_PROVIDRE; did you mean 'OPENENV_PROVIDER'?",
        "nothing reads OPENENV_SOMETHING_ELSE_ALTOGETHER",
    )
    assert [record.message for record in caplog.records] == list(warnings)


def test_listing_shows_no_secret(files: Files) -> None:
    """Values whose name, field type or section says secret are masked.

    Scenario: M01
    Mutation: explain() returns found.value, or masks by name only
    """
    files.write(
        user='[providers.use-computer]\npat = "sekret-canary"\n[spec.secrets]\nDB = "sekret-canary"\n'
        '[spec.env]\nFOO_API_KEY = "sekret-canary"\nURL = "https://u:sekret-canary@h/"\n'
    )
    shown = files.load().explain()
    assert "sekret-canary" not in repr(shown)
    assert {s.name: s.value for s in shown}["spec.env.URL"] == "https://***@h/"


def test_a_malformed_secret_is_not_repeated(files: Files) -> None:
    files.write(user="[spec.secrets]\nDB = ['sekret-canary']\n")
    with pytest.raises(ConfigError) as caught:
        files.load()
    assert "sekret-canary" not in str(caught.value)


def test_reading_nothing_loads_no_pydantic(tmp_path: Path) -> None:
    script = "import sys; from openenv_sandbox import config; config.load(); sys.exit('pydantic' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, timeout=60)
    assert run.returncode == 0
