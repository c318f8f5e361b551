"""Questions of runs as forms in a real browser, and links with which one question is answered."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from typing import Any

import pytest

from limpet import MemoryStore, RunPaused, Runs, Workflow, pause
from limpet.server import app
from limpet.server.question_links import QuestionLink, seal_link
from support import sample_runs
from support.browser import PHONE, Locator, Page, Recorded, Visitor, expect
from support.http_server import API, TOKEN, Served
from support.waiting import until


@pytest.fixture
def survey() -> Any:
    """A run that has asked its first question, and its store."""
    store = MemoryStore()
    graph = sample_runs.survey().compile(store=store, preserve=True)
    list(graph.stream({}, run_id="asked"))
    return store, graph


def question(page: Page, prompt: str) -> Locator:
    """The form of a question."""
    form = page.get_by_role("region", name="questions").locator("form").filter(has_text=prompt)
    expect(form).to_be_visible()
    return form


def submit(form: Locator) -> None:
    form.get_by_role("button", name="Answer").click()


def test_each_kind_of_question_has_its_form(survey: Any, serve: Any, visitor: Visitor) -> None:
    """H20: buttons, a list, text, a number, yes or no, several of, an object, JSON; what is wrong is said there."""
    store, graph = survey
    page = visitor.open(serve(store, [graph], works=True), "/runs/asked")
    visitor.excuse("status of 422")
    form = question(page, "Publish it?")
    expect(form).to_be_in_viewport(ratio=1)
    form.get_by_role("textbox", name="as", exact=True).fill("Ann")
    form.get_by_role("button", name="later").click()

    question(page, "Which colour?").get_by_role("combobox").select_option("violet")
    submit(question(page, "Which colour?"))

    question(page, "What is it called?").get_by_role("textbox").first.fill("kelp “1”\nor so")
    submit(question(page, "What is it called?"))

    form = question(page, "How many?")
    form.get_by_role("textbox").first.fill("a few")
    submit(form)
    expect(form.get_by_role("alert")).to_have_text("“a few” isn't a whole number")
    form.get_by_role("textbox").first.fill("0")
    submit(form)
    expect(form.get_by_role("alert")).to_have_text("it must be at least 1")
    form.get_by_role("textbox").first.fill(str(2**70))
    submit(form)

    question(page, "Is it alive?").get_by_role("button", name="yes").click()

    form = question(page, "Which of them?")
    form.get_by_role("checkbox", name="reports").check()
    form.get_by_role("checkbox", name="logs").check()
    submit(form)

    form = question(page, "Where to?")
    form.get_by_role("textbox", name="days").fill("3")
    submit(form)
    expect(form.get_by_role("alert").first).to_have_text("place is needed")
    form.get_by_role("textbox", name="place").fill("the sea")
    form.get_by_role("textbox", name="beds").fill("2")
    form.get_by_role("radio", name="no").check()
    submit(form)

    form = question(page, "What else?")
    form.get_by_role("textbox").first.fill("[1, {")
    submit(form)
    expect(form.get_by_role("alert")).to_contain_text("this isn't JSON")
    form.get_by_role("textbox").first.fill('{"a": null}')
    submit(form)
    expect(form.get_by_role("alert")).to_contain_text("it is still open")
    form.get_by_role("textbox").first.fill('[1, {"a": null}]')
    submit(form)

    form = question(page, "What is the password?")
    secret = form.locator("input[type=password]")
    secret.fill("hunter22")
    submit(form)
    expect(page.get_by_role("heading", name="asked").locator("..")).to_contain_text("completed")
    state = graph.get("asked").state
    place = {"place": "the sea", "days": 3, "rooms": {"beds": 2, "view": False}}
    assert state["answers"] == [
        "later", "violet", "kelp “1”\nor so", 2**70, True, ["logs", "reports"], place, [1, {"a": None}],
    ]  # fmt: skip
    assert state["length"] == 8


def test_who_has_answered_what_is_shown_with_the_step(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: the name is remembered for the next question."""
    page = visitor.open(serve(samples.store, samples.graphs.values(), works=True), "/runs/kelp-1")
    form = question(page, "Publish “All about kelp.”?")
    form.get_by_role("textbox", name="as", exact=True).press_sequentially("Ann of the <b>sea</b> ")
    form.get_by_role("button", name="yes").click()
    expect(page.get_by_role("treeitem", name="publish")).to_be_visible()
    page.get_by_role("treeitem", name="review").click()
    step = page.get_by_role("complementary", name="the selected step")
    expect(step.get_by_role("term").filter(has_text="Publish “All about kelp.”?")).to_be_visible()
    expect(step.get_by_text("yes by Ann of the <b>sea</b>")).to_be_visible()
    page.goto(page.url.replace("kelp-1", "batch-6"))
    expect(page.get_by_role("textbox", name="as", exact=True)).to_have_value("Ann of the <b>sea</b>")


