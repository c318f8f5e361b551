"""The page for everyone in a real browser: by keys alone, with names and contrasts, in the dark, on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import support
from limpet import MemoryStore, Schedules, StateGraph, supervise
from support.browser import PHONE, Page, Visitor, await_frame, expect
from support.http_server import Served

PAGES = (
    "/",
    "/?q=status:failed",
    "/runs/rocks-5",
    "/runs/kelp-1",
    "/runs/batch-6",
    "/runs/rocks-5?view=graph",
    "/runs/tides-3?view=state",
    "/runs/tides-3?view=events",
    "/graphs",
    "/graphs/article",
    "/schedules",
    "/workers",
    "/compare?a=moss-2&b=tides-3",
    "/runs/none",
)

NAMED = {
    "button", "checkbox", "combobox", "dialog", "heading", "image", "img", "link", "listbox", "menuitem",
    "navigation", "option", "radio", "radiogroup", "region", "searchbox", "slider", "spinbutton", "switch", "tab",
    "textbox", "toolbar", "treeitem",
}  # fmt: skip
"""What a screen reader must have a name for."""

FAINT_TEXTS = (Path(support.__file__).parent / "faint_texts.js").read_text()


@pytest.fixture
def server(samples: Any, serve: Any, visitor: Visitor) -> Iterator[Served]:
    """A server with runs of every kind, and a worker of another queue."""
    visitor.excuse("status of 404")
    with supervise(samples.store, samples.graphs.values(), queues="none"):
        yield serve(samples.store, samples.graphs.values())


def opened(page: Page, server: Served, path: str) -> None:
    """Open a page as its links do, and wait until it has what it shows."""
    page.evaluate(
        "(path) => { history.pushState(0, '', path); dispatchEvent(new PopStateEvent('popstate')); }", path
    )
    await_frame(page)
    expect(page).to_have_url(server.address + path)
    expect(page.get_by_role("heading", level=1)).to_be_attached()
    expect(page.get_by_text("loading …")).to_have_count(0)
    if "/runs/" in path and "none" not in path and "view" not in path:
        expect(page.get_by_role("treeitem", selected=True)).to_be_visible()
    if "graph" in path:
        expect(page.locator("[data-node], a[href*='/graphs/']").first).to_be_visible()
    if path in ("/", "/schedules", "/workers"):
        expect(page.get_by_role("row").last).to_be_visible()


def nameless(page: Page) -> list[str]:
    """What has no name in the accessibility tree."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    found = []
    for node in nodes:
        role = node.get("role", {}).get("value", "")
        name = node.get("name", {}).get("value", "")
        if not node["ignored"] and role in NAMED and not name.strip():
            found.append(f"{role} {node.get('properties')}")
    return found


def check_readable(page: Page, place: str) -> None:
    """Check that everything has a name, and that all texts have a contrast of 4.5 at least, in both themes."""
    assert nameless(page) == [], place
    for theme in ("dark", "light"):
        page.emulate_media(color_scheme=theme)
        number, faint = page.evaluate(FAINT_TEXTS)
        assert number > 5
        assert faint == [], (place, theme)


def test_all_pages_can_be_read_by_everyone(server: Served, visitor: Visitor) -> None:
    """H20: by eye in both themes, and by screen readers, which need names, headings and landmarks."""
    page = visitor.open(server)
    page.emulate_media(reduced_motion="reduce")
    for path in PAGES:
        opened(page, server, path)
        check_readable(page, path)
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        expect(page.get_by_role("main")).to_have_count(1)
        expect(page.get_by_role("banner")).to_have_count(1)
        expect(page.get_by_role("navigation", name="pages", exact=True)).to_have_count(1)
        for table in page.get_by_role("table").all():
            assert table.get_by_role("columnheader").count() >= 2 or path == "/graphs/article"
        for tree in page.get_by_role("tree").all():
            assert tree.get_by_role("treeitem").count() > 0
        assert "Limpet" in page.title()
    assert page.evaluate("document.documentElement.lang") == "en"


def test_all_dialogs_can_be_read_by_everyone(server: Served, visitor: Visitor) -> None:
    """H20."""
    page = visitor.open(server, "/runs/kelp-1")
    page.emulate_media(reduced_motion="reduce")
    expect(page.get_by_role("treeitem", selected=True)).to_be_visible()
    for name in ("fork", "cancel", "help", "compare", "send", "link", "rollback", "delete"):
        button = page.get_by_role("button", name=name, exact=True)
        if not button.is_visible():
            page.get_by_label("more actions").click()
        button.click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_text("loading")).to_have_count(0)
        if dialog.get_by_text("The same as a command line").count():
            dialog.get_by_text("The same as a command line").click()
        check_readable(page, name)
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)


