"""The dashboard in a real browser, on a mesh of three real nodes, the last of which is killed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect, sync_playwright

from node.demo.local_mesh import LocalMesh
from rumormill.v1 import inference_pb2
from tests.e2e.conftest import serving

pytestmark = pytest.mark.e2e

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 60_000
WIDE, PHONE = (1440, 900), (390, 844)

PREFACE = "Here are some notes about the sea. " + "The sea is deep and wide, and full of salt water. " * 24
QUESTION = PREFACE + "What is the sea full of?"
OTHERS_SECRET = "The password of somebody else is swordfish. " * 8


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: install one of {', '.join(BROWSERS)} (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        # Root, as in a container, can't have the browser's own sandbox.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def trio() -> Iterator[LocalMesh]:
    """Three nodes; tests are in such an order that the one that loses a node is the last."""
    with LocalMesh(3, ["--threads", "1", "--kv-memory-mib", "64"], report=lambda text: None) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def page(browser: Browser, trio: LocalMesh) -> Iterator[Page]:
    """The first node's dashboard, open all the time; at the end nothing was wrong in its console."""
    with trio.client(0) as client:
        url = client.status().http_url
    context = browser.new_context(
        viewport={"width": WIDE[0], "height": WIDE[1]}, color_scheme="light", reduced_motion="reduce"
    )
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("console", lambda message: wrong.extend([message.text] if message.type != "log" else []))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("requestfailed", lambda request: wrong.extend(failures(request)))
    opened.on(
        "request", lambda request: wrong.append(request.url) if not request.url.startswith(url) else None
    )
    opened.route("**/v1/chat/completions", keep_answers_short)
    opened.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    opened.goto(url)
    yield opened
    assert wrong == []
    context.close()


def failures(request: Request) -> list[str]:
    """What is wrong with a request that failed; a page that is reloaded aborts its stream, which is right."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"{request.url}: {request.failure}"]


def elsewhere(request: Request, url: str) -> list[str]:
    """A request that leaves the node."""
    return [] if request.url.startswith(url) else [request.url]


def keep_answers_short(route: Route) -> None:
    body = json.loads(route.request.post_data or "{}")
    route.continue_(post_data=json.dumps({**body, "max_tokens": 24}))


def node_of(page: Page, node_id: str) -> Locator:
    return page.locator(f'button[data-node="{node_id}"]')


def scrolls_sideways(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


def resize(page: Page, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})


def test_three_nodes_appear_each_linked_to_the_others(page: Page, trio: LocalMesh) -> None:
    expect(page.locator("[data-node]")).to_have_count(3)
    for node in trio.nodes:
        expect(node_of(page, node.node_id)).to_be_visible()
        expect(node_of(page, node.node_id)).to_contain_text(node.node_id[:8])
    expect(page.locator(".link line")).to_have_count(3)
    expect(node_of(page, trio.nodes[0].node_id)).to_contain_text("this node")


def test_a_chat_is_answered_elsewhere_and_its_route_is_drawn(page: Page, trio: LocalMesh) -> None:
    """The second node has the chat's beginning cached, so that it answers what enters at the first."""
    entry, holder = trio.nodes[0].node_id, trio.nodes[1].node_id
    warm(trio, 1, QUESTION)
    page.fill("#prompt", QUESTION)
    page.keyboard.press("Enter")
    answered_by = page.locator("[data-answered-by]")
    expect(answered_by).to_have_attribute("data-answered-by", holder)
    expect(page.get_by_text(re.compile(r"\d+ of \d+ prompt tokens cached")).first).to_be_visible()
    assert len(page.locator(".answer").inner_text()) > 0
    expect(page.locator(f'line[data-route="{entry} {holder}"]')).to_have_count(1)
    expect(node_of(page, holder)).to_contain_text("answered you")
    expect(page.locator(".route-line")).to_contain_text(f"{entry[:8]} (entry) → {holder[:8]}")
    assert page.locator(".squares").get_attribute("aria-label")


def test_the_decision_is_listed_with_every_candidate(page: Page, trio: LocalMesh) -> None:
    decision = page.locator(".decision", has_text="yours")
    expect(decision).to_have_count(1)
    expect(decision).to_contain_text("ms expected")
    decision.focus()
    page.keyboard.press("Enter")
    rows = page.locator(".candidates tbody tr")
    expect(rows).to_have_count(3)
    for node in trio.nodes:
        expect(rows.filter(has_text=node.node_id[:8])).to_have_count(1)
    expect(node_of(page, trio.nodes[1].node_id)).to_contain_text("≈")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(0)


def test_a_cache_shows_text_to_its_sender_alone(page: Page, trio: LocalMesh) -> None:
    warm(trio, 1, OTHERS_SECRET)
    tree = page.locator(f'[data-tree="{trio.nodes[1].node_id}"]')
    expect(tree.locator(".run", has_text="notes about the sea").first).to_be_visible()
    expect(tree.locator(".run:has(span:empty)").first).to_be_attached()
    assert "swordfish" not in page.content()
    tree.get_by_role("tree").focus()
    page.keyboard.press("ArrowRight")
    expect(tree.locator(".run.focused")).to_have_count(1)
    expect(page.locator(".node.holds").first).to_be_visible()


