"""Filling the form as a person does, in Chromium."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.models import CallToolAction, CallToolObservation
from openenv_sandbox.server.web.app import create_web_interface_app
from tests.web.browser import fill, reset, served, step
from tests.web.worlds import Canvas, Draw, Forest, Grow, Studio, Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from tests.web.browser import Someone

pytestmark = pytest.mark.browser


@pytest.fixture
def studio() -> Iterator[str]:
    with served(create_web_interface_app(Studio, Draw, Canvas, env_name="studio_env")) as base:
        yield base


def echo(page: Page) -> dict[str, Any]:
    """The last action as the environment understood it."""
    lines = page.request.get(page.url.partition("?")[0] + "/export").text().splitlines()
    found: dict[str, Any] = json.loads(lines[-1])["observation"]["echo"]
    return found


def test_a_form_with_a_bit_of_everything(studio: str, someone: Callable[..., Someone]) -> None:
    """Mutation: leave nested objects out of what objectField reads"""
    page = someone(studio).page
    reset(page)
    form = page.locator("#fields")
    place = form.get_by_role("group", name="place")
    place.get_by_label("x").fill("3")
    shape = form.get_by_role("group", name="shape")
    shape.get_by_label("Kind of shape").select_option(label="Box")
    shape.get_by_label("width").fill("4.5")
    form.get_by_label("colour").select_option(label="blue")
    for number, word in enumerate(("one", "two"), 1):
        form.get_by_role("button", name="Add to tags").click()
        form.get_by_label(f"tags {number}").fill(word)
    form.get_by_label("label").fill("a name")
    amount = form.get_by_role("group", name="amount")
    amount.get_by_label("Kind of amount").select_option(label="str")
    amount.get_by_role("textbox").fill("many")
    form.get_by_label("filled").check()
    form.get_by_role("button", name="Add to corners").click()
    form.get_by_role("group", name="corners 1").get_by_label("x").fill("9")
    form.get_by_role("button", name="Add to extra").click()
    form.get_by_label("Key in extra").fill("depth")
    form.get_by_label("Value in extra").fill("7")
    step(page, 1)
    assert echo(page) == {
        "place": {"x": 3, "y": 2},
        "shape": {"kind": "box", "width": 4.5, "height": 1.0},
        "colour": "blue",
        "tags": ["one", "two"],
        "label": "a name",
        "amount": "many",
        "weight": None,
        "filled": True,
        "corners": [{"x": 9, "y": 2}],
        "extra": {"depth": 7},
        "reward": 1.0,
    }
    form.get_by_role("button", name="Remove from tags").first.click()
    form.get_by_role("checkbox", name="None").check()
    form.get_by_label("weight").fill("0.5")
    step(page, 2)
    changed = echo(page)
    assert (changed["tags"], changed["label"], changed["weight"]) == (["two"], None, 0.5)


def test_defaults_are_what_is_sent_when_nothing_is_touched(studio: str, someone: Callable[..., Someone]) -> None:
    page = someone(studio).page
    reset(page)
    fill(page, x=0, radius=1)
    step(page, 1)
    found = echo(page)
    assert (found["colour"], found["tags"], found["label"], found["amount"]) == ("green", [], None, 1)
    assert found["shape"] == {"kind": "circle", "radius": 1}


def test_the_servers_message_stands_beside_the_field(studio: str, someone: Callable[..., Someone]) -> None:
    """Mutation: show all messages at the end of the form"""
    from playwright.sync_api import expect

    page = someone(studio).page
    reset(page)
    place = page.locator("#fields").get_by_role("group", name="place")
    fill(page, x="three", radius=-1)
    page.get_by_role("button", name="Step", exact=True).click()
    x = place.get_by_label("x")
    expect(x).to_have_attribute("aria-invalid", "true")
    expect(x).to_be_focused()
    described = x.get_attribute("aria-describedby")
    assert described is not None
    texts = [page.locator(f"#{name}").inner_text() for name in described.split()]
    assert any("unable to parse string as an integer" in text for text in texts)
    radius = page.get_by_label("radius")
    expect(radius).to_have_attribute("aria-invalid", "true")
    box, message = radius.bounding_box(), page.get_by_text("Input should be greater than 0").bounding_box()
    assert box is not None
    assert message is not None
    assert 0 <= message["y"] - (box["y"] + box["height"]) < 12
    expect(place.get_by_label("y")).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#steps")).to_have_text("0")
    fill(page, x=3, radius=1)
    step(page, 1)
    expect(page.locator("[aria-invalid]")).to_have_count(0)
    expect(page.locator("#fields .errors:not(:empty)")).to_have_count(0)


def test_messages_of_a_union_are_those_of_the_chosen_kind(studio: str, someone: Callable[..., Someone]) -> None:
    from playwright.sync_api import expect

    page = someone(studio).page
    reset(page)
    fill(page, x=1, radius=1)
    amount = page.locator("#fields").get_by_role("group", name="amount")
    amount.get_by_role("textbox").fill("1.5")
    page.get_by_role("button", name="Step", exact=True).click()
    expect(amount.locator(".errors").last).to_have_text(
        "Input should be a valid integer, got a number with a fractional part"
    )


def test_an_action_as_json_and_back(studio: str, someone: Callable[..., Someone]) -> None:
    from playwright.sync_api import expect

    page = someone(studio).page
    reset(page)
    fill(page, x=4, radius=2)
    page.get_by_role("button", name="JSON").click()
    area = page.locator("#fields textarea")
    action = json.loads(area.input_value())
    assert action["place"] == {"x": 4, "y": 2}
    area.fill("{")
    page.get_by_role("button", name="Step", exact=True).click()
    expect(page.locator("#fields .errors").first).to_contain_text("This is not JSON")
    area.fill(json.dumps({**action, "tags": ["json"]}))
    step(page, 1)
    assert echo(page)["tags"] == ["json"]
    page.get_by_role("button", name="JSON").click()
    assert page.get_by_label("tags 1").input_value() == "json"


def test_a_model_that_contains_itself(someone: Callable[..., Someone]) -> None:
    """Mutation: start a union with its first kind"""
    with served(create_web_interface_app(Forest, Grow, Canvas)) as base:
        person = someone(base)
        page = person.page
        reset(page)
        assert page.get_by_label("Kind of left").locator("option:checked").all_inner_texts() == ["Place"]
        left = page.locator("#fields").get_by_role("group", name="left").first
        left.get_by_label("x").fill("4")
        step(page, 1)
        assert echo(page) == {"tree": {"left": {"x": 4, "y": 2}, "right": None}}
        page.get_by_label("Kind of right").select_option(label="Branch")
        assert page.get_by_label("Kind of left").count() == 2
        person.leave()


def test_arguments_of_reset(studio: str, someone: Callable[..., Someone]) -> None:
    from playwright.sync_api import expect

    page = someone(studio).page
    page.get_by_text("Options of the reset").click()
    page.get_by_label("seed").fill("17")
    page.get_by_label("difficulty").select_option(label="hard")
    reset(page)
    expect(page.locator("#state")).to_contain_text("episode-17")
    expect(page.locator("#state")).to_contain_text("hard")


def test_an_offered_action_is_one_click(studio: str, someone: Callable[..., Someone]) -> None:
    from playwright.sync_api import expect

    page = someone(studio).page
    reset(page)
    page.get_by_role("button", name="A circle").click()
    expect(page.locator("#steps")).to_have_text("1")
    expect(page.locator("#total")).to_have_text("0.5")


def test_tools_are_chosen_and_called(someone: Callable[..., Someone]) -> None:
    """Mutation: send the arguments of a tool as the action itself"""
    from playwright.sync_api import expect

    with served(create_web_interface_app(Toolbox, CallToolAction, CallToolObservation)) as base:
        person = someone(base)
        page = person.page
        expect(page.get_by_label("Tool", exact=True).locator("option")).to_have_text(["add", "fail"])
        reset(page)
        a = page.locator("#fields").get_by_label("a").first
        a.fill("five")
        step(page, 1)
        expect(a).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_text("Input should be a valid integer").first).to_be_visible()
        a.fill("5")
        step(page, 2)
        expect(page.locator("#observation")).to_contain_text("7")
        expect(page.locator("#history")).to_contain_text("add(a=5, b=2)")
        page.get_by_label("Tool", exact=True).select_option(label="fail")
        step(page, 3)
        expect(page.locator("#observation .failed")).to_contain_text("no luck")
