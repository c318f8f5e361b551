"""What a real browser must never do: execute what runs contain, or let other sites and people in."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from limpet import MemoryStore, Schedules, StateGraph, Workflow, emit, pause, receive
from limpet.server import app
from limpet.server.question_links import QuestionLink, seal_link
from support.browser import Page, Visitor, expect
from support.http_server import TOKEN, Served

IMAGE = '<img src=x onerror="window.hacked = true">'
"""What names without a slash can be."""

SCRIPT = f"<script>window.hacked = true; alert(1)</script>{IMAGE}"
ADDRESS = "javascript:window.hacked=true"

HARM = """() => [
  window.hacked ? "executed" : "",
  ...[...document.querySelectorAll("#app script, #app [onerror], #app iframe")].map((each) => each.outerHTML),
  ...[...document.querySelectorAll("[href], [src], [action]")]
    .map((each) => each.getAttribute("href") ?? each.getAttribute("src") ?? each.getAttribute("action"))
    .filter((place) => /^\\s*javascript:/i.test(place)),
].filter(Boolean)"""


def evil_graph(store: Any) -> StateGraph:
    """A graph in which every text is an attack."""

    def write(state: Any) -> dict[str, Any]:
        emit(SCRIPT)
        emit({SCRIPT: ADDRESS})
        return {SCRIPT: SCRIPT, ADDRESS: [ADDRESS, {SCRIPT: SCRIPT}], "text": f"{SCRIPT}\n{ADDRESS}"}

    def ask(state: Any) -> dict[str, Any]:
        return {"text": pause(SCRIPT, choices=[IMAGE, ADDRESS], key=SCRIPT)}

    def fail(state: Any) -> dict[str, Any]:
        raise type(SCRIPT, (Exception,), {})(SCRIPT)

    graph = StateGraph({SCRIPT: str, ADDRESS: list, "text": str}, name=SCRIPT)
    graph.add_node(IMAGE, write).add_node(ADDRESS, ask).add_node("fail", fail, retry=2)
    graph.set_entry_point(IMAGE).add_edge(IMAGE, ADDRESS).add_edge(ADDRESS, "fail").set_finish_point("fail")
    return graph.compile(store=store, preserve=True)


def evil_flow(store: Any) -> Workflow:
    """The same for tasks, and a run that waits for a message."""
    flow = Workflow(ADDRESS, preserve=True)
    flow.add_task(IMAGE, lambda: SCRIPT)
    flow.add_task(ADDRESS, lambda: receive(SCRIPT), [IMAGE])
    return flow.compile(store=store)


@pytest.fixture
def evil() -> Any:
    """Runs of every status whose texts are attacks, and their graphs."""
    store = MemoryStore()
    graph = evil_graph(store)
    flow = evil_flow(store)
    list(graph.stream({}, run_id=SCRIPT, tags=[SCRIPT, ADDRESS]))
    list(graph.stream({}, run_id=ADDRESS, tags=[SCRIPT]))
    graph.answer(ADDRESS, IMAGE, by=SCRIPT)
    with pytest.raises(Exception, match="script"):
        graph.resume(ADDRESS)
    list(flow.stream({}, run_id=IMAGE))
    graph.start({}, run_id="queued", queue=IMAGE)
    Schedules(store).add(IMAGE, graph, every="24h", input={SCRIPT: SCRIPT}, tags=[SCRIPT])
    return store, [graph, flow]


def check_harmless(page: Page, *texts: str) -> None:
    """Wait until a page shows texts, and check that it has executed nothing."""
    for text in texts:
        expect(page.get_by_text(text).first).to_be_visible()
    assert page.evaluate(HARM) == []


def test_nothing_that_a_run_contains_is_executed(evil: Any, serve: Any, visitor: Visitor) -> None:
    """H20: in no view of a run; the texts are shown as they are."""
    store, graphs = evil
    page = visitor.open(serve(store, graphs))
    server = page.url.rstrip("/")
    for run_id, rows in ((SCRIPT, 2), (ADDRESS, 3), (IMAGE, 2)):
        page.goto(f"{server}/runs/{quote(run_id, safe='')}")
        expect(page.get_by_role("heading", level=1)).to_have_attribute("title", run_id)
        expect(page.get_by_role("treeitem").nth(rows - 1)).to_be_visible()
        for row in page.get_by_role("treeitem").all():
            row.click()
            expect(row).to_have_attribute("aria-selected", "true")
            for tab in page.get_by_role("complementary").get_by_role("tab").all():
                tab.click()
            check_harmless(page)
        page.get_by_role("tab", name="graph").click()
        check_harmless(page)
        expect(page.locator("[data-node]").first).to_be_visible()
        page.get_by_role("main").get_by_role("tab", name="state").first.click()
        expect(page.get_by_role("spinbutton")).to_be_visible()
        page.get_by_role("tab", name="events").click()
        for event in page.get_by_role("list").get_by_role("button").all():
            event.click()
        check_harmless(page)
    page.goto(f"{server}/runs/{quote(ADDRESS, safe='')}")
    check_harmless(page, SCRIPT)
    expect(page.get_by_role("region", name="error")).to_contain_text(f"{SCRIPT}: {SCRIPT}")


def test_no_list_executes_what_is_in_it(evil: Any, serve: Any, visitor: Visitor) -> None:
    """H20: runs, suggestions, graphs, schedules, workers, a comparison."""
    store, graphs = evil
    server = serve(store, graphs, works=True)
    page = visitor.open(server)
    check_harmless(page, SCRIPT, IMAGE)
    box = page.get_by_role("combobox")
    for name in ("graph", "tag", "node", "error", "queue"):
        box.fill(f"{name}:")
        expect(page.get_by_role("option").first).to_be_visible()
        check_harmless(page)
    box.fill(SCRIPT)
    check_harmless(page)
    page.goto(f"{server.address}/?q={quote(SCRIPT)}")
    check_harmless(page)
    for path, text in (
        ("/graphs", IMAGE),
        (f"/graphs/{quote(SCRIPT, safe='')}", SCRIPT),
        (f"/graphs/{quote(ADDRESS, safe='')}", ADDRESS),
        ("/schedules", IMAGE),
        ("/workers", ADDRESS),
        (f"/compare?a={quote(SCRIPT)}&b={quote(ADDRESS)}", ADDRESS),
    ):
        page.goto(server.address + path)
        check_harmless(page, text)


def test_no_dialog_or_message_executes_what_is_in_it(evil: Any, serve: Any, visitor: Visitor) -> None:
    """H20: nor the page of a link, nor an address that names what isn't there."""
    store, graphs = evil
    server = serve(store, graphs)
    visitor.excuse("status of 4")
    page = visitor.open(server, f"/runs/{quote(SCRIPT, safe='')}")
    expect(page.get_by_role("treeitem").nth(1)).to_be_visible()
    for verb in ("fork", "cancel", "send", "link", "rollback", "delete"):
        button = page.get_by_role("button", name=verb, exact=True)
        if not button.is_visible():
            page.get_by_label("more actions").click()
        button.click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        if verb == "fork":
            dialog.get_by_role("textbox", name="another key").fill(SCRIPT)
            dialog.get_by_role("textbox", name="its value as JSON").fill(SCRIPT)
            dialog.get_by_role("button", name="Fork").click()
            expect(dialog.get_by_role("alert")).to_be_visible()
        dialog.get_by_text("The same as a command line").or_(dialog.get_by_text("with this link")).click()
        check_harmless(page)
        page.keyboard.press("Escape")
    form = page.get_by_role("region", name="questions")
    form.get_by_role("radio", name=IMAGE).check()
    form.get_by_role("button", name="Answer").click()
    check_harmless(page, f"answered {ADDRESS}")
    info = graphs[0].get(SCRIPT).info
    link = seal_link(store, QuestionLink(SCRIPT, info.created, "none", info.created + 1e6, SCRIPT))
    for path in (
        f"/answer/{link}",
        f"/answer/{quote(SCRIPT, safe='')}",
        f"/runs/{quote('no ' + SCRIPT, safe='')}",
    ):
        page.goto(server.address + path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        check_harmless(page)


def test_a_browser_without_the_token_sees_nothing_but_a_form(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: a token that is typed opens the page that was asked for."""
    server = serve(samples.store, samples.graphs.values())
    visitor.excuse("status of 401")
    for path in ("/runs/rocks-5", "/runs/rocks-5?token=wrong"):
        page = visitor.open(server, path, token="")
        field = page.get_by_label("token")
        expect(field).to_be_visible()
        expect(page.get_by_text("rocks")).to_have_count(0)
        field.fill("wrong")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("this isn't the token of the server")
        field.fill(TOKEN)
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("heading", name="rocks-5")).to_be_visible()


def nothing_here() -> Starlette:
    """Another site, which allows itself everything."""
    return Starlette(routes=[Route("/", lambda request: HTMLResponse("<body>another site</body>"))])


ATTEMPTS = """async (server) => {
  const outcomes = [];
  const attempt = async (name, options, path) => {
    try {
      const answer = await fetch(server + path, { credentials: "include", ...options });
      outcomes.push(`${name}: ${answer.type} ${answer.status}`);
    } catch {
      outcomes.push(`${name}: refused`);
    }
  };
  await attempt("read", {}, "/api/v1/runs");
  await attempt("read blindly", { mode: "no-cors" }, "/api/v1/runs");
  await attempt("post", { method: "POST" }, "/api/v1/runs/kelp-1/cancel");
  await attempt("post blindly", { method: "POST", mode: "no-cors" }, "/api/v1/runs/kelp-1/cancel");
  await attempt("delete", { method: "DELETE" }, "/api/v1/runs/kelp-1");
  outcomes.push(await new Promise((done) => {
    const source = new EventSource(`${server}/api/v1/live`, { withCredentials: true });
    source.onopen = () => done("follow: open");
    source.onerror = () => { source.close(); done("follow: refused"); };
  }));
  return outcomes;
}"""


def test_a_page_of_another_site_can_not_use_the_cookie(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H19, H20: on this machine, other ports are the same site, so the browser does send it."""
    server = serve(samples.store, samples.graphs.values())
    mine = visitor.open(server)
    expect(mine.get_by_role("link", name="rocks-5")).to_be_visible()
    visitor.excuse("CORS", "net::ERR_", "status of 40", "frame", "blocked")
    other = serve(None, application=nothing_here())
    visitor.knows(other)
    page = mine.context.new_page()
    page.goto(other.address)
    outcomes = page.evaluate(ATTEMPTS, server.address)
    names = ("read", "read blindly", "post", "post blindly", "delete", "follow")
    assert outcomes == [f"{name}: refused" for name in names]
    page.evaluate(
        """(action) => {
          const form = document.createElement("form");
          Object.assign(form, { method: "post", action });
          document.body.append(form);
          form.submit();
        }""",
        f"{server.address}/api/v1/runs/kelp-1/cancel",
    )
    expect(page.get_by_text("other-origin")).to_be_visible()
    assert samples.graphs["article"].get("kelp-1").status == "paused"
    page.goto(other.address)
    page.evaluate(
        "(src) => document.body.append(Object.assign(document.createElement('iframe'), { src }))",
        server.address,
    )
    expect(page.frame_locator("iframe").get_by_role("link", name="rocks-5")).to_have_count(0)


def test_a_page_under_a_path_of_a_host_uses_its_login(samples: Any, serve: Any, visitor: Visitor) -> None:
    """H20: every address is under that path, and the host says who answers."""

    def user_of(headers: Any) -> Any:
        return "ann" if "login=ann" in headers.get("cookie", "") else None

    mounted = app(samples.store, samples.graphs.values(), authenticate=user_of, hosts=None)
    server: Served = serve(None, application=Starlette(routes=[Mount("/tools/limpet", mounted)]))
    page = visitor.arrive(server)
    page.context.add_cookies([{"name": "login", "value": "ann", "url": server.address}])
    page.goto(f"{server.address}/tools/limpet/")
    page.get_by_role("region", name="runs that wait for you").get_by_role("button", name="yes").click()
    expect(page.get_by_text("answered kelp-1")).to_be_visible()
    samples.graphs["article"].resume("kelp-1")
    expect(page.get_by_role("row", name="completed article kelp-1")).to_be_visible()
    page.get_by_role("table").get_by_role("link", name="kelp-1").click()
    page.get_by_role("treeitem").filter(has_text="review").last.click()
    expect(page.get_by_text("yes by ann")).to_be_visible()
    page.get_by_role("tab", name="graph").click()
    expect(page.locator("[data-node]").first).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="kelp-1")).to_be_visible()
    for name in ("graphs", "schedules", "workers", "runs"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page).to_have_url(f"{server.address}/tools/limpet/{name}")
    page.get_by_role("link", name="batch-6").last.click()
    page.get_by_label("more actions").click()
    page.get_by_role("button", name="link").click()
    page.get_by_role("button", name="Make link").click()
    link = page.get_by_role("textbox", name="the link").input_value()
    phone = visitor.arrive(server)
    phone.goto(link)
    expect(phone.get_by_text("How shall the index be rebuilt?")).to_be_visible()
    paths = [each.removeprefix(server.address) for each in visitor.requests]
    assert [path for path in paths if not path.startswith("/tools/limpet")] == []