def test_the_code_of_an_answer_gives_it_elsewhere(survey: Any, serve: Any, visitor: Visitor) -> None:
    """H20: with the value and the name that were typed; until then, with an example."""
    store, graph = survey
    server = serve(store)
    page = visitor.open(server, "/runs/asked")
    form = question(page, "Publish it?")
    form.get_by_role("textbox", name="as", exact=True).fill("Ann")
    form.get_by_text("The same as a command line and in Python").click()
    exec(form.get_by_role("figure").last.locator("code").inner_text(), {"STORE": store})
    graph.recover()
    page.goto(page.url)
    form = question(page, "Which colour?")
    form.get_by_role("combobox").select_option("violet")
    form.get_by_text("The same as a command line and in Python").click()
    command = shlex.split(form.get_by_role("figure").first.locator("code").inner_text())
    assert command[:5] == ["limpet", "answer", "--detach", "--by", "Ann"]
    assert (command[5], json.loads(command[7])) == ("asked", "violet")
    exec(form.get_by_role("figure").last.locator("code").inner_text(), {"STORE": store})
    graph.recover()
    with server.client() as client:
        answers = client.get(f"{API}/runs/asked/events?type=answer").json()["events"]
    assert [*answers[0]["answers"].values(), *answers[1]["answers"].values()] == ["now", "violet"]
    assert [set(event["by"].values()) for event in answers] == [{"Ann"}, {"Ann"}]


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "string"},
        {"type": "array", "items": {"enum": ["a", "b"]}},
        {"type": "object", "properties": {"a": {"type": "integer"}}},
    ],
)
def test_an_optional_answer_that_is_left_empty_is_null(kind: Any, serve: Any, visitor: Visitor) -> None:
    """H20: the button always does something."""
    store = MemoryStore()
    flow = Workflow("flow", store=store, preserve=True)
    flow.add_task("ask", lambda: [pause("Anything else?", schema={"anyOf": [kind, {"type": "null"}]})])
    with suppress(RunPaused):
        flow.execute({}, run_id="r")
    page = visitor.open(serve(store, [flow], works=True), "/runs/r")
    submit(question(page, "Anything else?"))
    until(lambda: flow.get("r").status == "completed")
    assert flow.get("r").state["tasks"]["ask"]["result"] == [None]


def test_what_is_needed_is_named_as_its_label(serve: Any, visitor: Visitor) -> None:
    """H20: not as the key that only programs know; that something is wrong is said once."""
    store = MemoryStore()
    title = {"type": "string", "title": "Title of the release"}
    author = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    schema = {"type": "object", "properties": {"title": title, "by": author}, "required": ["title", "by"]}
    flow = Workflow("flow", store=store, preserve=True)
    flow.add_task("ask", lambda: pause("What now?", schema=schema))
    with suppress(RunPaused):
        flow.execute({}, run_id="r")
    page = visitor.open(serve(store, [flow]), "/runs/r")
    form = question(page, "What now?")
    submit(form)
    problems = ["Title of the release is needed", "name is needed", "some values aren't right"]
    expect(form.get_by_role("alert")).to_have_text(problems)


def test_of_very_many_questions_the_first_have_forms_and_the_others_are_counted(
    serve: Any, visitor: Visitor
) -> None:
    """H20: on the page of the run, and in the list, whether that has all of them or the first ones."""
    store = MemoryStore()
    flow = Workflow("flow", store=store, preserve=True)
    for number in range(22):
        flow.add_task(f"task {number}", lambda number=number: pause(f"How about {number}?"))
    with suppress(RunPaused):
        flow.execute({}, run_id="r")
    page = visitor.open(serve(store, [flow]), "/runs/r")
    questions = page.get_by_role("region", name="questions")
    expect(questions.locator("form")).to_have_count(20)
    expect(questions).to_contain_text("and 2 more questions")
    page.get_by_role("link", name="runs", exact=True).click()
    expect(page.get_by_role("link", name="(22 questions)")).to_be_visible()
    expect(page.get_by_role("row", name="(and 21 more)")).to_be_visible()


