"""What the page shows, as a person sees it in Chromium."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.server.web.app import create_web_interface_app
from tests.web.browser import fill, reset, served, step
from tests.web.worlds import CANARY, Canvas, Draw, Hostile, Lonely, Poison, Poisoned, Studio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.web.browser import Someone

pytestmark = pytest.mark.browser

CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const back = (node) => {
    for (let here = node; here; here = here.parentElement) {
      const colour = rgb(getComputedStyle(here).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest(":disabled, [aria-disabled=true], .hidden, svg")) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(back(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const text = node.textContent.slice(0, 30);
    if (ratio < 4.5) bad.push(`${node.tagName} ${node.className} ${text}: ${ratio.toFixed(2)}`);
  }
  return bad;
}"""


@pytest.fixture
def studio() -> Iterator[str]:
    with served(create_web_interface_app(Studio, Draw, Canvas, env_name="studio_env")) as base:
        yield base


def test_the_reward_curve_has_the_rewards(studio: str, someone: Callable[..., Someone]) -> None:
    """Mutation: draw the curve from step counts"""
    from playwright.sync_api import expect

    page = someone(studio).page
    reset(page)
    fill(page, x=1, radius=1)
    for number, reward in enumerate((1, -0.5, 2.25), 1):
        fill(page, reward=reward)
        step(page, number)
    curve = page.locator("#chart").get_by_role("img")
    expect(curve).to_have_attribute("aria-label", "Reward of each step: 1, -0.5, 2.25")
    page.get_by_role("button", name="total", exact=True).click()
    expect(curve).to_have_attribute("aria-label", "Total reward after each step: 1, 0.5, 2.75")
    expect(page.locator("#total")).to_have_text("2.75")
    expect(page.locator("#chart circle")).to_have_count(3)


def test_pictures_arrays_and_long_text(studio: str, someone: Callable[..., Someone]) -> None:
    from playwright.sync_api import expect

    page = someone(studio).page
    reset(page)
    image = page.get_by_role("img", name="picture")
    expect(image).to_be_visible()
    assert image.evaluate("node => [node.naturalWidth, node.naturalHeight]") == [48, 32]
    drawn = page.get_by_role("img", name="array of 24 by 32, from 0 to 248")
    assert drawn.evaluate("node => [...node.getContext('2d').getImageData(31, 23, 1, 1).data]") == [248, 184, 0, 255]
    expect(page.get_by_role("img", name="60 numbers, from 0 to 4")).to_be_visible()
    expect(page.locator("#observation table.cells tr")).to_have_count(6)
    story = page.locator("#observation pre.text")
    assert len(story.inner_text()) < 800
    page.get_by_role("button", name="Show all 2,220 characters").click()
    assert len(story.inner_text()) > 2200
    page.get_by_role("button", name="Show less").click()
    assert len(story.inner_text()) < 800


def test_the_environments_html_has_its_styles_and_runs_no_script(studio: str, someone: Callable[..., Someone]) -> None:
    """Mutation: give the frame allow-scripts and serve it without a policy"""
    page = someone(studio).page
    reset(page)
    assert page.locator("#frame iframe").get_attribute("sandbox") == ""
    frame = page.frame_locator("#frame iframe")
    mark = frame.locator("#mark")
    assert mark.inner_text() == "Step 0, reward None"
    assert mark.evaluate("node => getComputedStyle(node).color") == "rgb(180, 30, 90)"
    assert frame.locator("body").get_attribute("data-ran") is None
    assert page.evaluate("window.pwned") is None


def test_two_people_do_not_see_each_other(studio: str, someone: Callable[..., Someone]) -> None:
    from playwright.sync_api import expect

    one, two = someone(studio).page, someone(studio).page
    reset(one)
    reset(two)
    fill(one, x=1, radius=1)
    step(one, 1)
    expect(two.locator("#steps")).to_have_text("0")
    expect(two.locator("#history")).to_contain_text("Every step will be listed here.")


def test_a_reload_keeps_the_episode_and_a_second_tab_follows(studio: str, someone: Callable[..., Someone]) -> None:
    """Mutation: make a new cookie on every /web/session"""
    from playwright.sync_api import expect

    person = someone(studio)
    page = person.page
    reset(page)
    fill(page, x=1, radius=1, reward=3)
    step(page, 1)
    page.reload()
    expect(page.locator("#status")).to_have_text("running")
    expect(page.locator("#steps")).to_have_text("1")
    expect(page.locator("#history tbody tr")).to_have_count(1)
    second = person.open("/web")
    expect(second.locator("#steps")).to_have_text("1")
    fill(page, x=1, radius=1)
    step(page, 2)
    expect(second.locator("#steps")).to_have_text("2")
    expect(second.locator("#observation")).to_contain_text("radius")