def test_a_page_is_used_by_keys_alone(server: Served, visitor: Visitor) -> None:
    """H20: from the list to a step, its state and a fork, and back."""
    page = visitor.open(server)
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    ids = page.locator("tr[data-run]").evaluate_all("(rows) => rows.map((row) => row.dataset.run)")
    for _ in range(ids.index("rocks-5") + 2):
        page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("rate")
    for _ in range(2):
        page.keyboard.press("k")
    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("papers")
    page.keyboard.press("k")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("treeitem", name="rate")).to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("treeitem", name="rate")).to_be_visible()
    page.keyboard.press("3")
    expect(page.get_by_role("spinbutton", name="after step")).to_be_visible()
    page.keyboard.press("1")
    page.keyboard.press("f")
    dialog = page.get_by_role("dialog", name="Fork rocks-5")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    assert page.url == f"{server.address}/runs"


def test_the_focus_is_seen_and_stays_in_a_dialog(server: Served, visitor: Visitor) -> None:
    """H20: or with the browser's own controls, and it is given back when the dialog is closed."""
    page = visitor.open(server, "/runs/rocks-5")
    expect(page.get_by_role("treeitem", selected=True)).to_be_visible()
    seen: list[str] = []
    while "fork" not in seen:
        page.keyboard.press("Tab")
        text, outline = page.evaluate(
            "[document.activeElement.textContent, getComputedStyle(document.activeElement).outlineStyle]"
        )
        assert outline != "none", text
        seen.append(text)
        assert len(seen) < 30
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Fork rocks-5")
    expect(dialog.get_by_role("textbox").first).to_be_visible()
    for key in ["Tab"] * 20 + ["Shift+Tab"] * 25:
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.matches('body, [role=dialog] *')"), key
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="fork", exact=True)).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("more actions")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="compare")).to_be_focused()
    page.keyboard.press("Enter")
    other = page.get_by_role("dialog", name="Compare").get_by_role("textbox")
    expect(other).to_be_focused()
    page.get_by_role("dialog").get_by_role("button", name="Close", exact=True).focus()
    other.click()
    expect(other).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_label("more actions")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("tab", name="timeline")).to_be_focused()


def background(page: Page) -> int:
    """How bright the page is."""
    colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    return sum(int(part) for part in colour.strip("rgb()").split(",")[:3])


def test_the_theme_is_that_of_the_system_or_the_chosen_one(server: Served, visitor: Visitor) -> None:
    """H20: a choice is kept."""
    page = visitor.open(server)
    page.emulate_media(color_scheme="dark")
    assert background(page) < 200
    page.emulate_media(color_scheme="light")
    assert background(page) > 600
    switch = page.get_by_role("button", name="theme")
    switch.click()
    expect(page.get_by_role("button", name="theme: light")).to_be_visible()
    switch.click()
    expect(page.get_by_role("button", name="theme: dark")).to_be_visible()
    assert background(page) < 200
    page.reload()
    expect(page.get_by_role("button", name="theme: dark")).to_be_visible()
    assert background(page) < 200
    switch.click()
    expect(page.get_by_role("button", name="theme: system")).to_be_visible()
    assert background(page) > 600


def test_times_are_relative_or_exact_here_or_in_utc(server: Served, visitor: Visitor) -> None:
    """H20."""
    page = visitor.open(server, "/runs/rocks-5", timezone_id="Asia/Kolkata")
    expect(page.get_by_text("UTC+5:30").first).to_be_visible()
    expect(page.get_by_text("ago").or_(page.get_by_text("ended now")).first).to_be_visible()
    page.get_by_role("button", name="local").click()
    expect(page.get_by_text("UTC+5:30")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("button", name="UTC")).to_be_visible()


def test_every_page_fits_a_phone(server: Served, visitor: Visitor) -> None:
    """H20: nothing is cut off at the side, or needs a scroll to the side."""
    page = visitor.open(server, viewport=PHONE, has_touch=True)
    for path in PAGES:
        opened(page, server, path)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], path
        outside = page.evaluate("""() =>
          [...document.querySelectorAll("main button, main a, main input, main textarea")]
            .filter((each) => each.checkVisibility() && !each.closest(".timeline-scroll, .chips, .picture, pre"))
            .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
            .map((each) => each.outerHTML.slice(0, 120))""")
        assert outside == [], path