def test_a_secret_answer_is_never_sent_back(survey: Any, serve: Any, visitor: Visitor) -> None:
    """H20: in no view, and in nothing that the server sends."""
    store, graph = survey
    answers = ["now", "violet", "it", 1, True, [], {"place": "x", "days": 1}, []]
    for each in answers:
        with suppress(RunPaused):
            graph.resume("asked", each)
    recorded = Recorded(app(store, [graph], token=TOKEN))
    server = serve(store, [graph], works=True, application=recorded)
    page = visitor.open(server, "/runs/asked")
    form = question(page, "What is the password?")
    expect(form.locator("textarea")).to_have_count(0)
    form.locator("input[type=password]").fill("a-word-unseen")
    submit(form)
    until(lambda: graph.get("asked").status == "completed")
    for view, shown in (
        ("graph", page.locator("[data-node=ask]").first),
        ("state", page.get_by_text("violet").first),
        ("events", page.get_by_role("button", name="answer").last),
        ("timeline", page.get_by_role("treeitem", name="ask").last),
    ):
        page.goto(f"{server.address}/runs/asked?view={view}")
        expect(shown).to_be_visible()
        assert "a-word-unseen" not in page.content()
    page.get_by_role("treeitem", name="ask").last.click()
    expect(page.get_by_text("What is the password?")).to_be_visible()
    assert b"What is the password?" in recorded.sent
    assert b"a-word-unseen" not in recorded.sent


