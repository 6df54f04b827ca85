"""The import names: all there, the same objects as ours, and with the signatures that code relies on."""

from __future__ import annotations

import dataclasses
import inspect
from enum import Enum
from importlib import import_module
from typing import Any, get_origin

import pytest
from pydantic import BaseModel

from tests.adapters.listing import ANY, Name, names

ALL = names()
PRESENT = [name for name in ALL if name.absent is None]
ABSENT = [name for name in ALL if name.absent is not None]
pytestmark = pytest.mark.filterwarnings("ignore:openenv_core is now:DeprecationWarning")


def found(name: Name) -> Any:
    value: Any = import_module(name.module)
    first, *rest = name.path.split(".")
    try:
        value = getattr(value, first)
    except AttributeError:
        value = import_module(f"{name.module}.{first}")
    for part in rest:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", PRESENT, ids=str)
def test_a_name_is_there_with_its_signature_and_fields(name: Name) -> None:
    value = found(name)
    if name.parameters is not None:
        compare(name, value)
    if name.fields is not None:
        assert fields_of(value)[: len(name.fields)] == name.fields or set(name.fields) <= set(fields_of(value))


def compare(name: Name, value: Any) -> None:
    assert name.parameters is not None
    have = list(inspect.signature(value).parameters.values())
    if "." in name.path and not inspect.ismethod(value):
        have = have[1:]
    listed = list(name.parameters)
    for kind in ("POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL", "KEYWORD_ONLY", "VAR_KEYWORD"):
        mine = [p for p in have if p.kind.name == kind]
        theirs = [p for p in listed if p[1] == kind]
        if not kind.startswith("VAR"):
            assert [p.name for p in mine[: len(theirs)]] == [p[0] for p in theirs]
        for parameter, (_, _, default) in zip(mine, theirs, strict=False):
            if default == "empty":
                assert parameter.default is parameter.empty, parameter
            elif default != ANY:
                assert (parameter.default,) == default, parameter
            else:
                assert parameter.default is not parameter.empty, parameter
        assert len(mine) >= len(theirs)
        for further in mine[len(theirs) :]:
            assert kind.startswith("VAR") or further.default is not further.empty, f"{further} has no default"


def fields_of(value: Any) -> tuple[str, ...]:
    if issubclass(value, Enum):
        return tuple(value.__members__)
    if issubclass(value, BaseModel):
        return tuple(value.model_fields)
    return tuple(field.name for field in dataclasses.fields(value))


@pytest.mark.parametrize("name", [name for name in PRESENT if "." not in name.path], ids=str)
def test_a_name_is_our_object_wherever_it_is_imported_from(name: Name) -> None:
    value = found(name)
    home = getattr(value, "__module__", None)
    if get_origin(value) is not None or not (isinstance(value, type) or inspect.isfunction(value)):
        return
    assert str(home).startswith(("openenv_sandbox.", "openenv_adapters.")), home
    for other in PRESENT:
        if other.path == name.path and not (other.path == "Message" or other.module.startswith("openenv.core.harness")):
            assert found(other) is value, other


@pytest.mark.parametrize("name", ABSENT, ids=str)
def test_a_name_that_is_not_built_is_absent_rather_than_hollow(name: Name) -> None:
    with pytest.raises((ImportError, AttributeError)):
        found(name)


def test_every_name_left_out_is_in_the_documentation_with_its_reason() -> None:
    from tests.adapters.listing import FILE

    page = (FILE.parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    missing = [f"{name} ({name.absent})" for name in ABSENT if f"`{name}` | {name.absent}" not in page]
    assert not missing, "\n".join(missing)


def test_nothing_is_both_there_and_left_out() -> None:
    assert not {str(name) for name in PRESENT} & {str(name) for name in ABSENT}


@pytest.mark.parametrize("module", sorted({name.module for name in PRESENT}))
def test_star_imports_and_listings_resolve(module: str) -> None:
    target = import_module(module)
    for name in getattr(target, "__all__", ()):
        assert getattr(target, name) is not None
        assert name in dir(target)
    with pytest.raises(AttributeError):
        _ = target.no_such_name


def test_what_create_app_says_about_its_first_parameter() -> None:
    from openenv.core.env_server import create_app as short
    from openenv.core.env_server.http_server import create_app

    assert short is create_app
    annotation = str(next(iter(inspect.signature(create_app).parameters.values())).annotation)
    assert "Callable" in annotation
    assert "Environment" in annotation
    web = {"gradio_builder", "custom_tab_name", "custom_tab_primary", "show_default_tab", "title_override"}
    assert web <= set(inspect.signature(create_app).parameters)
