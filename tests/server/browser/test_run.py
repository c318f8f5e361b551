"""The page of a run in a real browser: its timeline, and the step that is looked at."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from limpet import END, LimpetError, MemoryStore, RunPaused, Runs, StateGraph, emit, pause
from limpet.testing import FakeClock
from support import sample_runs
from support.browser import (
    PHONE,
    SCREEN,
    Locator,
    Page,
    Route,
    Visitor,
    address_of,
    answer_all,
    await_frame,
    expect,
)
from support.graphs import chain

EVENTS = Path(__file__).parents[3] / "docs" / "how-to" / "runs-in-your-hands.md"
"""Lists the types of events."""

SOONER = """
const later = window.setTimeout;
window.setTimeout = (call, time, ...rest) => later(call, time === 10000 ? 300 : time, ...rest);
"""
"""Has the page look sooner whether a run that has ended was continued."""

OF_ONE_KEY = re.compile("[?&]key=")
"""Requests for a large value."""


def step(page: Page, name: str) -> Locator:
    """The row of the timeline with this name that is neither a branch nor a mark."""
    return page.get_by_role("treeitem").filter(has_text=re.compile(rf"^[▾▸]?{name}")).last


def inspector(page: Page) -> Locator:
    """What is shown of the selected step."""
    return page.get_by_role("complementary", name="the selected step")


def key_of(page: Page, name: str) -> Locator:
    """What the inspector shows of a key."""
    return inspector(page).get_by_role("listitem").filter(has_text=re.compile(rf"^[+~−]?{name}"))


def test_a_failed_run_opens_on_its_error(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: without scrolling, with the failed step selected, and with its attempts."""
    server = serve(samples.store, samples.graphs.values())
    page = visitor.open(server, "/runs/rocks-5")
    error = page.get_by_role("region", name="error")
    expect(error).to_contain_text("ValueError: no rating for “rocks”: the page has no text")
    expect(error).to_contain_text("in papers/rate")
    expect(error.get_by_text("in rate", exact=False).last).to_be_visible()
    expect(error).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("rate")
    expect(inspector(page).get_by_role("heading", name="rate")).to_be_visible()
    expect(error).to_contain_text(re.compile(r"in papers/rate · sample_runs\.py:\d+ in rate"))
    attempts = page.get_by_role("group", name="attempts").get_by_role("button")
    expect(attempts).to_have_count(3)
    attempts.nth(1).click()
    expect(error).to_contain_text("no rating for “rocks”")
    assert page.evaluate("scrollY") == 0