def test_a_link_answers_one_question_on_a_phone_and_nothing_else(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: without the token of the server; once it is answered, the link says so."""
    server = serve(samples.store, samples.graphs.values())
    visitor.excuse("status of 401")
    page = visitor.open(server, "/runs/kelp-1")
    page.get_by_role("heading", name="kelp-1").wait_for()
    page.get_by_label("more actions").click()
    page.get_by_role("button", name="link").click()
    dialog = page.get_by_role("dialog", name="Make link")
    dialog.get_by_role("textbox", name="for whom").fill("Bea")
    dialog.get_by_role("textbox", name="valid for").fill("2h")
    dialog.get_by_role("button", name="Make link").click()
    link = dialog.get_by_role("textbox", name="the link").input_value()
    assert link.startswith(f"{server.address}/answer/")

    phone = visitor.arrive(server, viewport=PHONE, has_touch=True)
    phone.goto(link)
    expect(phone.get_by_text("Publish “All about kelp.”?")).to_be_visible()
    assert phone.evaluate("document.documentElement.scrollWidth") == 375
    phone.keyboard.press("/")
    phone.keyboard.press("Escape")
    assert phone.url == link
    assert phone.evaluate("fetch('/api/v1/runs').then((answer) => answer.status)") == 401
    assert phone.evaluate("fetch('/api/v1/runs/kelp-1').then((answer) => answer.status)") == 401
    phone.get_by_role("button", name="yes").tap()
    expect(phone.get_by_role("heading", name="Thank you")).to_be_visible()
    phone.reload()
    expect(phone.get_by_role("heading", name="Answered already")).to_be_visible()
    phone.goto(f"{server.address}/runs/kelp-1")
    expect(phone.get_by_role("textbox", name="token")).to_be_visible()
    page.keyboard.press("Escape")
    page.reload()
    page.get_by_role("treeitem").filter(has_text="review").last.click()
    expect(page.get_by_text("by Bea")).to_be_visible()


def test_a_link_that_has_expired_or_was_forged_shows_no_question(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20."""
    server: Served = serve(samples.store, samples.graphs.values())
    visitor.excuse("status of 4(04|10)")
    info = samples.graphs["article"].get("kelp-1").info
    (asked,) = info.questions
    link = QuestionLink("kelp-1", info.created, asked.id, info.created, "")
    expired = seal_link(samples.store, link)
    valid = seal_link(samples.store, link._replace(expires=info.created + 1e6))
    page = visitor.arrive(server)
    for text, reason in (
        (expired, "this link has expired; ask for a new one"),
        (f"{valid.partition('.')[0]}.{expired.partition('.')[2]}", "this link isn't one of this server"),
    ):
        page.goto(f"{server.address}/answer/{text}")
        expect(page.get_by_role("heading", name="This link can't be used")).to_be_visible()
        expect(page.get_by_text(reason)).to_be_visible()
        expect(page.get_by_role("button")).to_have_count(0)
    page.goto(f"{server.address}/answer/{valid}")
    expect(page.get_by_role("button", name="yes")).to_be_visible()


def test_arrow_keys_choose_among_radio_buttons(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: they don't move in the timeline then."""
    page = visitor.open(serve(samples.store, samples.graphs.values()), "/runs/batch-6")
    form = question(page, "How shall the index be rebuilt?")
    form.get_by_role("radio", name="all").focus()
    page.keyboard.press("ArrowDown")
    expect(form.get_by_role("radio", name="changed")).to_be_checked()
    page.keyboard.press("ArrowLeft")
    expect(form.get_by_role("radio", name="all")).to_be_checked()
    assert "row=" not in page.url


def test_fields_of_questions_have_the_question_as_their_name(serve: Any, visitor: Visitor) -> None:
    """H20: for screen readers; each of several questions can be given to a person by a link of its own."""
    store = MemoryStore()

    def ask(state: Any) -> dict[str, Any]:
        return {
            "name": pause("What is it called?"),
            "size": pause("How large?", schema={"enum": list(range(9))}),
        }

    flow = Workflow("asking")
    flow.add_task("name", lambda: pause("What is it called?"))
    flow.add_task("size", lambda: pause("How large?", schema={"enum": list(range(9))}))
    flow.compile(store=store)
    list(flow.stream({}, run_id="asked"))
    server = serve(store, [flow])
    page = visitor.open(server, "/runs/asked")
    expect(page.get_by_role("textbox", name="What is it called?")).to_be_visible()
    expect(page.get_by_role("combobox", name="How large?")).to_be_visible()
    page.get_by_label("more actions").click()
    page.get_by_role("button", name="link").click()
    dialog = page.get_by_role("dialog", name="Make link")
    dialog.get_by_role("combobox", name="the question").select_option("How large?")
    dialog.get_by_role("button", name="Make link").click()
    link = dialog.get_by_role("textbox", name="the link").input_value()
    page.goto(link)
    expect(page.get_by_text("How large?")).to_be_visible()
    expect(page.get_by_text("What is it called?")).to_have_count(0)


def two_questions() -> tuple[Any, Any]:
    """A run that asks two questions at once, and its store."""
    store = MemoryStore()
    flow = Workflow("asking")
    flow.add_task("one", lambda: pause("First question?"))
    flow.add_task("two", lambda: pause("Second question?", schema={"type": ["string", "null"]}))
    flow.compile(store=store, preserve=True)
    list(flow.stream({}, run_id="asked"))
    return store, flow


def test_who_types_is_not_disturbed_by_an_answer_from_elsewhere(serve: Any, visitor: Visitor) -> None:
    """H20: the form stays, with the focus; else what is typed would be keys of the page."""
    store, flow = two_questions()
    page = visitor.open(serve(store, [flow]), "/runs/asked")
    box = page.get_by_role("textbox", name="Second question?")
    box.click()
    box.press_sequentially("my ")
    (first,) = (each for each in flow.get("asked").info.questions if each.prompt == "First question?")
    Runs(store).answer("asked", answers={first.id: "done elsewhere"})
    expect(page.get_by_role("textbox", name="First question?")).to_have_count(0)
    page.keyboard.type("far")
    expect(box).to_have_value("my far")


def test_escape_in_a_field_keeps_what_was_typed(serve: Any, visitor: Visitor) -> None:
    """H20: it leaves the field, not the page."""
    store, flow = two_questions()
    page = visitor.open(serve(store, [flow]), "/runs/asked")
    box = page.get_by_role("textbox", name="Second question?")
    box.fill("a long answer")
    box.press("Escape")
    expect(box).not_to_be_focused()
    expect(box).to_have_value("a long answer")


@pytest.mark.parametrize(("typed", "given"), [("2.0", 2.0), ("12345678901234567891", 12345678901234567891)])
def test_a_number_is_sent_as_it_is_typed(typed: str, given: object, serve: Any, visitor: Visitor) -> None:
    """H20, H4."""
    store = MemoryStore()
    flow = Workflow("flow", store=store, preserve=True)
    flow.add_task("ask", lambda: [pause("How much?", schema={"type": "number"})])
    with suppress(RunPaused):
        flow.execute({}, run_id="r")
    page = visitor.open(serve(store, [flow], works=True), "/runs/r")
    form = question(page, "How much?")
    form.get_by_role("textbox").first.fill(typed)
    submit(form)
    until(lambda: flow.get("r").status == "completed")
    assert repr(flow.get("r").state["tasks"]["ask"]["result"]) == repr([given])
