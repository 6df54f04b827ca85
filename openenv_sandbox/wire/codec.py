"""Values to JSON bytes and back.

The quick way is orjson on the fields as they are. Only what it refuses (huge integers, keys that are not strings,
lone surrogates) is walked in Python, which also finds the name of the field that cannot travel.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from openenv_sandbox.errors import SerializationError

if TYPE_CHECKING:
    from pydantic import BaseModel

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY
_plain_fields: dict[type, tuple[str, ...] | None] = {}


class _NoWireForm(Exception):
    """Internal: the value has no wire form."""


def dumps(value: Any) -> bytes:
    """JSON of any value: NaN and infinities become null, bytes base64, models and dataclasses go by their own class.

    Raises:
        SerializationError: Something in it has no wire form; the message names the field and the type.
    """
    try:
        return orjson.dumps(value, default=_default, option=_OPTIONS)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return json.dumps(_walk(value, "", 0), separators=(",", ":")).encode()
    except RecursionError:
        raise SerializationError(
            "The value is nested too deeply or contains itself.", code="SERIALIZATION_ERROR"
        ) from None


def loads(data: bytes | bytearray | memoryview | str) -> Any:
    """Parse JSON; integers below ``-2**63`` or above ``2**64 - 1`` become floats.

    Raises:
        ValueError: It is not JSON; the text is that of the standard library's parser.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # NaN, lone surrogates and huge numbers are refused by orjson and sent by existing peers.
        text = data if isinstance(data, str) else bytes(data).decode("utf-8")
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a model, dataclass or mapping by name, as a new dict; nested values stay as they are.

    Raises:
        SerializationError: It has no fields.
    """
    try:
        fields = _fields(value)
    except _NoWireForm:
        fields = None
    if fields is None:
        raise SerializationError(
            f"A {type(value).__name__} is no model, dataclass or mapping.", code="SERIALIZATION_ERROR"
        )
    return fields


def _is_model(value: Any) -> bool:
    return hasattr(type(value), "__pydantic_fields__") and hasattr(value, "model_dump")


def _fields(value: Any) -> dict[str, Any] | None:
    cls = type(value)
    names = _plain_fields.get(cls)
    if names is not None:
        attributes = value.__dict__
        try:
            found = {name: attributes[name] for name in names}
        except KeyError:  # a field was deleted, or the object was made without validation
            found = {name: attributes[name] for name in names if name in attributes}
        extra = value.__pydantic_extra__
        if extra:
            found.update(extra)
        return found
    if _is_model(value):
        if cls not in _plain_fields:
            _plain_fields[cls] = _plain(cls)
            if _plain_fields[cls] is not None:
                return _fields(value)
        return _dump(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return None


def _plain(cls: type[BaseModel]) -> tuple[str, ...] | None:
    """Names of the fields, when the instance's ``__dict__`` says all; None when the class has its own way to dump."""
    from pydantic import BaseModel, RootModel
    from pydantic.functional_serializers import PlainSerializer, WrapSerializer

    decorators = cls.__pydantic_decorators__
    own = decorators.field_serializers or decorators.model_serializers or decorators.computed_fields
    config = cls.model_config
    if own or cls.model_dump is not BaseModel.model_dump or issubclass(cls, RootModel):
        return None
    if config.get("json_encoders") or config.get("serialize_by_alias") or any(k.startswith("ser_json") for k in config):
        return None
    for field in cls.model_fields.values():
        if field.exclude or getattr(field, "exclude_if", None) is not None:
            return None
        if any(isinstance(item, (PlainSerializer, WrapSerializer)) for item in field.metadata):
            return None
        if "Serializer(" in repr(field.annotation):
            return None
    return tuple(cls.model_fields)


def _dump(value: BaseModel) -> dict[str, Any]:
    from pydantic_core import PydanticSerializationError

    try:
        return value.model_dump(mode="json")
    except (PydanticSerializationError, UnicodeDecodeError):
        # An array or another foreign type inside: keep the class's own serializers, leave the rest to us.
        return value.model_dump()


def _default(value: Any) -> Any:
    """What orjson calls for a type it does not know; raising TypeError leads to the slow way."""
    fields = _fields(value)
    if fields is not None:
        return fields
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    try:
        return _leaf(value)
    except _NoWireForm as error:
        raise TypeError(str(error)) from None


def _leaf(value: Any) -> Any:
    """A value of a scalar or array type in plain data.

    Raises:
        _NoWireForm: It has none.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):  # of the scalars and sequences only subclasses come here
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, complex):
        raise _NoWireForm(type(value).__name__)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        plain = value.tolist()
        if type(plain) is not type(value) and not isinstance(plain, complex):
            return plain
        raise _NoWireForm(f"{type(value).__name__}[{value.dtype}]")
    if hasattr(value, "detach") and hasattr(value, "tolist"):  # a tensor
        return value.tolist()
    if type(value).__module__.startswith(("pathlib", "pydantic", "ipaddress")) or hasattr(value, "__fspath__"):
        return str(value)
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value)
    except (PydanticSerializationError, ValueError):
        raise _NoWireForm(type(value).__name__) from None


def _walk(value: Any, path: str, depth: int) -> Any:
    if depth > 250:
        raise RecursionError
    if value is None or value is True or value is False or type(value) is str or type(value) is int:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if type(value) in (list, tuple):
        return [_walk(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    fields = _fields(value)
    if fields is not None:
        if not isinstance(fields, dict):  # a root model
            return _walk(fields, path, depth + 1)
        return {_key(k, path): _walk(v, f"{path}.{k}" if path else str(k), depth + 1) for k, v in fields.items()}
    try:
        return _walk(_leaf(value), path, depth + 1)
    except _NoWireForm as error:
        where = f"Field '{path}'" if path else "The value"
        raise SerializationError(
            f"{where} has no wire form: {error}.",
            code="SERIALIZATION_ERROR",
            hint="Return a number, string, list, dict, array, model or dataclass there, or give it a field_serializer.",
        ) from None


def _key(key: Any, path: str) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return str(key)
    if isinstance(key, bool):
        return "true" if key else "false"
    if key is None:
        return "null"
    if isinstance(key, (int, float, date, datetime, UUID)) or type(key).__module__ == "numpy":
        return str(key)
    raise SerializationError(
        f"Field '{path}' has a key of type {type(key).__name__}, which has no wire form.", code="SERIALIZATION_ERROR"
    )