def test_a_node_tells_more_when_it_is_pressed(page: Page, trio: LocalMesh) -> None:
    peer = trio.nodes[2].node_id
    node_of(page, peer).focus()
    page.keyboard.press("Space")
    details = page.get_by_label(f"Node {peer[:8]}").and_(page.locator("aside"))
    expect(details).to_contain_text("round trip")
    expect(details.get_by_role("link")).to_have_attribute("href", re.compile(r"^http://127\.0\.0\.1:\d+$"))
    page.keyboard.press("Space")
    expect(details).to_have_count(0)


def test_a_phone_needs_no_sideways_scrolling(page: Page) -> None:
    page.locator(".decision").first.click()
    resize(page, PHONE)
    for shown in (".mesh", ".chat", ".decisions", ".caches"):
        box = page.locator(shown).bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= PHONE[0]
    assert not scrolls_sideways(page)
    for node in page.locator("[data-node]").all():
        expect(node).to_be_in_viewport()
    overflowing = page.evaluate(
        """[...document.querySelectorAll("main *")]
        .filter((each) => !each.closest(".unseen, svg, .run, .hot th"))
        .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
        .map((each) => each.outerHTML.slice(0, 80))"""
    )
    assert overflowing == []
    page.locator(".decision").first.click()
    resize(page, WIDE)


def test_dark_is_followed_and_can_be_chosen(page: Page) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = ground()
    page.emulate_media(color_scheme="dark")
    dark = ground()
    assert brightness(dark) < 50 < 200 < brightness(light)
    button = page.get_by_role("button", name=re.compile("Theme"))
    button.click()
    assert ground() == light
    page.emulate_media(color_scheme="light")
    button.click()
    assert ground() == dark
    page.reload()
    assert ground() == dark, "the choice is kept"
    page.get_by_role("button", name=re.compile("Theme")).click()
    assert ground() == light


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out(page: Page, theme: Literal["light", "dark"]) -> None:
    """At least 4.5 to 1 (WCAG 2.2, 1.4.3), for every colour of text on every ground."""
    page.emulate_media(color_scheme=theme)
    colours = page.evaluate(
        "Object.fromEntries(['ground','card','raised','sunken','text','muted','accent','accent-soft','on-accent',"
        "'amber','red'].map(n => [n, getComputedStyle(document.documentElement).getPropertyValue('--' + n)]))"
    )
    page.emulate_media(color_scheme="light")
    grounds = [colours[name] for name in ("ground", "card", "raised", "sunken")]
    pairs = [
        (colours[name], ground) for name in ("text", "muted", "accent", "amber", "red") for ground in grounds
    ]
    pairs += [(colours["on-accent"], colours["accent"]), (colours["text"], colours["accent-soft"])]
    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []


def test_a_node_that_dies_is_greyed_and_says_since_when(page: Page, trio: LocalMesh) -> None:
    expect(page.locator("[data-node]")).to_have_count(3)
    lost = trio.nodes[2]
    lost.process.kill()
    grey = node_of(page, lost.node_id)
    expect(grey).to_have_class(re.compile(r"\bgone\b"))
    expect(grey).to_contain_text(re.compile(r"gone since \d\d:\d\d:\d\d"))
    expect(page.locator(".link line")).to_have_count(1)
    expect(page.locator(".totals")).to_contain_text("gone")


def test_a_client_s_key_opens_the_chat_alone(browser: Browser, tmp_path: Path) -> None:
    """One node with keys: no key no page, a client's key no mesh, an operator's all."""
    client, operator = "c" * 24, "o" * 24
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text(f"ada {client}\nbob {operator} operator\n")
    with serving(tmp_path / "node", "--api-keys", str(keys), "--kv-memory-mib", "32", "--no-mdns") as node:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(node["http"])
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not known")
        page.get_by_label("API key").fill(client)
        page.keyboard.press("Enter")
        expect(page.get_by_label("Message")).to_be_visible()
        expect(page.locator(".mesh, .decisions, .caches")).to_have_count(0)
        assert not [url for url in asked if "events" in url or "blocks" in url]
        page.get_by_role("button", name="Forget key").click()
        page.get_by_label("API key").fill(operator)
        page.keyboard.press("Enter")
        expect(page.locator("[data-node]")).to_have_count(1)
        expect(page.get_by_text("One node so far")).to_be_visible()
        page.close()


def warm(mesh: LocalMesh, index: int, question: str) -> None:
    """Has one node compute a question, and waits until the first node has heard of it."""
    messages = [inference_pb2.ChatMessage(role="user", content=question)]
    with mesh.client(index) as there:
        list(there.generate(messages, inference_pb2.Sampling(max_tokens=1), policy="local"))
    with mesh.client(0) as here:
        for _ in range(400):
            if any(c.cached_tokens for c in here.explain(messages).candidates if not c.is_self):
                return
    pytest.fail("gossip did not tell of the cached prefix")


def brightness(colour: str) -> float:
    """Mean of the channels of `rgb(r, g, b)`, 0 to 255."""
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def contrast(one: str, other: str) -> float:
    """The ratio of two colours `#rrggbb` (WCAG 2.2, relative luminance)."""
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour.strip()[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_contrast_is_measured_right() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert all(a < b for a, b in pairwise(contrast("#ffffff", c) for c in ("#cccccc", "#777777", "#333333")))