def test_a_failed_step_shows_its_input(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: at once, and in a branch that of the branch; a fork begins with it."""
    visitor.excuse("status of 400")
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/rocks-5")
    expect(inspector(page).get_by_role("tab", name="input", selected=True)).to_be_visible()
    expect(inspector(page)).to_contain_text("found")
    expect(key_of(page, "strict")).to_contain_text("True")
    inspector(page).get_by_role("button", name="fork before this step").click()
    dialog = page.get_by_role("dialog", name="Fork rocks-5")
    expect(dialog.get_by_role("textbox", name="ratings")).to_have_value("[\n  3,\n  5\n]")
    expect(dialog).to_contain_text("You see the state of papers.")
    dialog.get_by_role("textbox", name="strict").fill("false")
    dialog.get_by_role("spinbutton", name="step").fill("0")  # there is no such branch yet
    page.keyboard.press("Tab")
    expect(dialog.get_by_role("textbox", name="ratings")).to_have_count(0)
    expect(dialog).not_to_contain_text("You see the state of papers.")
    expect(dialog.get_by_role("textbox", name="strict")).to_have_value("false")
    dialog.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("heading", name="rocks-5")).to_have_count(0)
    (forked,) = [run for run in Runs(samples.store).list() if run.forked_from == "rocks-5@0"]
    assert samples.graphs["research"].get(forked.run_id).state["strict"] is False


def test_a_step_shows_what_it_changed(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: the difference first, and the update and the whole state when they are asked for."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/tides-3")
    step(page, "draft").click()
    expect(page).to_have_url(re.compile(r"\?row=\d+$"))
    expect(key_of(page, "text")).to_contain_text("All about tides.")
    notes = key_of(page, "notes")
    expect(notes).to_contain_text("1 → 2 items")
    expect(notes).to_contain_text("⋯ 1 the same")
    expect(notes).to_contain_text("+ first draft")
    expect(key_of(page, "words")).to_have_count(0)
    inspector(page).get_by_role("tab", name="state").click()
    expect(inspector(page)).to_contain_text("words400")
    expect(inspector(page)).to_contain_text("‹secret›")
    inspector(page).get_by_role("tab", name="update").click()
    expect(inspector(page)).not_to_contain_text("words400")
    step(page, "outline").click()
    expect(inspector(page)).to_contain_text("what is tides?")
    page.reload()
    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("outline")
    expect(page.get_by_role("main")).not_to_contain_text("sk-not-to-be-seen")


def test_a_step_of_a_branch_shows_what_it_changed_there(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: in its own state, which the main one doesn't have; and how to read that elsewhere."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/papers-4")
    step(page, "read").click()
    expect(inspector(page).get_by_role("tab", name="changed")).to_have_attribute("aria-selected", "true")
    expect(key_of(page, "ratings")).to_contain_text("0 → 2 items")
    inspector(page).get_by_role("tab", name="state").click()
    expect(inspector(page)).to_contain_text("found")  # by the step before it, in the same branch
    inspector(page).get_by_text("The same as a command line and in Python").click()
    code = inspector(page).get_by_role("figure")
    expect(code.first).to_contain_text("--branch papers papers-4")
    names: dict[str, Any] = {"STORE": samples.store}
    exec(code.last.locator("code").inner_text().replace("runs.state", "found = runs.state"), names)
    assert names["found"]["ratings"] == [3, 5]


def test_what_a_step_emitted_is_shown_with_it(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/kelp-1")
    step(page, "draft").click()
    emitted = page.get_by_role("region", name="emitted")
    expect(emitted).to_contain_text("All about kelp, and what lives on it.")
    expect(emitted.get_by_role("heading")).to_contain_text("8 items")


def test_the_graph_of_a_run_highlights_the_same_step(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: in both directions, and the address has the view."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/rocks-5")
    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("rate")
    page.get_by_role("tab", name="graph").click()
    chosen = page.locator("[data-node].chosen")
    expect(chosen).to_have_count(1)
    expect(chosen).to_contain_text("rate")
    page.locator("[data-node=plan]").first.click()
    expect(inspector(page).get_by_role("heading", name="plan")).to_be_visible()
    expect(chosen).to_contain_text("plan")
    page.reload()
    expect(chosen).to_contain_text("plan")
    page.get_by_role("tab", name="timeline").click()
    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("plan")


def test_nodes_of_the_same_name_are_told_apart_in_the_graph(serve: Any, visitor: Visitor) -> None:
    """H20: those of two subgraphs, and one beside them; in both directions."""
    store = MemoryStore()
    graph = subgraphs().compile(store=store, preserve=True)
    graph.execute({}, run_id="same")
    page = visitor.open(serve(store, [graph]), "/runs/same?view=graph")
    chosen = page.locator("[data-node].chosen")
    for node, place in (("first/write", "step 1"), ("write", "step 5"), ("second/write", "step 3")):
        page.locator(f"[data-node='{node}']").click()
        expect(inspector(page)).to_contain_text(place)
        expect(chosen).to_have_count(1)
        expect(chosen).to_have_attribute("data-node", node)


def test_a_wide_graph_can_be_read_and_shows_the_chosen_node(serve: Any, visitor: Visitor) -> None:
    """H20: it is scrolled in its frame then, and the page stays where it is."""
    store = MemoryStore()
    graph = fan_out(40).compile(store=store, preserve=True)
    graph.execute({}, run_id="wide")
    page = visitor.open(serve(store, [graph]), "/runs/wide?view=graph")
    nodes = page.locator(".picture [data-node^=branch]")
    expect(nodes).to_have_count(40)
    height = "(node) => node.querySelector('text').getBoundingClientRect().height"
    assert nodes.first.evaluate(height) > 9
    for node in ("branch 39", "branch 0"):
        page.get_by_role("tab", name="timeline").click()
        step(page, node).click()
        page.get_by_role("tab", name="graph").click()
        expect(page.locator(f"[data-node='{node}'].chosen")).to_be_in_viewport(ratio=0.9)
        assert page.evaluate("[scrollX, scrollY]") == [0, 0]


def test_the_state_of_each_step_can_be_read(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/moss-2?view=state")
    tree = page.get_by_role("main").get_by_role("list").first
    expect(tree).to_contain_text("verdictyes")
    page.get_by_role("spinbutton", name="after step").fill("1")
    page.keyboard.press("Enter")
    expect(tree).not_to_contain_text("verdict")
    expect(tree).to_contain_text("words400")
    page.reload()
    expect(tree).to_contain_text("words400")
    expect(tree).not_to_contain_text("verdict")
    expect(page).to_have_url(re.compile("step=1"))
    page.get_by_role("button", name="newest").click()
    expect(tree).to_contain_text("verdictyes")


def test_the_events_of_a_run_are_listed(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: all, or those of one type; each opens."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/rocks-5")
    expect(page.get_by_role("treeitem", selected=True)).to_be_visible()
    page.keyboard.press("4")
    events = page.locator(".events").get_by_role("button")
    expect(events.filter(has_text="step").first).to_be_visible()
    page.get_by_role("combobox").select_option("retry")
    expect(events).to_have_count(2)
    events.first.click()
    expect(events.first).to_have_attribute("aria-expanded", "true")
    expect(page.get_by_role("main")).to_contain_text("ValueError")
    page.reload()
    expect(events).to_have_count(2)


def test_a_run_that_is_not_there_says_so(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    visitor.excuse("status of 404")
    page = visitor.open(serve(samples.store), "/runs/none")
    expect(page.get_by_role("heading", name="This run isn't there")).to_be_visible()
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    page.get_by_role("link", name="rocks-5").click()
    page.get_by_role("tab", name="graph").click()
    expect(page.get_by_text("The server doesn't have the code of this graph")).to_be_visible()


def test_a_run_of_thousands_of_steps_is_read_from_one_end_to_the_other(serve: Any, visitor: Visitor) -> None:
    """H20: only the rows that are in view are in the document."""
    store = MemoryStore()
    graph = sample_runs.counter().compile(store=store, preserve=True)
    graph.execute({"until": 5000}, run_id="long")
    page = visitor.open(serve(store, [graph]), "/runs/long")
    expect(page.get_by_text("5,000 rows")).to_be_visible()
    rows = page.get_by_role("treeitem")
    assert rows.count() < 100
    expect(page.get_by_role("treeitem", selected=True)).to_be_in_viewport()
    expect(inspector(page)).to_contain_text("step 5000")
    page.reload()  # the server has read all of it by now
    expect(page.get_by_role("treeitem", selected=True)).to_be_in_viewport()
    expect(inspector(page)).to_contain_text("step 5000")
    tree = page.get_by_role("tree", name="steps")
    expect(tree).to_have_attribute("aria-activedescendant", re.compile("^row-"))
    tree.hover()
    page.mouse.wheel(0, -1_000_000)
    expect(tree).not_to_have_attribute("aria-activedescendant", re.compile("."))  # that row isn't there
    expect(rows.first).to_be_in_viewport()
    rows.first.click()
    expect(inspector(page)).to_contain_text("step 1")
    page.keyboard.press("j")
    expect(inspector(page)).to_contain_text("step 2")
    expect(key_of(page, "count")).to_contain_text("1 → 2")
    page.keyboard.press("k")
    expect(inspector(page)).to_contain_text("step 1")
    page.mouse.wheel(0, 75_000)
    for _ in range(3):
        page.keyboard.press("j")
    expect(inspector(page)).to_contain_text("step 4")
    expect(page.get_by_role("treeitem", selected=True)).to_be_in_viewport()
    assert rows.count() < 100


def test_a_graph_of_thousands_of_nodes_is_counted_not_drawn(serve: Any, visitor: Visitor) -> None:
    """H20."""
    store = MemoryStore()
    graph = sample_runs.wide().compile(store=store, preserve=True)
    graph.execute({}, run_id="wide-1")
    page = visitor.open(serve(store, [graph]), "/runs/wide-1?view=graph")
    expect(page.get_by_text("2,000 nodes are too many for a picture")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="node 0")).to_be_visible()
    page.get_by_role("link", name="wide", exact=True).click()
    expect(page.get_by_text("2,000 nodes are too many for a picture")).to_be_visible()


def test_a_long_run_on_a_phone_opens_on_its_error_too(serve: Any, visitor: Visitor) -> None:
    """H20: only the rows that are in view are in the document, and the failed one is among them."""
    store = MemoryStore()
    graph = failing_after(2000).compile(store=store, preserve=True)
    list(graph.stream({}, run_id="long"))
    page = visitor.open(serve(store, [graph]), "/runs/long", viewport=PHONE)
    expect(page.get_by_text("2,001 rows")).to_be_visible()
    expect(page.get_by_role("region", name="error")).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("treeitem", selected=True)).to_be_visible()
    assert page.get_by_role("treeitem").count() < 100
    tree = page.get_by_role("tree", name="steps").bounding_box()
    row = page.get_by_role("treeitem", selected=True).bounding_box()
    assert tree is not None
    assert row is not None
    assert tree["y"] < row["y"] < tree["y"] + tree["height"]


def test_a_long_run_opens_on_its_error_each_time(serve: Any, visitor: Visitor) -> None:
    """H20: also when the server knows all of its rows already."""
    store = MemoryStore()
    graph = failing_after(3000).compile(store=store, preserve=True)
    list(graph.stream({}, run_id="long"))
    page = visitor.open(serve(store, [graph]), "/runs/long")
    for _ in range(3):
        expect(page.get_by_text("3,001 rows")).to_be_visible()
        selected = page.get_by_role("treeitem", selected=True)
        expect(selected.get_by_role("img", name="failed")).to_be_in_viewport()
        expect(inspector(page).get_by_role("heading", name="count")).to_be_visible()
        page.reload()


def test_all_bars_are_on_the_axis_of_a_phone(serve: Any, visitor: Visitor) -> None:
    """H20: however many waits are left out of it."""
    clock = FakeClock()
    store = MemoryStore(clock)

    def ask(state: Any) -> dict[str, Any]:
        clock.skip(2)
        return {"answer": pause("And now?")}

    graph = StateGraph({"answer": str}, name="asking", max_iterations=None).add_node("ask", ask)
    graph.add_node("fail", lambda state: 1 / 0).set_entry_point("ask")
    graph.add_conditional_edges("ask", lambda state: state["answer"], {"again": "ask", "enough": "fail"})
    graph.add_edge("fail", END).compile(store=store, preserve=True)
    for answer in (None, *["again"] * 6, "enough"):
        with suppress(RunPaused, LimpetError):
            graph.execute({}, run_id="asked") if answer is None else graph.resume("asked", answer)
        clock.skip(3600)
    page = visitor.open(serve(store, [graph]), "/runs/asked", viewport=PHONE)
    expect(page.get_by_role("treeitem", selected=True)).to_contain_text("fail")
    outside = page.evaluate("""() => [...document.querySelectorAll(".bar")].filter((bar) => {
      const [inner, outer] = [bar, bar.parentElement].map((each) => each.getBoundingClientRect());
      return inner.left < outer.left - 1 || inner.right > outer.right + 1;
    }).length""")
    assert outside == 0
    assert page.locator(".bar").count() >= 8


def test_differences_deep_inside_can_be_read_on_a_phone(serve: Any, visitor: Visitor) -> None:
    """H20: each level has the whole width."""
    store = MemoryStore()

    def write(text: str) -> Any:
        return lambda state: {"settings": {"of the research": {"of the reviewer": {"name": text}}}}

    graph = StateGraph({"settings": dict}, name="nested").add_node("first", write("Barbara"))
    graph.add_node("second", write("Charlotte")).set_entry_point("first").add_edge("first", "second")
    graph.set_finish_point("second").compile(store=store, preserve=True).execute({}, run_id="nested")
    page = visitor.open(serve(store, [graph]), "/runs/nested", viewport=PHONE)
    step(page, "second").click()
    for words in ('"Barbara"', '"Charlotte"'):
        assert inspector(page).get_by_text(words).evaluate("(words) => words.getClientRects().length") == 1


def test_the_axis_of_a_phone_says_how_long_the_steps_took(serve: Any, visitor: Visitor) -> None:
    """H20: with more than its beginning."""
    store = MemoryStore()
    graph = sample_runs.counter().compile(store=store, preserve=True)
    graph.execute({"until": 9}, run_id="short")
    page = visitor.open(serve(store, [graph]), "/runs/short", viewport=PHONE)
    ticks = page.locator(".tick")
    expect(ticks.first).to_have_text("0")
    expect(ticks.nth(1)).to_be_visible()
    places = (
        "(ticks) => ticks.map((tick) => tick.getBoundingClientRect()).map(({ left, right }) => [left, right])"
    )
    boxes = ticks.evaluate_all(places)
    assert all(before[1] <= after[0] for before, after in pairwise(boxes))


def test_what_of_a_branch_has_failed_is_red(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: its bracket as well as its mark; the bracket of another one isn't."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/rocks-5")
    branches = page.locator(".kind-branch")
    failed = branches.filter(has=page.get_by_role("img", name="failed"))
    expect(failed.locator(".bar")).to_have_attribute("style", re.compile("failed-outline"))
    expect(branches.filter(has_text="news").locator(".bar")).to_have_attribute(
        "style", re.compile("done-outline")
    )


def test_what_is_queued_again_waits_and_says_for_what(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: nothing is shown as running until a worker has it."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/rocks-5")
    expect(step(page, "rate").get_by_role("img", name="failed")).to_be_visible()
    samples.graphs["research"].get("rocks-5").retry()
    expect(page.get_by_text("stays queued: no worker is running")).to_be_visible()
    expect(step(page, "rate").get_by_role("img", name="queued")).to_be_visible()
    expect(page.get_by_role("treeitem").get_by_role("img", name="running")).to_have_count(0)
    expect(inspector(page).get_by_role("img", name="queued")).to_be_visible()
    assert step(page, "rate").locator(".bar").last.get_attribute("class") == "bar bar-wait"


def test_a_run_that_continues_by_itself_says_when(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: as it does in the list."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/weed-7")
    expect(page.get_by_role("main")).to_contain_text(re.compile("due in [23] h"))
    page.goto(page.url.replace("weed-7", "papers-8"))
    expect(page.get_by_role("main")).to_contain_text("stays queued")
    expect(page.get_by_role("main")).not_to_contain_text("due")


def test_a_run_that_another_process_has_resumed_and_ended_is_shown_as_it_is(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: its rows, too, although the page has looked only now and then since the first end."""
    server = serve(samples.store, samples.graphs.values())
    page = visitor.arrive(server, viewport=SCREEN)
    page.add_init_script(SOONER)
    page.goto(address_of(server, "/runs/rocks-5"))
    expect(page.get_by_role("button", name="ended")).to_be_visible()
    expect(page.get_by_role("region", name="error")).to_be_visible()
    samples.graphs["research"].resume("rocks-5", {"strict": False})
    expect(step(page, "combine")).to_be_visible()
    expect(page.get_by_role("region", name="error")).to_have_count(0)


def test_the_zoom_keeps_the_selected_step_in_view(serve: Any, visitor: Visitor) -> None:
    """H20: however large, and back; a part that the reader looks at stays, too."""
    store = MemoryStore()
    graph = sample_runs.counter().compile(store=store, preserve=True)
    graph.execute({"until": 300}, run_id="long")
    page = visitor.open(serve(store, [graph]), "/runs/long")
    expect(inspector(page)).to_contain_text("step 300")
    page.keyboard.press("k")
    bar = page.get_by_role("treeitem", selected=True).locator(".bar")
    tree = page.get_by_role("tree", name="steps")
    for _ in range(6):
        width = tree.evaluate("(tree) => tree.scrollWidth")
        page.get_by_role("button", name="zoom in").click()
        page.wait_for_function(
            "([tree, width]) => tree.scrollWidth > width * 1.5", arg=[tree.element_handle(), width]
        )
        expect(bar).to_be_in_viewport()
    page.get_by_role("button", name="zoom out").click()
    expect(bar).to_be_in_viewport()
    tree.evaluate("(tree) => (tree.scrollLeft = 0)")
    expect(bar).not_to_be_in_viewport()
    page.get_by_role("button", name="zoom in").click()
    await_frame(page)
    expect(bar).not_to_be_in_viewport()
    page.get_by_role("button", name="fit").click()
    expect(bar).to_be_in_viewport()


def test_a_slow_answer_is_not_shown_as_that_of_another_step(serve: Any, visitor: Visitor) -> None:
    """H20: neither large values nor differences; and what was loaded is there when the step is shown again."""
    store = MemoryStore()
    graph = large_values().compile(store=store, preserve=True)
    graph.execute({}, run_id="large")
    page = visitor.open(serve(store, [graph]), "/runs/large?view=state")
    held: list[Route] = []
    page.route(OF_ONE_KEY, lambda route: held.append(route))
    show = page.locator(".state-view .tree")
    page.get_by_role("spinbutton").fill("1")
    page.keyboard.press("Enter")
    with page.expect_request(OF_ONE_KEY):
        show.get_by_role("button", name="40 kB, show").click()
    page.get_by_role("spinbutton").fill("2")
    page.keyboard.press("Enter")
    expect(show.get_by_text("step 2")).to_be_visible()
    answer_all(page, held)
    expect(show.get_by_role("button", name="40 kB, show")).to_be_visible()

    page.get_by_role("tab", name="timeline").click()
    step(page, "first").click()
    with page.expect_request(OF_ONE_KEY):
        inspector(page).get_by_role("button", name="40 kB, show").click()
    step(page, "second").click()
    expect(inspector(page)).to_contain_text("step 2")
    answer_all(page, held)
    expect(key_of(page, "large").get_by_role("button", name="40 kB, show")).to_be_visible()
    expect(page.get_by_role("status").get_by_text("Cannot")).to_have_count(0)


def test_large_values_of_events_and_output_are_loaded_when_they_are_asked_for(
    serve: Any, visitor: Visitor
) -> None:
    """H20: with their sizes on the buttons."""
    store = MemoryStore()
    graph = large_values().compile(store=store, preserve=True)
    graph.execute({}, run_id="large")
    page = visitor.open(serve(store, [graph]), "/runs/large?view=events")
    page.get_by_role("button", name="step second").click()
    page.get_by_role("button", name="40 kB, show", exact=True).click()
    expect(page.get_by_text("b" * 200).first).to_be_visible()
    page.get_by_role("tab", name="timeline").click()
    step(page, "first").click()
    inspector(page).get_by_role("region", name="emitted").get_by_role("button", name="49 kB, show").click()
    expect(inspector(page).get_by_text("emitted" * 20).first).to_be_visible()


def failing_after(steps: int) -> StateGraph:
    """A cycle that fails after this many steps."""

    def count(state: Any) -> dict[str, Any]:
        if state.get("count", 0) == steps:
            raise ValueError("no more")
        return {"count": state.get("count", 0) + 1}

    graph = StateGraph({"count": int}, name="failing", max_iterations=None).add_node("count", count)
    return graph.set_entry_point("count").add_conditional_edges(
        "count", lambda state: True, {True: "count", False: END}
    )


def subgraphs() -> StateGraph:
    """A node of the same name in two subgraphs and beside them."""
    inner = StateGraph({"v": int}, name="inner").add_node("write", lambda state: {"v": 1})
    inner.set_entry_point("write").set_finish_point("write")
    graph = StateGraph({"v": int}, name="outer").add_node("first", inner).add_node("second", inner)
    graph.add_node("write", lambda state: {"v": 2}).set_entry_point("first").add_edge("first", "second")
    return graph.add_edge("second", "write").set_finish_point("write")


def fan_out(number: int) -> StateGraph:
    """Branches that begin at the same node."""
    graph = StateGraph({"v": int}, name="wide").add_node("begin", lambda state: {"v": 1})
    graph.add_fanin_node("join", run=lambda parallel_results: {"v": 2}).set_entry_point("begin")
    for index in range(number):
        graph.add_node(f"branch {index}", lambda state: {})
        graph.add_parallel_edge("begin", f"branch {index}", "join")
    return graph.set_finish_point("join")


def large_values() -> StateGraph:
    """Two steps that change a large value, and emit one."""

    def first(state: Any) -> dict[str, Any]:
        emit(["emitted" * 7000])
        return {"large": "a" * 40_000, "small": "step 1"}

    graph = StateGraph({"large": str, "small": str}, name="large").add_node("first", first)
    graph.add_node("second", lambda state: {"large": "b" * 40_000, "small": "step 2"})
    return graph.set_entry_point("first").add_edge("first", "second").set_finish_point("second")


def written(*states: dict[str, Any]) -> tuple[Any, Any]:
    """A run whose nodes set these values, and its store."""
    store = MemoryStore()
    nodes = {f"n{number}": (lambda state, each=each: each) for number, each in enumerate(states, 1)}
    graph = chain(*nodes.values(), schema=dict.fromkeys(states[0], object)).compile(
        store=store, preserve=True
    )
    graph.execute({}, run_id="written")
    return store, graph


def test_long_texts_show_where_they_differ(serve: Any, visitor: Visitor) -> None:
    """H20: not the same beginning twice; all of them on a click, and of items of lists what differs inside."""
    words = "The quick brown fox goes over the lazy dog. " * 4
    store, graph = written(
        {
            "text": f"{words}VERDICT: yes, of course. {words}",
            "items": [{"title": words, "score": 2}, {"a": 1}],
        },
        {
            "text": f"{words}VERDICT: no, of course. {words}",
            "items": [{"title": words, "score": 99}, {"a": 1}],
        },
    )
    page = visitor.open(serve(store, [graph]), "/runs/written")
    step(page, "n2").click()
    text = key_of(page, "text")
    expect(text.locator(".diff-old")).to_have_text(re.compile('^"….{10,}VERDICT: yes, of course.+…"$'))
    expect(text.locator(".diff-new")).to_have_text(re.compile('^"….{10,}VERDICT: no, of course.+…"$'))
    text.get_by_role("button", name="all characters").click()
    expect(text.locator(".diff-old")).to_contain_text(words.strip())
    expect(text.locator(".diff-new")).to_contain_text(f"{words}VERDICT: no")
    score = key_of(page, "items").get_by_role("listitem").filter(has_text="score").last
    expect(score).to_contain_text("2 → 99")
    expect(key_of(page, "items")).not_to_contain_text("title")


def test_all_types_of_events_can_be_chosen(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: by the names that they have in the list; where there are none, it says so."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/rocks-5?view=events")
    events = page.locator(".events").get_by_role("listitem")
    expect(events.first).to_be_visible()
    offered = page.get_by_role("combobox").locator("option").all_inner_texts()
    documented = re.findall(
        r"^\| (`[a-z_`, ]+`) \|", EVENTS.read_text().split("### The events")[1].split("\n#")[0], re.MULTILINE
    )
    assert {name for line in documented for name in re.findall("[a-z_]+", line)} <= set(offered)
    page.get_by_role("combobox").select_option("fail")
    expect(events).to_have_count(1)
    page.get_by_role("combobox").select_option("rollback")
    expect(page.get_by_text("none", exact=True)).to_be_visible()


def test_a_run_that_can_not_be_read_says_why(serve: Any, visitor: Visitor) -> None:
    """H20: it isn't the connection."""
    visitor.excuse("status of 5")
    store, graph = written({"text": "a"}, {"text": "b"})
    records = store._runs["written"].records
    records[0] = records[0][:-1] + bytes([records[0][-1] ^ 1])
    page = visitor.open(serve(store, [graph]), "/runs/written")
    expect(page.get_by_text("Its journal can't be read to its end")).to_contain_text("damaged")
    expect(page.get_by_text("connection lost")).to_have_count(0)


def test_the_timeline_is_where_it_was_after_another_view(serve: Any, visitor: Visitor) -> None:
    """H20: with the selected step in it."""
    store = MemoryStore()
    graph = failing_after(3000).compile(store=store, preserve=True)
    list(graph.stream({}, run_id="long"))
    page = visitor.open(serve(store, [graph]), "/runs/long")
    selected = page.get_by_role("treeitem", selected=True)
    expect(selected).to_be_in_viewport()
    page.keyboard.press("3")
    expect(selected).to_have_count(0)
    page.keyboard.press("1")
    expect(selected).to_be_in_viewport()


def test_a_run_that_took_the_place_of_another_has_its_own_axis(serve: Any, visitor: Visitor) -> None:
    """H20: also if it has as many steps."""
    store, graph = written({"text": "a"}, {"text": "b"})
    page = visitor.arrive(server := serve(store, [graph]), viewport=SCREEN)
    page.add_init_script(SOONER)
    page.goto(address_of(server, "/runs/written"))
    expect(page.get_by_role("treeitem")).to_have_count(2)
    expect(page.get_by_role("button", name="ended")).to_be_visible()
    began = page.locator(".timeline-tools .faint").inner_text()
    Runs(store).delete("written")
    graph.execute({}, run_id="written")
    expect(page.locator(".timeline-tools .faint")).not_to_have_text(began)
    places = "[...document.querySelectorAll('.bar')].map((bar) => [bar.style.left, bar.style.width])"
    shown = page.evaluate(places)
    page.reload()
    expect(page.get_by_role("treeitem")).to_have_count(2)
    assert page.evaluate(places) == shown
