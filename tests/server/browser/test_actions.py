"""What can be done with a run in a real browser, and the same as a command line and in Python."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel

from limpet import MemoryStore, Runs, StateGraph, open_store, receive, secret
from limpet.cli.main import main
from support import sample_runs
from support.browser import Locator, Page, Route, Visitor, answer_all, await_frame, expect
from support.waiting import until

BIG = 2**70


def asked(page: Page, button: str, title: str) -> Locator:
    """The dialog that a button of a run opens, or an entry of its menu."""
    page.get_by_role("treeitem").first.wait_for()
    if not page.get_by_role("button", name=button, exact=True).is_visible():
        page.get_by_label("more actions").click()
    page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog", name=title)
    expect(dialog).to_be_visible()
    return dialog


def code_of(dialog: Locator) -> tuple[list[str], str]:
    """The command line that a dialog shows, as words, and its Python."""
    dialog.get_by_text("The same as a command line and in Python").click()
    figures = dialog.get_by_role("figure")
    expect(figures).to_have_count(2)
    command, python = (figures.nth(index).locator("code").inner_text() for index in (0, 1))
    words = shlex.split(command)
    assert words[0] == "limpet"
    return words[1:], python


def status(page: Page, words: str) -> None:
    """Wait until the head of the page has a status."""
    expect(page.get_by_role("main").get_by_role("img", name=words).first).to_be_visible()


@pytest.fixture
def numbers() -> Any:
    """Runs of a graph whose state has a number that JavaScript can't hold, and their store."""
    store = MemoryStore()
    graph = StateGraph({"big": int, "text": str, "extra": list}, name="numbers")
    graph.add_node("begin", lambda state: {"big": BIG, "text": "as it was"})
    graph.add_node("end", lambda state: {"big": state["big"] + 1})
    graph.set_entry_point("begin").add_edge("begin", "end").set_finish_point("end")
    graph.compile(store=store, preserve=True).execute({}, run_id="numbers-1")
    return store, graph


def test_a_run_is_forked_with_edits_and_compared(numbers: Any, serve: Any, visitor: Visitor) -> None:
    """H20: what isn't JSON is said where it is, and nothing that was typed is lost; big numbers stay exact."""
    store, graph = numbers
    server = serve(store, [graph], works=True)
    page = visitor.open(server, "/runs/numbers-1")
    page.get_by_role("treeitem", name="begin").click()
    page.get_by_role("button", name="fork after it").click()
    dialog = page.get_by_role("dialog", name="Fork numbers-1")
    expect(dialog.get_by_role("textbox", name="big")).to_have_value(str(BIG))
    dialog.get_by_role("textbox", name="text").fill("no quotes")
    dialog.get_by_role("textbox", name="another key").fill("extra")
    dialog.get_by_role("textbox", name="its value as JSON").fill(f'[{BIG}, "<b>"]')
    dialog.get_by_role("textbox", name="id of the new run").fill("numbers-2")
    dialog.get_by_role("button", name="Fork").click()
    expect(dialog.get_by_role("alert")).to_contain_text("text isn't JSON (a text needs quotes)")
    expect(dialog.get_by_role("textbox", name="text")).to_have_value("no quotes")
    expect(dialog.get_by_role("textbox", name="its value as JSON")).to_have_value(f'[{BIG}, "<b>"]')
    dialog.get_by_role("textbox", name="text").fill('"with quotes"')
    dialog.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("heading", name="numbers-2")).to_be_visible()
    status(page, "completed")
    assert graph.get("numbers-2").state == {"big": BIG + 1, "text": "with quotes", "extra": [BIG, "<b>"]}

    page.get_by_role("status").get_by_role("link", name="compare").click()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    expect(page.get_by_role("heading", name="numbers-1")).to_be_visible()
    expect(page.get_by_role("heading", name="numbers-2")).to_be_visible()
    changes = page.get_by_role("listitem")
    expect(changes.filter(has_text="text")).to_contain_text("with quotes")
    expect(changes.filter(has_text="extra").first).to_contain_text(str(BIG))
    expect(page.get_by_text("The same in both: big")).to_be_visible()
    page.get_by_role("spinbutton").first.fill("1")
    page.keyboard.press("Enter")
    expect(changes.filter(has_text="big")).to_contain_text(f"{BIG} → {BIG + 1}")
    page.get_by_role("heading", name="numbers-2").get_by_role("link").click()
    expect(page.get_by_text("forked from numbers-1")).to_be_visible()