def test_a_value_that_looks_like_an_element_is_shown_as_a_text(serve: Any, visitor: Visitor) -> None:
    """H20: wherever a schema has something else than a text; a form is shown all the same."""
    refresh = {"http-equiv": "refresh", "content": "0;url=http://127.0.0.1:9/"}
    shapes = [
        {"tag": "meta", "props": refresh, "children": []},
        {"tag": "script", "props": {}, "children": [{"tag": "#text", "text": "window.hacked = true"}]},
        {"css": {"position": "fixed", "inset": "0"}, "class": "over"},
    ]
    schemas: dict[str, Any] = {"broken": {"type": "object", "properties": None}, "list": {"enum": 5}}
    for number, shape in enumerate(shapes):
        schemas[f"title-{number}"] = {"type": "string", "title": shape}
        schemas[f"about-{number}"] = {
            "type": "object",
            "properties": {"a": {"type": "string", "description": shape}},
        }
        schemas[f"choice-{number}"] = {"enum": [shape, shapes]}
    store = MemoryStore()
    graph = StateGraph({"which": str, "answer": str}, name="odd")
    graph.add_node("ask", lambda state: {"answer": pause("?", schema=schemas[state["which"]])})
    graph.set_entry_point("ask").set_finish_point("ask").compile(store=store)
    page = visitor.open(serve(store, [graph]))
    expect(page.get_by_text("There are no runs yet")).to_be_visible()
    server = page.url.rstrip("/")
    for which in schemas:
        list(graph.stream({"which": which}, run_id=which))
        page.goto(f"{server}/runs/{which}")
        form = page.get_by_role("region", name="questions")
        expect(
            form.get_by_role("button", name="Answer").or_(form.get_by_role("button")).first
        ).to_be_visible()
        check_harmless(page)
        assert page.url == f"{server}/runs/{which}"
        assert page.locator("body meta, .over, form [style]").count() == 0
