"""Keeping secrets out of every text that leaves the library: logs, errors, events, reprs, configuration listings.

Two rules find a secret: its value was registered (6 characters or more), or the name it stands under says so.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

MASK = "***"
SHORTEST = 6
"""Shorter values are words that occur by chance; masking them would garble every text."""

_NAME_PARTS = frozenset(
    "key keys apikey apikeys accesskey secretkey privatekey token tokens secret secrets password passwords passwd pwd "
    "passphrase credential credentials authorization cookie auth bearer".split()
)
_SPLIT_NAME = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_OWN_KEY = re.compile(r"oe-[0-9a-f]{8}-[0-9a-f]{12}\Z")

_USERINFO = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/\s?#@\"'<>]+@", re.IGNORECASE)
_QUERY = re.compile(r"(?P<name>[?&;][A-Za-z0-9_.~%-]+)=(?P<value>[^&#\s\"'<>]+)")
_BEARER = re.compile(r"\b(?P<kind>Bearer|Basic|Token)\s+(?P<value>[A-Za-z0-9._~+/=-]{6,})", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?P<name>\b[A-Za-z0-9_-]*(?:api[_-]?key|access[_-]?key|secret|token|password|passwd|passphrase|authorization|_key)"
    r"\b)(?P<sep>[\"']?\s*[=:]\s*(?:b?[\"'])?)(?P<value>[^\s\"',;&}\])]{6,})",
    re.IGNORECASE,
)

# CSI, OSC (ended by BEL or ST), the other string sequences, and two-character escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b]*(?:\x1b\\)?|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")

_STANDARD_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def clean(text: str) -> str:
    """``text`` without escape sequences, control characters and bidirectional overrides; newlines and tabs stay.

    Output of a sandbox is written by strangers: shown raw, it can rewrite what the terminal shows.
    """
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("", text)


def is_secret_name(name: str) -> bool:
    """Whether a mapping key, variable or option called ``name`` holds a secret."""
    return any(part.lower() in _NAME_PARTS for part in _SPLIT_NAME.split(name))


class Redactor:
    """Registered secret values, and the masking of texts. Usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Counter[str] = Counter()
        self._pattern: re.Pattern[str] | None = None
        self._stale = False

    def register(self, *values: str | None) -> None:
        """Mask every value from now on, also in its URL-quoted, JSON-escaped and repr-escaped form.

        Values are counted: each call is undone by one `forget`. Empty and short values are ignored.
        """
        self._count(values, 1)

    def register_mapping(self, mapping: Mapping[str, Any]) -> None:
        """Register the values whose names say that they are secret, at any depth."""
        for name, value in mapping.items():
            if isinstance(value, Mapping):
                self.register_mapping(value)
            elif isinstance(value, str) and is_secret_name(str(name)):
                self.register(value)

    def forget(self, *values: str | None) -> None:
        """Undo one `register` of each value."""
        self._count(values, -1)

    @contextlib.contextmanager
    def registered(self, values: Iterable[str | None]) -> Iterator[None]:
        """Register ``values`` for the time of a block."""
        kept = tuple(values)
        self.register(*kept)
        try:
            yield
        finally:
            self.forget(*kept)

    def mask(self, text: str) -> str:
        """``text`` with secrets replaced by ``***``.

        Covers registered values, user information and secret parameters of URLs, authorization headers, and
        assignments (``API_KEY=…``, ``"token": "…"``).
        """
        pattern = self._compiled()
        if pattern is not None:
            text = pattern.sub(MASK, text)
        text = _USERINFO.sub(rf"\g<scheme>{MASK}@", text)
        text = _QUERY.sub(_mask_query, text)
        text = _BEARER.sub(rf"\g<kind> {MASK}", text)
        return _ASSIGNED.sub(_mask_assigned, text)

    def mask_value(self, name: str, value: Any) -> Any:
        """``value`` as it may be shown under ``name``; containers keep their shape."""
        if isinstance(value, Mapping):
            return {key: self.mask_value(str(key), item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mask_value(name, item) for item in value]
        if hasattr(value, "get_secret_value"):
            return MASK
        if isinstance(value, (str, bytes)) and value and is_secret_name(name) and not _harmless(value):
            return MASK
        return self.mask(value) if isinstance(value, str) else value

    def mask_mapping(self, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """``mapping`` as it may be shown."""
        return {key: self.mask_value(str(key), value) for key, value in mapping.items()}

    def mask_error(self, error: BaseException) -> BaseException:
        """Mask, in place, the texts of ``error`` and of every exception it leads to. Returns ``error``."""
        seen: set[int] = set()
        todo: list[BaseException | None] = [error]
        while todo:
            item = todo.pop()
            if item is None or id(item) in seen:
                continue
            seen.add(id(item))
            todo += [item.__cause__, item.__context__, *getattr(item, "exceptions", ())]
            # Some classes of other libraries refuse assignment; their text stays reachable only through this chain.
            with contextlib.suppress(Exception):
                item.args = tuple(self.mask(a) if isinstance(a, str) else a for a in item.args)
            # What an SDK's error is printed from may be any attribute of it.
            for name, value in list(vars(item).items()):
                with contextlib.suppress(Exception):
                    if isinstance(value, str):
                        setattr(item, name, self.mask(value))
                    elif isinstance(value, (list, tuple)):
                        setattr(item, name, type(value)(self.mask(v) if isinstance(v, str) else v for v in value))
        return error

    def mask_record(self, record: logging.LogRecord) -> None:
        """Mask, in place, the message, the traceback and the extra fields of a log record."""
        try:
            text = record.getMessage()
        except Exception:
            return  # a wrong format string: the handler reports it
        masked = self.mask(text)
        if masked != text:
            record.msg, record.args = masked, ()
        if record.exc_info and record.exc_info[0] is not None:
            raw = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            shown = self.mask(raw)
            if shown != raw:
                record.exc_info, record.exc_text = None, shown
        for name, value in list(vars(record).items()):
            if name not in _STANDARD_RECORD:
                setattr(record, name, self.mask_value(name, value))

    def _count(self, values: Iterable[str | None], by: int) -> None:
        with self._lock:
            for value in values:
                if value is None or len(value) < SHORTEST:
                    continue
                self._values[value] += by
                if self._values[value] <= 0:
                    del self._values[value]
                self._stale = True

    def _compiled(self) -> re.Pattern[str] | None:
        if self._stale:
            with self._lock:
                forms = {form for value in self._values for form in _forms(value)}
                # The longest first: a value that contains another is masked as a whole.
                ordered = sorted(forms, key=len, reverse=True)
                self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
                self._stale = False
        return self._pattern


def _forms(value: str) -> Iterator[str]:
    yield value
    yield quote(value, safe="")
    yield quote(value)
    yield json.dumps(value)[1:-1]
    yield repr(value)[1:-1]
    # A private key is printed line by line as often as in one piece.
    yield from (line for line in value.splitlines() if len(line) >= 16)


def _harmless(value: str | bytes) -> bool:
    """Our own keys, and counts such as MAX_TOKENS=4096, are no secrets although their names say key and tokens."""
    if isinstance(value, bytes):
        return False
    return bool(_OWN_KEY.match(value)) or (value.isdecimal() and len(value) < SHORTEST)


def _mask_query(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    return f"{name}={MASK}" if is_secret_name(name[1:]) and not _harmless(value) else match[0]


def _mask_assigned(match: re.Match[str]) -> str:
    # "bad token: unauthorized" is prose; "token: 4f6e…" and '"token": "…"' are not.
    prose = ":" in match["sep"] and not any(c in "\"'" for c in match["sep"]) and match["value"].isalpha()
    if prose or _harmless(match["value"]):
        return match[0]
    return f"{match['name']}{match['sep']}{MASK}"


# ------------------------------------------------------------------------------------------- the process's own

REDACTOR = Redactor()
_LAYERS = (
    "openenv",
    *(f"openenv.{n}" for n in ("launch", "wire", "server", "client", "journal", "config", "provider")),
)


class RedactingFilter(logging.Filter):
    """Masks every record it sees; drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask ``record``."""
        REDACTOR.mask_record(record)
        return True


class _RedactingHandler(logging.Handler):
    """Masks the records of every descendant on their way up: a filter of a logger is not asked about those."""

    def handle(self, record: logging.LogRecord) -> bool:
        REDACTOR.mask_record(record)
        # Being a handler, this one would silence warnings where no logging is configured.
        if logging.lastResort is not None and record.levelno >= logging.lastResort.level and not _has_other(record):
            logging.lastResort.handle(record)
        return True


def _has_other(record: logging.LogRecord) -> bool:
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        if any(not isinstance(handler, _RedactingHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def install(*names: str) -> None:
    """Put the masking on the ``openenv`` loggers, and on ``names`` (``openenv.provider.docker``). Idempotent."""
    root = logging.getLogger("openenv")
    if not any(isinstance(handler, _RedactingHandler) for handler in root.handlers):
        root.addHandler(_RedactingHandler())
    for name in (*_LAYERS, *names):
        logger = logging.getLogger(name)
        if not any(isinstance(item, RedactingFilter) for item in logger.filters):
            logger.addFilter(RedactingFilter())


def register(*values: str | None) -> None:
    """Mask ``values`` everywhere in this process from now on."""
    install()
    REDACTOR.register(*values)


def forget(*values: str | None) -> None:
    """Undo one `register` of each value."""
    REDACTOR.forget(*values)


def mask(text: str) -> str:
    """``text`` without secrets, by the process's `Redactor`."""
    return REDACTOR.mask(text)


def mask_error(error: BaseException) -> BaseException:
    """``error`` itself, its texts masked in place."""
    return REDACTOR.mask_error(error)
