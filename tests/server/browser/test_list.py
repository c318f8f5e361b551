"""The list of runs in a real browser."""

from __future__ import annotations

import re
from typing import Any

import pytest

from limpet import MemoryStore
from limpet.engine.leases import workers
from limpet.server.routes import questions
from support import sample_runs
from support.browser import PHONE, SCREEN, Page, Route, Visitor, address_of, answer_all, expect
from support.http_server import TOKEN
from support.waiting import until

LIST = re.compile(r"/api/v1/runs\?")
"""Requests for the list."""

COUNTS_MESSAGES = """
const Source = window.EventSource;
window.EventSource = class extends Source {
  constructor(...given) {
    super(...given);
    this.addEventListener("open", () => (window.heard ??= 0));
    this.addEventListener("changed", () => (window.heard += 1));
  }
};
"""
"""Has the page count the changes that it hears of, since its stream is open."""

HOLDS_FILTER = """
const later = window.setTimeout;
window.setTimeout = (call, time, ...rest) => (time === 300 ? ((window.typed = call), 0) : later(call, time, ...rest));
"""
"""Has the page apply what is typed into the filter when `typed` is called."""


def shown(page: Page, *run_ids: str) -> None:
    """Wait until the list has exactly these runs, in this order."""
    links = page.get_by_role("table").get_by_role("link").filter(has_text=re.compile(r"-\d+$"))
    expect(links).to_have_text(list(run_ids))


def queued_runs(number: int) -> tuple[Any, Any]:
    """A store with this many runs that wait for a worker, and their graph."""
    store = MemoryStore()
    graph = sample_runs.counter().compile(store=store)
    for index in range(number):
        graph.start({"until": 3}, run_id=f"run-{index}")
    return store, graph