def test_numbers_and_times_stay_in_one_line(serve: Any, visitor: Visitor) -> None:
    """H20: those of the items of a map in the timeline of a phone, and what tables say on a tablet."""
    store = MemoryStore()
    graph = StateGraph({"items": list}, name="a_map_of_items")
    graph.add_node("split", lambda state: {"items": list(range(12))})
    graph.add_fanin_node("collect", run=lambda parallel_results: {}).set_entry_point("split")
    graph.add_node("examine_one_of_the_items", lambda state: {})
    graph.add_map("split", "examine_one_of_the_items", over="items", fan_in="collect")
    graph.set_finish_point("collect").compile(store=store, preserve=True).execute({}, run_id="mapped")
    Schedules(store).add("every-single-night-at-two", graph, cron="30 2 * * *", timezone="Europe/Berlin")
    server = serve(store, [graph])
    page = visitor.open(server, "/runs/mapped", viewport=PHONE, has_touch=True)
    expect(page.get_by_text("[11]", exact=True)).to_be_visible()
    heights = "(indexes) => indexes.map((each) => each.getBoundingClientRect().height)"
    assert max(page.locator(".timeline-index").evaluate_all(heights)) <= 30
    page.set_viewport_size({"width": 768, "height": 1024})
    page.goto(f"{server.address}/schedules")
    for words in (page.get_by_role("link", name=graph.name), page.locator("main time")):
        assert words.evaluate("(words) => words.getClientRects().length") == 1


def test_a_phone_shows_a_step_on_a_sheet(server: Served, visitor: Visitor) -> None:
    """H20: which is closed again."""
    page = visitor.open(server, "/runs/rocks-5", viewport=PHONE, has_touch=True)
    page.get_by_role("treeitem").filter(has_text="plan").tap()
    sheet = page.get_by_role("complementary", name="the selected step")
    expect(sheet.get_by_role("heading", name="plan")).to_be_in_viewport()
    expect(sheet.get_by_role("listitem").filter(has_text="ratings")).to_have_text("+ratings[]")
    page.get_by_role("button", name="back to the timeline").tap()
    expect(page.get_by_role("treeitem").first).to_be_in_viewport()
    page.get_by_role("button", name="retry").tap()
    expect(page.get_by_role("dialog", name="Retry")).to_be_in_viewport(ratio=1)
    page.get_by_role("button", name="close", exact=True).tap()
    for name in ("graphs", "schedules", "workers", "runs"):
        page.get_by_role("link", name=name, exact=True).tap()
        expect(page).to_have_url(f"{server.address}/{name}")
    page.get_by_role("button", name="yes").tap()
    expect(page.get_by_text("answered kelp-1")).to_be_in_viewport()


def test_nothing_moves_for_those_who_want_less_of_it(server: Served, visitor: Visitor) -> None:
    """H20."""
    page = visitor.open(server)
    page.emulate_media(reduced_motion="reduce")
    expect(page.get_by_role("button", name="live", exact=True)).to_be_visible()
    assert page.evaluate("document.getAnimations().length") == 0
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate("document.getAnimations().length") > 0


def test_the_focus_is_on_what_was_opened(server: Served, visitor: Visitor) -> None:
    """H20: on the page after a click on a link, and never lost with what had it."""
    page = visitor.open(server)
    focused = "document.activeElement.tagName"
    page.get_by_role("link", name="rocks-5").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="rocks-5")).to_be_visible()
    expect(page.get_by_role("main")).to_be_focused()
    page.keyboard.press("r")
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("main")).to_be_focused()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="yes").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("answered kelp-1")).to_be_visible()
    expect(page.get_by_role("button", name="Waiting for you")).to_be_focused()
    assert page.evaluate(focused) == "BUTTON"


def test_keys_lead_to_the_filter_and_back_from_everywhere(server: Served, visitor: Visitor) -> None:
    """H20."""
    page = visitor.open(server)
    for path, outer in (("/graphs/article", "/graphs"), ("/workers", "/runs"), ("/runs/rocks-5", "/runs")):
        opened(page, server, path)
        page.keyboard.press("Escape")
        expect(page).to_have_url(server.address + outer)
        opened(page, server, path)
        page.keyboard.press("/")
        expect(page.get_by_role("combobox", name="filter the runs")).to_be_focused()
        expect(page).to_have_url(f"{server.address}/runs")
        page.keyboard.press("Escape")


def test_a_menu_closes_with_a_click_elsewhere(server: Served, visitor: Visitor) -> None:
    """H20."""
    page = visitor.open(server, "/runs/rocks-5")
    page.get_by_label("more actions").click()
    expect(page.get_by_role("button", name="rollback")).to_be_visible()
    page.get_by_role("banner").click(position={"x": 600, "y": 20})
    expect(page.get_by_role("button", name="rollback")).to_have_count(0)