def test_edits_of_a_fork_stay_while_other_states_load(numbers: Any, serve: Any, visitor: Visitor) -> None:
    """H20: however slowly, and when one can't be loaded."""
    store, graph = numbers
    visitor.excuse("status of 4")
    page = visitor.open(serve(store, [graph]), "/runs/numbers-1")
    page.get_by_role("treeitem", name="end").click()
    page.get_by_role("button", name="fork after it").click()
    dialog = page.get_by_role("dialog", name="Fork numbers-1")
    dialog.get_by_role("textbox", name="text").fill('"edited"')
    held: list[Route] = []
    page.route(re.compile("/state"), lambda route: held.append(route))
    step = dialog.get_by_role("spinbutton", name="step")
    for number in ("1", "0", "99", "1"):
        with page.expect_request(re.compile(f"/state.*step={number}")):
            step.fill(number)
            step.press("Tab")
        await_frame(page)
    answer_all(page, held)
    expect(dialog.get_by_role("textbox", name="text")).to_have_value('"edited"')
    expect(dialog.get_by_role("textbox", name="big")).to_have_value(str(BIG))
    dialog.get_by_role("textbox", name="id of the new run").fill("numbers-2")
    dialog.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("heading", name="numbers-2")).to_be_visible()
    assert graph.get("numbers-2").state == {"big": BIG, "text": "edited"}


def test_a_comparison_shows_the_steps_that_were_chosen_last(
    numbers: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: those before aren't waited for any longer."""
    store, graph = numbers
    page = visitor.open(serve(store, [graph]), "/compare?a=numbers-1&a_step=0&b=numbers-1")
    changes = page.get_by_role("listitem")
    expect(changes.filter(has_text="big")).to_contain_text(f"+big{BIG + 1}")
    held: list[Route] = []
    page.route(re.compile("/compare.*step=1"), lambda route: held.append(route))
    step = page.get_by_role("spinbutton").first
    with page.expect_request(re.compile("/compare.*step=1")):
        step.fill("1")
        page.keyboard.press("Enter")
    with page.expect_event("requestfailed") as given_up:
        step.fill("2")
        page.keyboard.press("Enter")
    assert "step=1" in given_up.value.url
    expect(page.get_by_text("nothing changed")).to_be_visible()


def test_what_would_lose_a_secret_is_not_edited_in_a_fork(serve: Any, visitor: Visitor) -> None:
    """H20: a value with a secret in it is only shown; a secret as a whole can be replaced."""
    store = MemoryStore()
    graph = StateGraph({"key": Annotated[str, secret], "sent": dict, "more": int}, name="secretive")
    graph.add_node("begin", lambda state: {"key": "one", "sent": {"key": "one", "n": 1}, "more": 1})
    graph.set_entry_point("begin").set_finish_point("begin")
    graph.compile(store=store, preserve=True, allow_plain_text_secrets=True).execute({}, run_id="s-1")
    page = visitor.open(serve(store, [graph]), "/runs/s-1")
    page.get_by_role("treeitem", name="begin").click()
    page.get_by_role("button", name="fork after it").click()
    dialog = page.get_by_role("dialog", name="Fork s-1")
    expect(dialog.get_by_role("textbox", name="sent")).not_to_be_editable()
    expect(dialog.get_by_text("can't be edited: a secret is in it")).to_be_visible()
    dialog.get_by_role("textbox", name="key", exact=True).fill('"two"')
    dialog.get_by_role("textbox", name="id of the new run").fill("s-2")
    dialog.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("heading", name="s-2")).to_be_visible()
    assert graph.get("s-2").state == {"key": "two", "sent": {"key": "one", "n": 1}, "more": 1}


