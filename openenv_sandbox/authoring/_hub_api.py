"""The Hugging Face hub, with its errors as ours. Needs the extra ``hub``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import (
    AuthError,
    BrokenExtraError,
    ConfigError,
    MissingExtraError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pydantic import SecretStr

    from openenv_sandbox.authoring.hub import Push, Pushed

ASK_S = 60.0
"""How long the hub may take to answer, in seconds."""
_LOGIN = "hf auth login, or export HF_TOKEN=… with a token that may write"


class Hub:
    """The hub, with its errors as ours.

    Args:
        login: Whether a token is needed; without, it is used where there is one.
        token: Instead of the one that is logged in.
    """

    def __init__(self, *, login: bool = True, token: str | None = None) -> None:
        try:
            import huggingface_hub
        except ModuleNotFoundError as error:
            if error.name != "huggingface_hub":
                raise BrokenExtraError(f"huggingface_hub does not import: {error}") from error
            raise MissingExtraError("the hub's client is not installed", hint="pip install 'openenv[hub]'") from error
        self._token = token or huggingface_hub.get_token()
        if not self._token and login:
            raise AuthError("there is no token for the Hugging Face hub", hint=_LOGIN)
        from openenv_sandbox import redact

        if self._token:
            redact.register(self._token)
        self._lib = huggingface_hub
        self._api = huggingface_hub.HfApi(token=self._token)

    def page(self, repo_id: str) -> str:
        """The address of a Space's page."""
        return f"{self._api.endpoint}/spaces/{repo_id}"

    def user(self) -> str:
        """Name of the account."""
        with self._told("the token was not accepted"):
            return str(self._api.whoami()["name"])

    def find(self, repo_id: str) -> list[str] | None:
        """The files of a Space; None where there is none. Raises ConfigError where it is no Space with a Dockerfile."""
        try:
            with self._told(f"looking for {repo_id}"):
                info = self._api.space_info(repo_id, timeout=ASK_S)
        except NotFound:
            return None
        if info.sdk not in (None, "docker"):
            raise ConfigError(
                f"the name {repo_id} is taken by a Space of another kind ({info.sdk})",
                hint="choose another: --repo-id owner/name",
            )
        return [one.rfilename for one in info.siblings or ()]

    def commit(self, repo_id: str, revision: str | None) -> str | None:
        """The commit of a Space's branch, tag or commit; None where there is none."""
        try:
            with self._told(f"looking for {repo_id}"):
                return str(self._api.space_info(repo_id, revision=revision, timeout=ASK_S).sha)
        except NotFound:
            return None

    def download(self, repo_id: str, commit: str, target: Path) -> None:
        """Every file of a Space at one commit, into a folder."""
        with self._told(f"fetching {repo_id}"):
            self._api.snapshot_download(
                repo_id, repo_type="space", revision=commit, local_dir=target, etag_timeout=ASK_S
            )

    def push(self, plan: Pushed, files: Mapping[str, Path], wish: Push, on_log: Callable[[str], None]) -> str:
        """Do it; the address of the Space, or of the pull request."""
        secrets = {name: value.get_secret_value() for name, value in wish.secrets.items()}
        repo_id = plan.repo_id
        if plan.created:
            on_log(f"creating {repo_id}")
            with self._told(f"creating {repo_id}"):
                self._api.create_repo(
                    repo_id,
                    repo_type="space",
                    space_sdk="docker",
                    private=wish.private,
                    space_hardware=wish.hardware,  # type: ignore[arg-type]  # names the hub does not know it refuses
                    space_secrets=[{"key": name, "value": value} for name, value in secrets.items()],
                    space_variables=[{"key": name, "value": value} for name, value in wish.variables.items()],
                )
        try:
            on_log(f"uploading {len(files)} files")
            url = self._commit(plan, files, wish)
            if not plan.created:
                self._settings(repo_id, wish, secrets)
        except BaseException as error:
            if plan.created:
                self._take_back(repo_id, error)
            raise
        return url

    def _commit(self, plan: Pushed, files: Mapping[str, Path], wish: Push) -> str:
        operations: list[Any] = [self._lib.CommitOperationAdd(name, path) for name, path in sorted(files.items())]
        operations += [self._lib.CommitOperationDelete(name) for name in plan.deleted]
        with self._told(f"pushing to {plan.repo_id}"):
            done = self._api.create_commit(
                plan.repo_id,
                operations,
                commit_message=wish.message,
                repo_type="space",
                create_pr=wish.create_pr,
            )
        return str(done.pr_url) if wish.create_pr and done.pr_url else plan.url

    def _settings(self, repo_id: str, wish: Push, secrets: Mapping[str, str]) -> None:
        if wish.create_pr:  # a pull request changes files alone
            return
        for name, value in wish.variables.items():
            with self._told(f"the files were pushed; setting the variable {name}"):
                self._api.add_space_variable(repo_id, name, value)
        for name, value in secrets.items():
            with self._told(f"the files were pushed; setting the secret {name}"):
                self._api.add_space_secret(repo_id, name, value)
        if wish.hardware is not None:
            with self._told(f"the files were pushed; asking for {wish.hardware}"):
                self._api.request_space_hardware(repo_id, wish.hardware)  # type: ignore[arg-type]

    def _take_back(self, repo_id: str, error: BaseException, kind: str = "space") -> None:
        from openenv_sandbox.creating import note

        try:
            self._api.delete_repo(repo_id, repo_type=kind, missing_ok=True)
        except Exception as second:
            note(error, f"the new {kind} {repo_id} could not be deleted again: {second}")

    def push_dataset(self, repo_id: str, files: Mapping[str, Path], private: bool, message: str) -> str:
        """Create or update a data set; its address."""
        operations: list[Any] = [self._lib.CommitOperationAdd(name, path) for name, path in sorted(files.items())]
        try:
            with self._told(f"looking for {repo_id}"):
                self._api.dataset_info(repo_id, timeout=ASK_S)
            created = False
        except NotFound:
            with self._told(f"creating {repo_id}"):
                self._api.create_repo(repo_id, repo_type="dataset", private=private)
            created = True
        try:
            with self._told(f"pushing to {repo_id}"):
                self._api.create_commit(repo_id, operations, commit_message=message, repo_type="dataset")
        except BaseException as error:
            if created:
                self._take_back(repo_id, error, "dataset")
            raise
        return f"{self._api.endpoint}/datasets/{repo_id}"

    def fork(
        self,
        source: str,
        target: str,
        private: bool | None,
        hardware: str | None,
        variables: Mapping[str, str],
        secrets: Mapping[str, SecretStr],
    ) -> str:
        """Copy one Space to another name; the copy's address."""
        with self._told(f"copying {source} to {target}"):
            made = self._api.duplicate_repo(
                source,
                target,
                repo_type="space",
                private=private,
                space_hardware=hardware,  # type: ignore[arg-type]
                space_variables=[{"key": name, "value": value} for name, value in variables.items()],
                space_secrets=[{"key": name, "value": one.get_secret_value()} for name, one in secrets.items()],
            )
        return str(made)

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Errors of the library as ours."""
        try:
            yield
        except (self._lib.errors.RepositoryNotFoundError, self._lib.errors.RevisionNotFoundError) as error:
            raise NotFound(f"{doing}: there is no such Space, or this account may not see it") from error
        except self._lib.errors.HfHubHTTPError as error:
            raise _ours(doing, error) from error
        except ValueError as error:  # names that its client refuses by itself
            raise ConfigError(f"{doing}: {error}") from error
        except Exception as error:
            # Its HTTP library is httpx or a successor of that, depending on the version.
            if not isinstance(error, OSError) and not type(error).__module__.startswith("httpx"):
                raise
            raise ProviderUnavailable(
                f"{doing}: the hub at {self._api.endpoint} cannot be reached: {error or type(error).__name__}",
                retryable=True,
            ) from error


class NotFound(ProviderError):
    """There is no Space of that name, or this account may not see it."""


def _ours(doing: str, error: Any) -> OpenEnvError:
    status = getattr(error.response, "status_code", None)
    said = getattr(error, "server_message", None) or str(error).splitlines()[0]
    text = f"{doing}: the hub answers {status}: {said}"
    if status in (401, 403):
        return AuthError(text, hint=_LOGIN)
    if status == 409:
        return ConfigError(text, hint="the name is taken; choose another: --repo-id owner/name")
    if status in (400, 413, 422):
        return ConfigError(text)
    return ProviderError(text, retryable=status in (429, 500, 502, 503, 504))