def test_who_has_the_link_watches_and_cannot_act(studio: str, someone: Callable[..., Someone]) -> None:
    from playwright.sync_api import expect

    page = someone(studio).page
    reset(page)
    page.get_by_role("button", name="Share").click()
    link = page.get_by_label("Link to watch").input_value()
    page.keyboard.press("Escape")
    watcher = someone(studio).open(link.removeprefix(studio))
    expect(watcher.locator("#watching")).to_be_visible()
    expect(watcher.locator("#actionform")).to_be_hidden()
    fill(page, x=1, radius=1, reward=4)
    step(page, 1)
    expect(watcher.locator("#total")).to_have_text("4")
    watcher.get_by_role("button", name="View step 1").click()
    expect(watcher.frame_locator("#frame iframe").locator("#mark")).to_have_text("Step 1, reward 4.0")


def test_at_capacity_the_page_says_so(someone: Callable[..., Someone]) -> None:
    from playwright.sync_api import expect

    with served(create_web_interface_app(Lonely, Draw, Canvas)) as base:
        first = someone(base).page
        second_person = someone(base)
        second = second_person.page
        reset(first)
        second.get_by_role("button", name="Reset", exact=True).click()
        expect(second.get_by_role("alert").first).to_contain_text("Server at capacity: 1/1 sessions active")
        expect(first.locator("#status")).to_have_text("running")
        first.get_by_role("button", name="Close environment").click()
        expect(first.locator("#status")).to_have_text("closed")
        reset(second)
        expect(second.locator("#banner")).to_be_hidden()
        first.context.close()
        second_person.leave()