def test_a_url_with_the_token_gives_a_cookie_and_loses_the_token(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: neither the address nor the history of the browser has it, and scripts can't read the cookie."""
    server = serve(samples.store, samples.graphs.values())
    page = visitor.open(server, "/runs?q=tag%3Anightly")
    shown(page, "rocks-5", "tides-3", "kelp-1")
    assert page.url == f"{server.address}/runs?q=tag%3Anightly"
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert TOKEN not in cookie["value"]
    assert page.evaluate("document.cookie") == ""
    page.goto(server.address + "/graphs")
    expect(page.get_by_role("heading", name="Graphs")).to_be_visible()
    page.go_back()
    shown(page, "rocks-5", "tides-3", "kelp-1")
    assert "token" not in page.url


def test_chips_count_runs_by_status_and_filter_the_list(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: the filter is in the address, and still there after a reload."""
    server = serve(samples.store, samples.graphs.values())
    page = visitor.open(server)
    chips = page.get_by_role("group", name="filter by status").get_by_role("button")
    expect(chips).to_have_count(6)
    for words in ("2 paused", "1 cancelled", "1 queued", "1 sleeping"):
        expect(chips.filter(has_text=words)).to_be_visible()
    page.get_by_role("button", name="1 failed").click()
    shown(page, "rocks-5")
    expect(page.get_by_role("button", name="1 failed")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="3 completed").click()
    shown(page, "rocks-5", "papers-4", "tides-3", "moss-2")
    assert page.url == f"{server.address}/?q=status%3Afailed+status%3Acompleted"
    page.reload()
    shown(page, "rocks-5", "papers-4", "tides-3", "moss-2")
    expect(page.get_by_role("combobox")).to_have_value("status:failed status:completed")
    page.get_by_role("button", name="1 failed").click()
    shown(page, "papers-4", "tides-3", "moss-2")


def test_a_filter_is_typed_with_suggestions_by_keys_alone(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    page = visitor.open(serve(samples.store, samples.graphs.values()))
    shown_first = page.get_by_role("link", name="sand-9")
    expect(shown_first).to_be_visible()
    page.keyboard.press("/")
    box = page.get_by_role("combobox", name="filter the runs")
    expect(box).to_be_focused()
    page.keyboard.type("gra")
    expect(page.get_by_role("option")).to_have_text(
        [re.compile("^graph:the name of its"), re.compile("open the run")]
    )
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("option", name="graph:", selected=True)).to_be_visible()
    page.keyboard.press("Enter")
    expect(box).to_have_value("graph:")
    expect(page.get_by_role("option")).to_have_text(["graph:article", "graph:import", "graph:research"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    shown(page, "papers-8", "rocks-5", "papers-4")
    page.keyboard.type(" status:fai")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    shown(page, "rocks-5")
    expect(page.get_by_role("listbox")).to_have_count(0)
    expect(page).to_have_url(re.compile(r"\?q=graph%3Aresearch\+status%3Afailed$"))


def test_back_and_forward_keep_the_filter(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    server = serve(samples.store, samples.graphs.values())
    page = visitor.open(server, "/runs?q=graph%3Aarticle")
    shown(page, "sand-9", "weed-7", "tides-3", "moss-2", "kelp-1")
    page.get_by_role("link", name="moss-2").click()
    expect(page.get_by_role("heading", name="moss-2")).to_be_visible()
    page.go_back()
    shown(page, "sand-9", "weed-7", "tides-3", "moss-2", "kelp-1")
    expect(page.get_by_role("combobox")).to_have_value("graph:article")
    page.go_forward()
    expect(page.get_by_role("heading", name="moss-2")).to_be_visible()
    page.get_by_role("link", name="runs", exact=True).click()
    expect(page.get_by_role("combobox")).to_have_value("")
    page.go_back()
    page.go_back()
    expect(page.get_by_role("combobox")).to_have_value("graph:article")


def test_a_filter_that_is_wrong_says_why_and_keeps_the_list(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20."""
    page = visitor.open(serve(samples.store, samples.graphs.values()))
    box = page.get_by_role("combobox")
    visitor.excuse("status of 400")
    for text, problem in (
        ("colour:red", "there is no filter “colour:”"),
        ("status:broken", "there is no status “broken”"),
        ("since:soon", "soon"),
    ):
        box.fill(text)
        expect(page.get_by_role("alert")).to_contain_text(problem)
        expect(page.get_by_role("link", name="sand-9")).to_be_visible()
    box.fill('text:"no rating"')
    shown(page, "rocks-5")
    box.fill("nothing like this")
    expect(page.get_by_text("No run matches.")).to_be_visible()
    page.get_by_role("button", name="Show all runs").click()
    expect(page.get_by_role("link", name="sand-9")).to_be_visible()
    expect(box).to_have_value("")


def test_the_id_of_a_run_opens_it(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: what isn't the id of a run is a text to search for."""
    page = visitor.open(serve(samples.store, samples.graphs.values()))
    visitor.excuse("status of 404")
    box = page.get_by_role("combobox")
    box.fill("rating")
    box.press("Enter")
    shown(page, "rocks-5")
    box.fill("kelp-1")
    box.press("Enter")
    expect(page.get_by_role("heading", name="kelp-1")).to_be_visible()


def test_runs_that_wait_for_a_person_are_on_top_and_are_answered_there(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: a question with few choices has a button for each; another one leads to its form."""
    server = serve(samples.store, samples.graphs.values(), works=True)
    page = visitor.open(server)
    waiting = page.get_by_role("region", name="runs that wait for you")
    expect(waiting.get_by_role("listitem")).to_have_count(2)
    waiting.get_by_role("button", name="yes").click()
    expect(page.get_by_role("status").get_by_text("answered kelp-1")).to_be_visible()
    expect(waiting.get_by_role("listitem")).to_have_count(1)
    expect(page.get_by_role("row", name="completed article kelp-1")).to_be_visible()
    assert samples.graphs["article"].get("kelp-1").state["verdict"] == "yes"
    waiting.get_by_role("link", name="How shall the index be rebuilt?").click()
    expect(page.get_by_role("heading", name="batch-6")).to_be_visible()


def test_long_lists_have_pages(serve: Any, visitor: Visitor) -> None:
    """H20: each with an address of its own."""
    store, graph = queued_runs(120)
    page = visitor.open(serve(store, [graph]))
    rows = page.get_by_role("row")
    expect(rows).to_have_count(51)
    expect(page.get_by_role("link", name="run-119")).to_be_visible()
    expect(page.get_by_role("link", name="newest")).to_have_count(0)
    page.get_by_role("link", name="older").click()
    expect(page.get_by_role("link", name="run-69")).to_be_visible()
    expect(rows).to_have_count(51)
    page.reload()
    page.get_by_role("link", name="older").click()
    expect(rows).to_have_count(21)
    expect(page.get_by_role("link", name="older")).to_have_count(0)
    page.go_back()
    expect(page.get_by_role("link", name="run-69")).to_be_visible()
    page.get_by_role("link", name="newest").click()
    expect(page.get_by_role("link", name="run-119")).to_be_visible()


def test_an_empty_store_teaches(serve: Any, visitor: Visitor) -> None:
    """H20: the Python on the page makes a run, and the page shows it without being loaded again."""
    store = MemoryStore()
    page = visitor.open(serve(store))
    expect(page.get_by_text("There are no runs yet")).to_be_visible()
    code = page.get_by_role("figure").locator("code").inner_text()
    exec(code.replace('"sqlite:///runs.db"', "STORE"), {"STORE": store})
    row = page.get_by_role("row", name="hello")
    expect(row).to_be_visible()
    expect(row.get_by_role("img", name="completed")).to_be_visible()
    for name, words in (
        ("graphs", "the code of no graph"),
        ("schedules", "Nothing starts by itself yet"),
        ("workers", "No worker is running"),
    ):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_text(words)).to_be_visible()


def test_a_new_run_appears_and_the_others_keep_their_order(serve: Any, visitor: Visitor) -> None:
    """H20: without being asked for; a run that ended changes in its place."""
    store, graph = queued_runs(3)
    page = visitor.open(serve(store, [graph]))
    shown(page, "run-2", "run-1", "run-0")
    page.evaluate("document.querySelector('h1').dataset.seen = 'yes'")
    graph.start({"until": 3}, run_id="run-3")
    shown(page, "run-3", "run-2", "run-1", "run-0")
    graph.resume("run-1")
    until(lambda: graph.get("run-1").status == "completed")
    expect(page.get_by_role("row", name="completed counter run-1")).to_be_visible()
    assert page.evaluate("document.querySelector('h1').dataset.seen") == "yes"


def test_a_list_that_loads_slowly_is_shown_though_runs_change(serve: Any, visitor: Visitor) -> None:
    """H20: what is being loaded comes first; the changes since are loaded afterwards."""
    store, graph = queued_runs(1)
    page = visitor.arrive(server := serve(store, [graph]), viewport=SCREEN)
    page.add_init_script(COUNTS_MESSAGES)
    held: list[Route] = []
    answered: list[bool] = []
    page.route(LIST, lambda route: route.continue_() if answered else held.append(route))
    page.goto(address_of(server, "/"))
    until(lambda: page.evaluate("window.heard !== undefined"), "the stream")
    for number in (1, 2):
        heard = page.evaluate("window.heard")
        graph.start({"until": 3}, run_id=f"run-{number}")
        until(lambda heard=heard: page.evaluate("window.heard") > heard, "a message")
    assert len(held) == 1
    answered.append(True)
    answer_all(page, held)
    shown(page, "run-2", "run-1", "run-0")


def test_runs_that_wait_do_not_move_the_others_when_the_list_is_opened(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: both are shown at the same time."""
    page = visitor.arrive(server := serve(samples.store, samples.graphs.values()), viewport=SCREEN)
    held: list[Route] = []
    page.route(re.compile("/questions"), lambda route: held.append(route))
    with page.expect_response(LIST):
        page.goto(address_of(server, "/"))
    assert page.locator(".run-row").count() == 0
    answer_all(page, held)
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    expect(page.get_by_role("region", name="runs that wait for you")).to_be_visible()


def test_chips_count_what_the_filter_finds(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: whatever their status is, so that each says what a click on it shows."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs?q=tag%3Anightly")
    chips = page.get_by_role("group", name="filter by status").get_by_role("button")
    expect(chips).to_have_text(["1 failed", "1 paused", "1 completed"])
    page.get_by_role("button", name="1 failed").click()
    shown(page, "rocks-5")
    expect(chips).to_have_text(["1 failed", "1 paused", "1 completed"])


def test_chips_say_of_which_statuses_there_are_more(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: also of those of which none was counted."""
    page = visitor.arrive(server := serve(samples.store, samples.graphs.values()), viewport=SCREEN)
    answer = {"counts": {"queued": 500, "sleeping": 3}, "more": ["queued", "retrying"]}
    page.route(re.compile("/counts"), lambda route: route.fulfill(json=answer))
    page.goto(address_of(server, "/"))
    chips = page.get_by_role("group", name="filter by status").get_by_role("button")
    expect(chips).to_have_count(3)
    for words in ("500+ queued", "3 sleeping", "+ retrying"):
        expect(chips.filter(has_text=re.compile(rf"^{re.escape(words)}$"))).to_be_visible()


def test_suggestions_know_what_was_shown_before(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: not only what is in the list now."""
    page = visitor.open(serve(samples.store, samples.graphs.values()))
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    box = page.get_by_role("combobox", name="filter the runs")
    box.fill("graph:import ")
    shown(page, "batch-6")
    box.press_sequentially("tag:")
    expect(page.get_by_role("option", name="tag:nightly")).to_be_visible()


def test_the_run_that_was_chosen_by_keys_is_retried_and_forked(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: with the same keys as on its own page."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs?q=status%3Afailed")
    shown(page, "rocks-5")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="rocks-5")).to_be_focused()
    expect(page.get_by_role("row", name="rocks-5")).to_have_attribute("aria-current", "true")
    page.keyboard.press("f")
    dialog = page.get_by_role("dialog", name="Fork rocks-5")
    expect(dialog.get_by_role("spinbutton", name="step")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("r")
    page.get_by_role("dialog", name="Retry runs").get_by_role("button", name="Retry 1 run").click()
    expect(page.get_by_text("1 run handed to the workers")).to_be_visible()
    assert samples.graphs["research"].get("rocks-5").info.shown_status == "queued"


def test_the_way_back_from_a_run_leads_to_the_list_as_it_was(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: with its filter, above which those that wait are closed. The beginning of an id finds a run, too."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs?q=status%3Afailed")
    waiting = page.get_by_role("region", name="runs that wait for you")
    expect(waiting.get_by_role("button", name="Waiting for you (2)")).to_have_attribute(
        "aria-expanded", "false"
    )
    page.get_by_role("link", name="rocks-5").click()
    expect(page.get_by_role("treeitem").first).to_be_visible()
    page.keyboard.press("Escape")
    shown(page, "rocks-5")
    box = page.get_by_role("combobox", name="filter the runs")
    expect(box).to_have_value("status:failed")
    box.fill("rock")
    expect(page.get_by_role("option").first).to_contain_text("rocks-5")
    page.get_by_role("option", name="rocks-5").click()
    expect(page.get_by_role("heading", name="rocks-5")).to_be_visible()


def test_a_page_that_is_left_while_a_filter_is_typed_keeps_its_address(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: the filter isn't put into that of the next one."""
    page = visitor.arrive(server := serve(samples.store, samples.graphs.values()), viewport=SCREEN)
    page.add_init_script(HOLDS_FILTER)
    page.goto(address_of(server, "/"))
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    page.get_by_role("combobox", name="filter the runs").press_sequentially("abc")
    page.evaluate("document.querySelector('nav a[href$=graphs]').click()")
    expect(page.get_by_role("heading", name="Graphs")).to_be_visible()
    page.evaluate("window.typed()")
    assert page.url == f"{server.address}/graphs"


def test_a_store_that_can_only_be_read_offers_no_changes(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    server = serve(samples.store, samples.graphs.values(), read_only=True)
    page = visitor.open(server)
    expect(page.get_by_text("read-only")).to_be_visible()
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    expect(page.get_by_role("checkbox")).to_have_count(0)
    expect(page.get_by_role("button", name="yes")).to_have_count(0)
    page.get_by_role("link", name="rocks-5").click()
    expect(page.get_by_role("heading", name="rocks-5")).to_be_visible()
    expect(page.get_by_role("button", name="export")).to_be_visible()
    for name in ("retry", "fork", "cancel", "more actions"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.goto(address_of(server, "/graphs/article", ""))
    expect(page.get_by_role("heading", name="article")).to_be_visible()
    expect(page.get_by_role("button", name="Start")).to_have_count(0)


def test_all_runs_that_wait_for_a_person_can_be_reached(serve: Any, visitor: Visitor) -> None:
    """H20: also where more wait than are listed on top."""
    store = MemoryStore()
    graph = sample_runs.survey().compile(store=store)
    for number in range(60):
        list(graph.stream({}, run_id=f"asked-{number}"))
    page = visitor.open(serve(store, [graph]))
    waiting = page.get_by_role("region", name="runs that wait for you")
    expect(waiting.get_by_role("heading", name="Waiting for you (60)")).to_be_visible()
    waiting.get_by_role("button", name="55 more").click()
    expect(waiting.get_by_role("listitem")).to_have_count(50)
    waiting.get_by_role("link", name="10 more").click()
    expect(page.get_by_role("row")).to_have_count(51)
    page.get_by_role("link", name="older").click()
    expect(page.get_by_role("link", name="asked-0")).to_have_count(1)


def test_where_very_many_wait_the_number_says_that_there_are_more(
    serve: Any, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H20."""
    monkeypatch.setattr(questions, "MAX_PAUSED", 7)
    store = MemoryStore()
    graph = sample_runs.survey().compile(store=store)
    for number in range(9):
        list(graph.stream({}, run_id=f"asked-{number}"))
    page = visitor.open(serve(store, [graph]))
    waiting = page.get_by_role("region", name="runs that wait for you")
    expect(waiting.get_by_role("heading", name="Waiting for you (7+)")).to_be_visible()
    expect(waiting.get_by_role("button", name="2+ more")).to_be_visible()


def test_where_very_many_runs_have_no_worker_the_number_says_that_there_are_more(
    serve: Any, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H20."""
    monkeypatch.setattr(workers, "MAX_COUNTED", 3)
    store, graph = queued_runs(5)
    page = visitor.open(serve(store, [graph]), "/workers")
    expect(page.get_by_role("link", name="3+ runs of counter")).to_be_visible()


def test_a_list_without_boxes_shows_whole_ids_on_a_phone(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    server = serve(samples.store, samples.graphs.values(), read_only=True)
    page = visitor.open(server, viewport=PHONE)
    link = page.get_by_role("row").get_by_role("link", name="papers-4")
    expect(link).to_be_visible()
    assert link.evaluate("(link) => link.parentElement.scrollWidth <= link.parentElement.clientWidth")


def test_a_filter_that_makes_no_sense_is_refused(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: it doesn't ask for something else; and what is shown from before isn't selected by mistake."""
    page = visitor.open(serve(samples.store, samples.graphs.values()))
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    visitor.requests.clear()
    for text, problem in (("unserved:false", "unserved:true"), ("graph:article graph:research", "twice")):
        page.get_by_role("combobox").fill(text)
        expect(page.get_by_role("alert")).to_contain_text(problem)
        page.get_by_role("row", name="rocks-5").get_by_role("checkbox").click()
        expect(page.get_by_role("button", name="delete")).to_have_count(0)
    assert [url for url in visitor.requests if LIST.search(url)] == []


def test_a_run_that_is_found_late_takes_no_reader_back(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: who has opened another page meanwhile stays there."""
    page = visitor.open(serve(samples.store, samples.graphs.values()))
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    held: list[Route] = []
    page.route(re.compile("/api/v1/runs/kelp-1$"), lambda route: held.append(route))
    page.get_by_role("combobox").fill("kelp-1")
    page.get_by_role("combobox").press("Enter")
    page.get_by_role("link", name="graphs", exact=True).click()
    expect(page.get_by_role("heading", name="Graphs")).to_be_visible()
    answer_all(page, held)
    expect(page).to_have_url(re.compile("/graphs$"))


def test_a_server_that_does_not_answer_at_first_is_asked_again(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: the page isn't empty for ever."""
    visitor.excuse("status of 5")
    page = visitor.arrive(server := serve(samples.store, samples.graphs.values()), viewport=SCREEN)
    asked: list[Route] = []

    def answer(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:
            route.fulfill(status=503, json={"code": "store-unavailable", "detail": "busy", "status": 503})
        else:
            route.continue_()

    page.route(re.compile("/api/v1/about"), answer)
    page.goto(address_of(server, "/"))
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