def test_the_python_of_a_fork_does_the_same(numbers: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    store, graph = numbers
    page = visitor.open(serve(store, [graph]), "/runs/numbers-1")
    page.get_by_role("treeitem", name="begin").click()
    page.get_by_role("button", name="fork after it").click()
    dialog = page.get_by_role("dialog", name="Fork numbers-1")
    text = 'it\'s "so" \\ \n ☃ true'
    dialog.get_by_role("textbox", name="text").fill(json.dumps(text))
    dialog.get_by_role("textbox", name="another key").fill("extra")
    dialog.get_by_role("textbox", name="its value as JSON").fill(f'[null, true, {{"a": -{BIG}}}, 1.5e3]')
    dialog.get_by_role("textbox", name="id of the new run").fill("it's new")
    command, python = code_of(dialog)
    exec(python, {"STORE": store, "graph": graph})
    expected = {"text": text, "extra": [None, True, {"a": -BIG}, 1500.0], "big": BIG}
    assert dict(graph.get("it's new").state) == expected
    assert graph.get("it's new").info.shown_status == "queued"
    assert command[:4] == ["runs", "fork", "--step", "1"]
    assert f"text={json.dumps(text, ensure_ascii=False)}" in command
    assert command[-4:] == ["--begin", "--graph", "MODULE:GRAPH", "numbers-1"]


def test_the_code_of_a_fork_that_does_not_begin_does_the_same(
    numbers: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: also after the box was clicked while the code is shown."""
    store, graph = numbers
    page = visitor.open(serve(store, [graph]), "/runs/numbers-1")
    dialog = asked(page, "fork", "Fork numbers-1")
    dialog.get_by_role("textbox", name="id of the new run").fill("later")
    code_of(dialog)
    dialog.get_by_role("checkbox", name="hand it to the workers at once").click()
    expect(dialog.get_by_role("figure").first).not_to_contain_text("--begin")
    exec(dialog.get_by_role("figure").nth(1).locator("code").inner_text(), {"STORE": store, "graph": graph})
    assert graph.get("later").info.shown_status == "paused"


def test_the_code_of_a_fork_leaves_out_only_what_is_not_json(
    numbers: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: the other edits stay in it."""
    store, graph = numbers
    page = visitor.open(serve(store, [graph]), "/runs/numbers-1")
    dialog = asked(page, "fork", "Fork numbers-1")
    dialog.get_by_role("textbox", name="big").fill("7")
    dialog.get_by_role("textbox", name="text").fill("no quotes")
    command, python = code_of(dialog)
    assert [word for word in command if "=" in word] == ["big=7"]
    assert '{"big": 7}' in python


def test_a_fork_after_a_step_that_is_not_there_says_so(numbers: Any, serve: Any, visitor: Visitor) -> None:
    """H20: it doesn't go on loading."""
    visitor.excuse("status of 4")
    store, graph = numbers
    page = visitor.open(serve(store, [graph]), "/runs/numbers-1")
    dialog = asked(page, "fork", "Fork numbers-1")
    expect(dialog.get_by_role("textbox", name="text")).to_be_visible()
    dialog.get_by_role("spinbutton", name="step").fill("99")
    page.keyboard.press("Tab")
    expect(dialog.get_by_role("alert")).to_contain_text("99")
    expect(dialog.get_by_text("loading the state")).to_have_count(0)


def test_a_failed_run_is_retried(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: a worker of the server continues it, and the page follows."""
    server = serve(samples.store, samples.graphs.values(), works=True)
    page = visitor.open(server, "/runs/rocks-5")
    page.get_by_role("treeitem", selected=True).filter(has_text="rate").wait_for()
    page.keyboard.press("r")
    dialog = page.get_by_role("dialog", name="Retry")
    expect(dialog.get_by_role("button", name="Retry")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("rocks-5: handed to the workers")).to_be_visible()
    expect(page.get_by_role("treeitem").filter(has_text="6 failed")).to_be_visible()
    status(page, "failed")


def test_the_command_line_of_a_retry_does_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Any, visitor: Visitor
) -> None:
    """H20: an id that looks like an option isn't taken for an option."""
    monkeypatch.setattr(sample_runs, "PACE", 0)
    url = f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("LIMPET_STORE", url)
    store = open_store(url)
    graph = sample_runs.research().compile(store=store)
    for run_id in ("--all", "it's; rm -rf ."):
        list(graph.stream({"strict": True}, run_id=run_id))
        page = visitor.open(serve(store), "/")
        page.get_by_role("link", name=run_id).click()
        command, python = code_of(asked(page, "retry", "Retry"))
        assert main(command) == 0
        assert graph.get(run_id).info.shown_status == "queued"
        graph.get(run_id).cancel()
        exec(python, {"STORE": store})
        assert graph.get(run_id).info.shown_status == "queued"


def test_copying_code_does_nothing_else(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: least of all what the dialog is about."""
    page = visitor.open(
        serve(samples.store), "/runs/moss-2", permissions=["clipboard-read", "clipboard-write"]
    )
    dialog = asked(page, "delete", "Delete run")
    command, _ = code_of(dialog)
    dialog.get_by_role("button", name="copy").first.click()
    expect(page.get_by_role("status").get_by_text("copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "limpet runs delete moss-2"
    assert command == ["runs", "delete", "moss-2"]
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Close", exact=True).click()
    expect(dialog).to_have_count(0)
    assert samples.graphs["article"].get("moss-2").status == "completed"
    asked(page, "delete", "Delete run").get_by_role("button", name="Delete run").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_attached()
    expect(page.get_by_role("link", name="rocks-5")).to_be_visible()
    expect(page.get_by_role("link", name="moss-2")).to_have_count(0)


def test_a_run_is_cancelled_and_set_back(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: the page says what has become of it."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/kelp-1")
    asked(page, "cancel", "Cancel run").get_by_role("button", name="Cancel run").click()
    expect(page.get_by_text("kelp-1: cancelled")).to_be_visible()
    status(page, "cancelled")
    dialog = asked(page, "rollback", "Roll back")
    dialog.get_by_role("spinbutton", name="after step").fill("1")
    command, python = code_of(dialog)
    assert command == ["runs", "rollback", "--graph", "MODULE:GRAPH", "kelp-1", "1"]
    assert 'runs.rollback("kelp-1", 1)' in python
    dialog.get_by_role("button", name="Roll back").click()
    status(page, "paused")
    assert samples.graphs["article"].get("kelp-1").state["words"] == 400
    assert "text" not in samples.graphs["article"].get("kelp-1").state
    dialog = asked(page, "resume", "Resume")
    dialog.get_by_role("button", name="Resume").click()
    status(page, "queued")


def test_a_run_is_approved_and_gets_a_message(serve: Any, visitor: Visitor) -> None:
    """H20: the dialog knows for which message the run waits."""
    store = MemoryStore()
    graph = StateGraph(name="gated")
    graph.add_node("hear", lambda state: {"heard": receive("note")}).add_node("end", lambda state: {})
    graph.set_entry_point("hear").add_edge("hear", "end").set_finish_point("end")
    graph.compile(store=store, preserve=True, interrupt_before=["end"])
    graph.start({}, run_id="gated-1")
    page = visitor.open(serve(store, [graph], works=True), "/runs/gated-1")
    status(page, "waiting")
    dialog = asked(page, "send", "Send")
    expect(dialog.get_by_role("textbox", name="name")).to_have_value("note")
    dialog.get_by_role("textbox", name="value").fill(f'{{"big": {BIG}}}')
    command, python = code_of(dialog)
    assert command == ["runs", "send", "gated-1", "note", f'{{"big":{BIG}}}']
    assert f'runs.send("gated-1", "note", {{"big": {BIG}}})' in python
    dialog.get_by_role("button", name="Send").click()
    expect(page.get_by_role("button", name="approve")).to_be_visible()
    assert graph.get("gated-1").state["heard"] == {"big": BIG}
    dialog = asked(page, "approve", "Approve")
    command, python = code_of(dialog)
    assert command == ["answer", "--detach", "gated-1"]
    dialog.get_by_role("textbox", name="as").fill("Ann")
    dialog.get_by_role("button", name="Approve").click()
    status(page, "completed")
    page.get_by_role("treeitem", name="end").click()
    expect(page.get_by_text("approved by Ann")).to_be_visible()


def test_a_run_is_exported_and_the_file_imported(
    samples: Any, serve: Any, visitor: Visitor, tmp_path: Path
) -> None:
    """H20."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/rocks-5")
    page.get_by_label("more actions").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="export").click()
    assert download.value.suggested_filename == "rocks-5.run"
    download.value.save_as(tmp_path / "rocks.run")
    other = Runs(MemoryStore())
    assert other.import_(tmp_path / "rocks.run") == "rocks-5"
    assert other.get("rocks-5").status == "failed"


def test_an_action_that_is_refused_says_why_and_stays_open(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20."""
    visitor.excuse("status of 4")
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/rocks-5")
    dialog = asked(page, "compare", "Compare")
    dialog.get_by_role("textbox", name="the id of the other run").fill("none")
    dialog.get_by_role("button", name="Compare").click()
    expect(dialog.get_by_role("alert")).to_contain_text("no run 'none'")
    dialog.get_by_role("textbox", name="the id of the other run").fill("papers-4")
    dialog.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(re.compile(r"/compare\?a=papers-4&b=rocks-5$"))


def test_a_run_is_started_with_a_form(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: made from the schema of its state."""
    page = visitor.open(serve(samples.store, samples.graphs.values(), works=True), "/graphs/article")
    expect(page.locator("[data-node=review]").first).to_be_visible()
    expect(page.get_by_role("link", name="moss-2")).to_be_visible()
    page.get_by_role("textbox", name="topic").fill("eels")
    page.get_by_role("radio", name="lively").check()
    page.get_by_role("textbox", name="words").fill("many")
    page.get_by_role("button", name="Start a run").click()
    problems = ["“many” isn't a whole number", "some values aren't right"]
    expect(page.get_by_role("alert")).to_have_text(problems)
    page.get_by_role("textbox", name="words").fill("300")
    page.get_by_text("id, tags and queue").click()
    page.get_by_role("textbox", name="id of the run").fill("eels-1")
    page.get_by_role("textbox", name="tags").fill("sea, night")
    page.get_by_role("button", name="Start a run").click()
    expect(page.get_by_role("heading", name="eels-1")).to_be_visible()
    expect(page.get_by_role("region", name="questions")).to_contain_text("Publish “All about eels.”?")
    handle = samples.graphs["article"].get("eels-1")
    assert (handle.state["tone"], tuple(handle.info.tags)) == ("lively", ("sea", "night"))


class Author(BaseModel):
    name: str
    born: int = 1900


class Book(BaseModel):
    title: str
    author: Author | None = None
    kinds: list[Literal["new", "old"]] | None = None
    read_by: list[Literal["ann", "bo"]] = []


@pytest.mark.parametrize("has_author", [False, True])
def test_what_is_optional_is_left_out_until_something_is_put_in(
    serve: Any, visitor: Visitor, has_author: bool
) -> None:
    """H20: objects whose fields are needed, or have values of their own, and lists of choices."""
    store = MemoryStore()
    graph = StateGraph(Book, name="book").add_node("read", lambda state: {})
    graph.set_entry_point("read").set_finish_point("read").compile(store=store, preserve=True)
    page = visitor.open(serve(store, [graph], works=True), "/graphs/book")
    page.get_by_role("textbox", name="title").fill("Tides")
    if has_author:
        page.get_by_role("textbox", name="name").fill("Ann")
        page.get_by_role("checkbox", name="old").check()
    page.get_by_role("button", name="Start a run").click()
    page.get_by_role("treeitem").first.wait_for()
    (run,) = Runs(store).list()
    given = graph.state_at(run.run_id, 0)
    expected = Author(name="Ann") if has_author else None
    assert (given["author"], given["kinds"]) == (expected, ["old"] if has_author else None)
    assert given["read_by"] == []


def test_schedules_are_triggered_paused_and_deleted(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    page = visitor.open(serve(samples.store, samples.graphs.values(), works=True), "/schedules")
    row = page.get_by_role("row").filter(has_text="nightly")
    row.get_by_role("button", name="pause").click()
    expect(row.get_by_role("button", name="resume")).to_be_visible()
    row.get_by_role("button", name="resume").click()
    expect(row.get_by_role("button", name="pause")).to_be_visible()
    row.get_by_role("button", name="run now").click()
    expect(page.get_by_role("status").get_by_role("link", name="open")).to_be_visible()
    until(lambda: any(run.run_id.startswith("nightly:") for run in Runs(samples.store).list()))
    page.reload()
    expect(row.get_by_role("link")).to_have_count(2)  # its graph, and its run
    row.get_by_role("button", name="delete").click()
    dialog = page.get_by_role("dialog", name="Delete schedule")
    command, python = code_of(dialog)
    assert command == ["schedules", "delete", "nightly"]
    exec(python, {"STORE": samples.store})
    dialog.get_by_role("button", name="Close", exact=True).click()
    expect(page.get_by_text("Nothing starts by itself yet")).to_be_visible()


def test_what_is_refused_without_a_dialog_says_why(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: a run with secrets isn't exported; without the code of a graph, nothing is set back."""
    visitor.excuse("status of 403")
    page = visitor.open(serve(samples.store), "/runs/tides-3")
    page.get_by_role("treeitem").first.wait_for()
    page.get_by_label("more actions").click()
    page.get_by_role("button", name="export").click()
    expect(page.get_by_text("run 'tides-3' has secrets")).to_be_visible()
    page.get_by_label("more actions").click()
    page.get_by_role("button", name="rollback").click()
    expect(page.get_by_role("dialog")).to_contain_text("limpet serve --graph MODULE:GRAPH")
    expect(page.get_by_role("dialog").get_by_role("spinbutton")).to_have_count(0)


def test_the_code_of_a_comparison_reads_both_states(numbers: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    store, graph = numbers
    graph.fork("numbers-1", step=1, new_run_id="numbers-2", update={"text": "other"})
    page = visitor.open(serve(store, [graph]), "/compare?a=numbers-1&a_step=1&b=numbers-2")
    page.get_by_text("The same as a command line and in Python").click()
    command, python = (page.get_by_role("figure").nth(index).locator("code").inner_text() for index in (0, 1))
    assert command == "diff <(limpet runs state --step 1 numbers-1) <(limpet runs state numbers-2)"
    names: dict[str, Any] = {"STORE": store}
    exec(python, names)
    assert dict(names["before"]) == {"big": BIG, "text": "as it was"}
    assert dict(names["after"]) == {"big": BIG, "text": "other"}


def test_a_double_click_forks_once(numbers: Any, serve: Any, visitor: Visitor) -> None:
    """H20."""
    store, graph = numbers
    page = visitor.open(serve(store, [graph]), "/runs/numbers-1")
    dialog = asked(page, "fork", "Fork numbers-1")
    expect(dialog.get_by_role("button", name="Fork")).to_be_enabled()
    dialog.get_by_role("button", name="Fork").dblclick()
    expect(page.get_by_text("forked from numbers-1")).to_be_visible()
    assert len(Runs(store).list()) == 2


def test_numbers_of_a_fork_stay_as_they_are_written(serve: Any, visitor: Visitor) -> None:
    """H20, H4: 2.0 isn't 2, neither where it is edited nor beside that."""
    store = MemoryStore()
    graph = StateGraph({"meta": dict, "price": float}, name="prices")
    graph.add_node("only", lambda state: {"meta": {"price": 2.0, "n": 1}, "price": 3.0})
    graph.set_entry_point("only").set_finish_point("only")
    graph.compile(store=store, preserve=True).execute({}, run_id="prices-1")
    page = visitor.open(serve(store, [graph]), "/runs/prices-1")
    page.get_by_role("treeitem", name="only").click()
    page.get_by_role("button", name="fork after it").click()
    dialog = page.get_by_role("dialog", name="Fork prices-1")
    meta = dialog.get_by_role("textbox", name="meta")
    meta.fill(meta.input_value().replace('"n": 1', '"n": 5'))
    dialog.get_by_role("textbox", name="price", exact=True).fill("1e2")
    dialog.get_by_role("textbox", name="id of the new run").fill("prices-2")
    command, python = code_of(dialog)
    assert 'meta={"price":2.0,"n":5}' in command
    assert '"price": 2.0' in python
    dialog.get_by_role("button", name="Fork").click()
    expect(page.get_by_text("forked from prices-1")).to_be_visible()
    assert repr(dict(graph.get("prices-2").state)) == "{'meta': {'price': 2.0, 'n': 5}, 'price': 100.0}"


def test_an_action_that_ends_late_changes_nothing_else(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: neither the dialog that was opened meanwhile, nor what was typed there."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/kelp-1")
    held: list[Route] = []
    page.route(re.compile("/cancel"), lambda route: held.append(route))
    asked(page, "cancel", "Cancel run").get_by_role("button", name="Cancel run").click()
    page.keyboard.press("Escape")
    fork = asked(page, "fork", "Fork kelp-1")
    fork.get_by_role("textbox", name="id of the new run").fill("typed")
    answer_all(page, held)
    expect(page.get_by_text("kelp-1: cancelled")).to_be_visible()
    expect(fork.get_by_role("textbox", name="id of the new run")).to_have_value("typed")


def test_the_code_of_an_action_can_be_run_as_it_is(
    serve: Any, visitor: Visitor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """H20: it names the store, and tells ids from options."""
    url = f"sqlite:///{tmp_path}/a b.db"
    with closing(open_store(url)) as store:
        graph = sample_runs.counter().compile(store=store, preserve=True)
        graph.execute({"until": 3}, run_id="-r")
        page = visitor.open(serve(store, [graph]), "/runs/-r")
        dialog = asked(page, "fork", "Fork -r")
        dialog.get_by_role("textbox", name="id of the new run").fill("-new")
        command, python = code_of(dialog)
        assert command.index("--id=-new") < command.index("--") < command.index("-r")
        exec(python, {"graph": graph})
        assert graph.get("-new").info.shown_status == "queued"
        page.keyboard.press("Escape")
        page.get_by_role("tab", name="state").first.click()
        command, python = code_of(page.locator(".state-view"))
        assert main(command) == 0
        assert ["count", "3"] in [line.split() for line in capsys.readouterr().out.splitlines()]
        exec(python, {})