def test_everything_can_be_done_with_the_keyboard(studio: str, someone: Callable[..., Someone]) -> None:
    from playwright.sync_api import expect

    page = someone(studio).page

    def tab_to(wanted: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            name = page.evaluate(
                "() => { const n = document.activeElement; return n.getAttribute('aria-label') || n.id || "
                "n.labels?.[0]?.textContent || n.textContent }"
            )
            if name.startswith(wanted):
                shown = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
                assert shown != "none", f"{wanted} has focus and does not show it"
                return
        raise AssertionError(f"{wanted} is not reached")

    page.locator("#fields .field").first.wait_for()
    tab_to("Skip to the action")
    tab_to("reset")
    page.keyboard.press("Enter")
    page.locator("#status[data-kind=live]").wait_for()
    tab_to("input")
    page.keyboard.type("5")
    tab_to("input")
    tab_to("Kind of shape")
    page.keyboard.press("Tab")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    expect(page.locator("#steps")).to_have_text("1")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#steps")).to_have_text("2")
    page.locator("#chart svg").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#observationtitle")).to_have_text("Observation of step 1")
    tab_to("View step 2")
    page.keyboard.press("Enter")
    expect(page.locator("#observationtitle")).to_have_text("Observation")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_colours(
    studio: str, someone: Callable[..., Someone], scheme: str, tmp_path: Path
) -> None:
    """Mutation: set --quiet to #b0b0b8 in light"""
    person = someone(studio, color_scheme=scheme)
    page = person.page
    page.locator("#fields .field").first.wait_for()
    assert page.evaluate(CONTRAST) == []
    reset(page)
    fill(page, x="bad", radius=1)
    page.get_by_role("button", name="Step", exact=True).click()
    page.locator("[aria-invalid]").wait_for()
    assert page.evaluate(CONTRAST) == []
    fill(page, x="1")
    step(page, 1)
    assert page.evaluate(CONTRAST) == []
    back = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(15, 16, 19)") is (scheme == "dark")
    shot = page.screenshot(path=tmp_path / "page.png")
    assert len(shot) > 20_000, "a page without anything on it compresses better"
    page.get_by_role("button", name="Theme: auto").click()
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(244, 244, 246)"


def test_nothing_an_environment_says_becomes_markup(
    someone: Callable[..., Someone], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: fill elements with innerHTML in dom.js"""
    from playwright.sync_api import expect

    readme = tmp_path / "README.md"
    readme.write_text(
        f"# Title {CANARY}\n\n{CANARY}\n\n[click](javascript:window.pwned=1) ![pic](http://elsewhere.example/x.png)\n\n"
        f"- {CANARY}\n\n| a |\n|---|\n| {CANARY} |\n\n```\n{CANARY}\n```\n"
    )
    monkeypatch.setenv("ENV_README_PATH", str(readme))
    with served(create_web_interface_app(Hostile, Poison, Poisoned, env_name=CANARY, title_override=CANARY)) as base:
        person = someone(base)
        page = person.page
        reset(page)
        page.locator("#fields textarea").fill(CANARY)
        step(page, 1)
        page.locator("#buttons button").click()
        expect(page.locator("#steps")).to_have_text("2")
        page.get_by_role("button", name="About").click()
        expect(page.locator("#readme")).to_contain_text("<img src=x")
        assert page.locator("#readme a").count() == 0
        assert page.locator("img[src=x], main script, dialog script, dialog img").count() == 0
        assert page.locator("#name").inner_text() == CANARY
        assert page.evaluate("window.pwned") is None
        person.leave()


def test_looking_back_editing_replaying_and_exporting(
    studio: str, someone: Callable[..., Someone], tmp_path: Path
) -> None:
    """Mutation: replay from the last action to the first"""
    from playwright.sync_api import expect

    page = someone(studio).page
    reset(page)
    fill(page, x=1, radius=1)
    for number, reward in enumerate((1, 2, 3), 1):
        fill(page, reward=reward)
        step(page, number)
    page.get_by_role("button", name="View step 1").click()
    expect(page.locator("#observationtitle")).to_have_text("Observation of step 1")
    expect(page.locator("#came")).to_have_text("reward 1")
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator("#came")).to_have_text("reward 3")
    page.get_by_role("button", name="Put the action of step 2 into the form").click()
    assert page.locator("#fields").get_by_label("reward").input_value() == "2"
    page.get_by_role("button", name="Replay").click()
    expect(page.locator("#replaying")).to_have_text("Replayed 3 steps: the same rewards")
    expect(page.locator("#chart svg")).to_have_attribute("aria-label", "Reward of each step: 1, 2, 3")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    download.value.save_as(tmp_path / "episode.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "episode.jsonl").read_text().splitlines()]
    assert [line.get("reward") for line in lines] == [None, 1.0, 2.0, 3.0]


def test_an_error_of_the_environment_is_shown_and_the_episode_goes_on(
    studio: str, someone: Callable[..., Someone]
) -> None:
    from playwright.sync_api import expect

    page = someone(studio).page
    reset(page)
    fill(page, x=1, radius=1, label="boom")
    page.get_by_role("button", name="Step", exact=True).click()
    expect(page.get_by_role("alert").first).to_have_text("Step failed: ValueError: the canvas is torn")
    fill(page, label="finish")
    step(page, 1)
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("#status")).to_have_text("episode over")


def test_the_token_is_asked_for_and_a_link_can_carry_it(
    someone: Callable[..., Someone], monkeypatch: pytest.MonkeyPatch
) -> None:
    from playwright.sync_api import expect

    monkeypatch.setenv("OPENENV_AUTH_TOKEN", "sesame-42")
    with served(create_web_interface_app(Studio, Draw, Canvas)) as base:
        person = someone(base)
        page = person.page
        field = page.get_by_label("The value of OPENENV_AUTH_TOKEN")
        field.fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("That is not the token of this server.")
        field.fill("sesame-42")
        page.keyboard.press("Enter")
        reset(page)
        assert page.url == f"{base}/web"
        linked = someone(base)
        page = linked.open("/web?token=sesame-42")
        assert page.url == f"{base}/web"
        reset(page)
        person.leave()
        linked.leave()


def test_a_page_finds_its_server_again(someone: Callable[..., Someone]) -> None:
    """Mutation: connect once"""
    from playwright.sync_api import expect

    with served(create_web_interface_app(Studio, Draw, Canvas)) as base:
        person = someone(base)
        page = person.page
        reset(page)
        before = person.context.cookies()
    expect(page.locator("#status")).to_have_text("connecting")
    with served(create_web_interface_app(Studio, Draw, Canvas), int(base.rpartition(":")[2])):
        expect(page.locator("#status")).to_have_text("not started")
        reset(page)
        assert person.context.cookies() == before
        person.leave()
