"""The same for many runs in a real browser."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from limpet import MemoryStore, Runs, StateGraph
from support import sample_runs
from support.browser import Locator, Page, Visitor, expect

NUMBER = 60


@pytest.fixture
def failing() -> Any:
    """A store with runs that have failed and one that completed, and their graph."""
    store = MemoryStore()

    def check(state: Any) -> dict[str, Any]:
        if state["number"]:
            raise ValueError("no luck")
        return {}

    graph = StateGraph({"number": int}, name="failing").add_node("check", check)
    graph.set_entry_point("check").set_finish_point("check").compile(store=store, preserve=True)
    for number in range(NUMBER):
        list(graph.stream({"number": number}, run_id=f"run-{number}", tags=[f"tag{number % 2}"]))
    return store, graph


def select(page: Page, run_id: str) -> Locator:
    return page.get_by_role("checkbox", name=f"select run {run_id}", exact=True)


def do(page: Page, verb: str) -> Locator:
    """The dialog for all that are selected."""
    page.get_by_role("toolbar", name="the selected runs").get_by_role("button", name=verb).click()
    dialog = page.get_by_role("dialog", name=f"{verb.title()} runs")
    expect(dialog).to_be_visible()
    return dialog


def statuses(store: Any, limit: int = 500) -> dict[str, str]:
    return {run.run_id: run.shown_status for run in Runs(store).list(limit=limit)}


def test_runs_are_selected_one_by_one_and_in_a_row(failing: Any, serve: Any, visitor: Visitor) -> None:
    """H20: the dialog names the number and those that can't be, and each run has an outcome."""
    store, graph = failing
    page = visitor.open(serve(store, [graph]))
    select(page, "run-59").click()
    select(page, "run-56").click(modifiers=["Shift"])
    toolbar = page.get_by_role("toolbar", name="the selected runs")
    expect(toolbar).to_contain_text("4 runs")
    select(page, "run-57").click()
    expect(toolbar).to_contain_text("3 runs")
    expect(select(page, "run-58")).to_be_checked()
    expect(select(page, "run-57")).not_to_be_checked()
    dialog = do(page, "retry")
    expect(dialog).to_contain_text("Retry 3 runs of those that are selected?")
    dialog.get_by_text("The same as a command line and in Python").click()
    expect(dialog.get_by_text("limpet runs retry run-59 run-58 run-56")).to_be_visible()
    dialog.get_by_role("button", name="Retry 3 runs").click()
    expect(dialog.get_by_role("status")).to_have_text("3 runs handed to the workers.")
    expect(dialog.get_by_role("listitem").filter(has_text="run-58")).to_be_visible()
    dialog.get_by_role("button", name="Done").click()
    expect(toolbar).to_have_count(0)
    expect(page.get_by_role("row", name="queued failing run-58")).to_be_visible()
    queued = {run_id for run_id, status in statuses(store).items() if status == "queued"}
    assert queued == {"run-59", "run-58", "run-56"}


def test_what_can_not_be_done_with_a_run_is_said_before_and_after(
    failing: Any, serve: Any, visitor: Visitor
) -> None:
    """H20."""
    store, graph = failing
    graph.start({"number": 0}, run_id="queued-1")
    page = visitor.open(serve(store, [graph]), "/?q=graph:failing")
    select(page, "queued-1").click()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(select(page, "run-59")).to_be_checked()
    dialog = do(page, "cancel")
    expect(dialog).to_contain_text("Cancel 1 run of those that are selected?")
    expect(dialog).to_contain_text("1 run can't be: see below.")
    expect(dialog.get_by_role("listitem").filter(has_text="run-59")).to_contain_text("failed")
    dialog.get_by_role("button", name="Cancel 1 run").click()
    expect(dialog.get_by_role("status")).to_have_text("1 run cancelled, 1 skipped.")
    assert statuses(store)["queued-1"] == "cancelled"


def test_all_that_match_a_filter_are_dealt_with(failing: Any, serve: Any, visitor: Visitor) -> None:
    """H20: not only those of the page; and the command line that is shown names the filter."""
    store, graph = failing
    for number in range(100, 140):
        list(graph.stream({"number": number}, run_id=f"run-{number}", tags=["tag0"]))
    page = visitor.open(serve(store, [graph]), "/?q=tag:tag0 status:failed")
    expect(select(page, "run-139")).to_be_visible()
    page.get_by_role("checkbox", name="select all runs of this page").click()
    toolbar = page.get_by_role("toolbar", name="the selected runs")
    expect(toolbar).to_contain_text("50 runs")
    toolbar.get_by_role("button", name="select all that match").click()
    expect(toolbar).to_contain_text("all runs that match")
    dialog = do(page, "delete")
    expect(dialog).to_contain_text("Delete 69 runs that match? Their journals are deleted for ever.")
    dialog.get_by_text("The same as a command line and in Python").click()
    command = shlex.split(dialog.get_by_role("figure").first.locator("code").inner_text())
    assert sorted(command) == ["--status", "--tag", "delete", "failed", "limpet", "runs", "tag0"]
    dialog.get_by_role("button", name="Delete 69 runs").click()
    expect(dialog.get_by_role("status")).to_have_text("69 runs deleted.")
    dialog.get_by_role("button", name="Done").click()
    expect(page.get_by_text("No run matches.")).to_be_visible()
    left = statuses(store)
    assert len(left) == 31
    assert left["run-0"] == "completed"


@pytest.mark.parametrize(
    ("path", "words", "given"),
    [
        ("/?q=status:queued", ["--status", "queued"], 'status=["queued"]'),
        ("/", ["--all"], "all_runs=True"),
    ],
)
def test_the_code_for_very_many_runs_names_how_many(
    path: str, words: list[str], given: str, serve: Any, visitor: Visitor
) -> None:
    """H20: as the dialog is about the newest 1,000 alone."""
    store = MemoryStore()
    graph = sample_runs.counter().compile(store=store)
    for number in range(1003):
        graph.start({"until": 1}, run_id=f"run-{number}")
    page = visitor.open(serve(store, [graph]), path)
    expect(select(page, "run-1002")).to_be_visible()
    page.get_by_role("checkbox", name="select all runs of this page").click()
    page.get_by_role("button", name="select all that match").click()
    dialog = do(page, "cancel")
    expect(dialog).to_contain_text("the newest 1,000; do it again for the others")
    dialog.get_by_text("The same as a command line and in Python").click()
    command, python = (
        dialog.get_by_role("figure").nth(index).locator("code").inner_text() for index in (0, 1)
    )
    assert shlex.split(command) == ["limpet", "runs", "cancel", *words, "--limit", "1000"]
    assert python.endswith(f"runs.cancel({given}, limit=1000)")
    exec(python, {"STORE": store})
    assert sorted(run for run, status in statuses(store, 2000).items() if status == "queued") == [
        "run-0",
        "run-1",
        "run-2",
    ]


def test_two_runs_that_are_selected_can_be_compared(failing: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    store, graph = failing
    page = visitor.open(serve(store, [graph]))
    select(page, "run-59").click()
    select(page, "run-57").click()
    page.get_by_role("link", name="compare").click()
    expect(page.get_by_role("heading", name="run-57")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="number")).to_contain_text("59 → 57")
