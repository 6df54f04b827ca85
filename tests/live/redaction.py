"""What is taken out of a cassette before it is written: credentials, tokens, cookies, variables, ids of the account."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

GONE = "REDACTED"
# Names of headers, fields and query parameters whose values are secret or say whose account it is.
SECRET = re.compile(
    r"token|secret|password|passwd|api[-_]?key|access[-_]?key|authorization|cookie|signature|credential|jwt|\bsig\b"
    r"|subscription|tenant|organi[sz]ation|resource[-_]?group|e-?mail|user[-_]?id|request[-_]?id|correlation|trace",
    re.IGNORECASE,
)
VARIABLES = ("env", "envs", "envVars", "environment", "environmentVariables", "environment_variables")
LOGIN_HOSTS = ("login.microsoftonline.com", "169.254.169.254")
# Azure names subscription and group in its paths.
_PATHS = re.compile(r"(?i)(/(?:subscriptions|resourceGroups|sandboxGroups)/)([^/?]+)")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


class Redactor:
    """Hooks for vcrpy. Values met under a secret name are remembered and taken out wherever else they stand.

    Args:
        known: Values that are secret whatever they are called, such as those of the vendor's variables.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = {value for value in known if len(value) > 5}
        self._names: dict[str, str] = {}

    @classmethod
    def of_environment(cls, names: Iterable[str]) -> Redactor:
        """With the values of these variables."""
        return cls(os.environ[name] for name in names if os.environ.get(name))

    def request(self, request: Any) -> Any:
        """One request; None for what is not recorded at all."""
        if urlsplit(request.uri).hostname in LOGIN_HOSTS:
            return None
        request.uri = self.url(request.uri)
        for name in list(request.headers):
            if SECRET.search(name):
                self._learn(request.headers[name])
                request.headers[name] = GONE
        if request.body:
            request.body = self.body(request.body)
        return request

    def response(self, response: dict[str, Any]) -> dict[str, Any]:
        """One response, as vcrpy keeps it."""
        headers = {}
        for name, values in response.get("headers", {}).items():
            if SECRET.search(name):
                continue
            headers[name] = [self.text(value) for value in values] if isinstance(values, list) else self.text(values)
        response["headers"] = headers
        body = response.get("body")
        if isinstance(body, dict) and body.get("string"):
            body["string"] = self.body(body["string"])
        elif response.get("content"):
            response["content"] = self.body(response["content"])
        if "url" in response:
            response["url"] = self.url(str(response["url"]))
        return response

    def url(self, url: str) -> str:
        """Without secret parameters, and without the account in the path."""
        parts = urlsplit(url)
        query = []
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if SECRET.search(name):
                self._learn(value)
            query.append((name, GONE if SECRET.search(name) else self.text(value)))
        path = _PATHS.sub(lambda found: found[1] + self._standin(found[2]), parts.path)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], self.text(path), urlencode(query), ""))

    def body(self, data: Any) -> Any:
        """Without secret fields, as the type it came as; what is no JSON loses the values that are known."""
        raw = isinstance(data, (bytes, bytearray))
        try:
            text = bytes(data).decode() if raw else str(data)
        except UnicodeDecodeError:
            for value in self._known:
                data = bytes(data).replace(value.encode(), GONE.encode())
            return data
        try:
            text = json.dumps(self.value(json.loads(text)))
        except ValueError:
            text = re.sub(r'(?i)("[^"]*(?:token|secret|password|key)[^"]*"\s*:\s*)"[^"]*"', rf'\1"{GONE}"', text)
        text = self.text(text)
        return text.encode() if raw else text

    def value(self, value: Any, name: str = "") -> Any:
        """A part of a JSON document."""
        if isinstance(value, dict):
            if name in VARIABLES:
                self._learn(*value.values())
                return dict.fromkeys(value, GONE)
            return {key: self.value(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner, name) for inner in value]
        if isinstance(value, str) and name and SECRET.search(name):
            self._learn(value)
            return GONE if value else value
        return value

    def text(self, text: str) -> str:
        """Without anything that is known to be secret; account ids become the same stand-in everywhere."""
        for value in sorted(self._known, key=len, reverse=True):
            text = text.replace(value, GONE)
        return _UUID.sub(lambda found: self._standin(found[0]), text)

    def _learn(self, *values: Any) -> None:
        for value in values:
            if isinstance(value, str):
                word = value.removeprefix("Bearer ").removeprefix("Basic ").strip()
                if len(word) > 5 and word != GONE:
                    self._known.add(word)

    def _standin(self, name: str) -> str:
        if name.startswith("00000000-"):
            return name
        return self._names.setdefault(name, f"00000000-0000-0000-0000-{len(self._names) + 1:012d}")


def configuration(redactor: Redactor) -> dict[str, Any]:
    """For pytest-recording's ``vcr_config``."""
    return {
        "before_record_request": redactor.request,
        "before_record_response": redactor.response,
        "decode_compressed_response": True,
        "match_on": ("method", "path"),
    }
