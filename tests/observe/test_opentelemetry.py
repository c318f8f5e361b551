"""H21: spans and metrics of runs, as the real SDK of OpenTelemetry gets them."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Annotated, Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from limpet import (
    END,
    START,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    NodeContext,
    Retry,
    RunCancelled,
    RunLogFields,
    RunPaused,
    Runs,
    State,
    StateGraph,
    Workflow,
    pause,
    secret,
    supervise,
)
from limpet.observe.opentelemetry import guard, switch
from limpet.observe.opentelemetry.trace_context import stored_caller, stored_stretch
from limpet.yaml_files.loading import loads
from support.telemetry import Telemetry, place_of
from support.waiting import until

Mark = Callable[[str], None]


@pytest.fixture
def mark(telemetry: Telemetry) -> Mark:
    """What a node calls, as an HTTP client would: it makes a span of its own."""

    def make(name: str) -> None:
        with telemetry.tracer.start_as_current_span(name):
            pass

    return make


def chain(telemetry: Telemetry, *nodes: Any, **options: Any) -> StateGraph:
    """A graph of these functions, one after the other, which is traced."""
    schema = options.pop("schema", None)
    graph = StateGraph(schema, name=options.pop("name", "chain"))
    for before, node in zip((START, *(each.__name__ for each in nodes)), nodes, strict=False):
        graph.add_node(node.__name__, run=node).add_edge(before, node.__name__)
    graph.add_edge(nodes[-1].__name__, END)
    return graph.compile(opentelemetry=telemetry.option, **{"store": MemoryStore(), **options})


def everything(telemetry: Telemetry, mark: Mark) -> StateGraph:
    """Sync and async nodes, one with a timeout, a map, a graph in a node, and one that is retried."""

    def plan(state: State) -> dict[str, Any]:
        mark("in plan")
        return {"words": ["kelp", "eel"]}

    async def measure(state: State) -> dict[str, Any]:
        mark(f"in {state['item']} before")
        await asyncio.sleep(0)
        mark(f"in {state['item']}")
        return {}

    def flaky(state: State, ctx: NodeContext) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        mark("in flaky")

    inner = StateGraph(name="inner").add_node("deep", run=lambda state: mark("in deep"))
    inner.set_entry_point("deep").set_finish_point("deep")
    graph = StateGraph(name="all").add_node("plan", run=plan, timeout=60).add_node("measure", run=measure)
    graph.add_fanin_node("join", run=lambda state, parallel_results: mark("in join"))
    graph.add_node("sub", run=inner).add_node("flaky", run=flaky, retry=Retry(2, backoff=0.0))
    graph.add_edge(START, "plan").add_map("plan", each="measure", over="words", fan_in="join")
    graph.add_edge("join", "sub").add_edge("sub", "flaky").add_edge("flaky", END)
    return graph.compile(store=MemoryStore(), opentelemetry=telemetry.option)


INSIDE = {
    "plan": "limpet.run",
    "in plan": "plan",
    "measure[0]/measure": "limpet.run",
    "in kelp before": "measure[0]/measure",
    "in kelp": "measure[0]/measure",
    "measure[1]/measure": "limpet.run",
    "in eel before": "measure[1]/measure",
    "in eel": "measure[1]/measure",
    "join": "limpet.run",
    "in join": "join",
    "sub": "limpet.run",
    "sub/deep": "sub",
    "in deep": "sub/deep",
    "flaky": "limpet.run",
    "in flaky": "flaky",
}


@pytest.mark.parametrize("is_async", [False, True])
def test_spans_of_nodes_are_inside_of_their_steps(telemetry: Telemetry, mark: Mark, is_async: bool) -> None:
    """H21: in whatever thread, task or branch a node is called; and all of it is one trace."""
    graph = everything(telemetry, mark)
    with telemetry.tracer.start_as_current_span("caller"):
        if is_async:
            asyncio.run(graph.aexecute({}, run_id="r"))
        else:
            graph.execute({}, run_id="r")
    assert telemetry.parents() == {**INSIDE, "limpet.run": "caller"}
    assert len({span.context.trace_id for span in telemetry.spans()}) == 1
    run = telemetry.run()
    assert run.kind is SpanKind.INTERNAL
    assert dict(run.attributes or {}) == {
        "limpet.run.id": "r",
        "limpet.graph.name": "all",
        "limpet.run.resumed": False,
        "limpet.run.status": "completed",
        "limpet.run.step": 7,
    }
    first, second = (span for span in telemetry.spans("limpet.step") if place_of(span) == "flaky")
    assert [(span.attributes or {})["limpet.step.attempt"] for span in (first, second)] == [1, 2]
    assert (first.attributes or {})["limpet.step.retried"] is True
    assert first.status.status_code is StatusCode.ERROR
    deep = dict(telemetry.steps()["sub/deep"].attributes or {})
    assert deep == {
        "limpet.run.id": "r",
        "limpet.graph.name": "inner",
        "limpet.node.name": "deep",
        "limpet.branch.path": "sub",
        "limpet.step.number": 1,
        "limpet.step.attempt": 1,
        "limpet.step.outcome": "completed",
    }
    for span in telemetry.spans("limpet.step"):
        assert (run.start_time or 0) <= (span.start_time or 0) <= (span.end_time or 0) <= (run.end_time or 0)


def test_tasks_of_a_workflow_are_steps(telemetry: Telemetry, mark: Mark) -> None:
    """H21: its planner isn't, and neither is a skipped task. Threads of the user's executor are like others."""

    async def two(one: int) -> None:
        mark("in two")

    with ThreadPoolExecutor(2) as executor:
        flow = Workflow("flow", store=MemoryStore(), opentelemetry=telemetry.option, executor=executor)
        flow.add_task("one", lambda: mark("in one")).add_task("other", lambda: mark("in other"))
        flow.add_task("two", two, ["one"])
        flow.add_task("not", lambda: mark("never"), condition=lambda: mark("in condition") is not None)
        flow.execute({}, run_id="r")
    assert telemetry.parents() == {
        "one": "limpet.run",
        "in one": "one",
        "other": "limpet.run",
        "in other": "other",
        "two": "limpet.run",
        "in two": "two",
        "in condition": "limpet.run",
    }


def test_a_workflow_in_a_node_is_inside_of_the_span_of_the_node(telemetry: Telemetry, mark: Mark) -> None:
    """H21: also if its first tasks begin at once, in threads; and a worker that stops meanwhile releases the run."""
    began = Event()
    done = Event()

    def hold() -> None:
        mark("in hold")
        began.set()
        done.wait(60)

    flow = Workflow("flow")
    for name in ("a", "b", "c"):
        flow.add_task(name, lambda: mark("in flow"))
    flow.add_task("hold", hold)
    graph = StateGraph(name="outer").add_node("sub", run=flow).set_entry_point("sub").set_finish_point("sub")
    graph.compile(store=MemoryStore(), opentelemetry=telemetry.option)
    graph.start({}, run_id="r")
    with supervise(graph.compiled().need_client("test").store, [graph], grace=0.0):
        assert began.wait(60)
    run = until(lambda: telemetry.spans("limpet.run"))[0]
    assert (run.attributes or {})["limpet.run.status"] == "released"
    done.set()
    (outer,) = [span for span in telemetry.spans("limpet.step") if place_of(span) == "sub"]
    assert (outer.attributes or {})["limpet.step.outcome"] == "interrupted"
    assert telemetry.parents()["sub/hold"] == "sub"
    assert telemetry.parents()["in hold"] == "sub/hold"


def test_a_failure_is_recorded_without_secrets(telemetry: Telemetry) -> None:
    """H21: as events have it, also if the node has just made the secret; and nothing has a value of the state."""

    def login(state: State) -> dict[str, Any]:
        state["token"] = "hunter2"
        raise PermissionError(f"{state['user']} has no right to hunter2")

    graph = chain(
        telemetry, login, schema={"token": Annotated[str, secret], "user": str}, allow_plain_text_secrets=True
    )
    with pytest.raises(ExecutionError):
        graph.execute({"user": "ada", "note": "private"}, run_id="r")
    step = telemetry.steps()["login"]
    assert (step.attributes or {})["error.type"] == "PermissionError"
    (event,) = step.events
    assert event.name == "exception"
    found = dict(event.attributes or {})
    assert found["exception.message"] == "ada has no right to ‹secret›"
    assert "in login" in str(found["exception.stacktrace"])
    run = telemetry.run()
    assert (run.attributes or {})["limpet.run.status"] == "failed"
    assert (run.attributes or {})["error.type"] == "PermissionError"
    assert run.status.description == "PermissionError: ada has no right to ‹secret›"
    told = json.dumps([span.to_json() for span in telemetry.spans()]) + str(
        telemetry.reader.get_metrics_data()
    )
    assert "hunter2" not in told
    assert "private" not in told


def test_how_stretches_and_calls_end(telemetry: Telemetry) -> None:
    """H21: each stretch is linked to the one before, and a resume inside of a trace is part of that trace."""

    def ask(state: State) -> dict[str, Any]:
        return {"answer": pause("Well?")}

    def end(state: State, ctx: NodeContext) -> None:
        if state["answer"] == "no":
            Runs(store).cancel(ctx.run_id)
            ctx.check()

    store = MemoryStore()
    graph = chain(telemetry, ask, end, store=store)
    for answer in ("yes", "no"):
        with pytest.raises(RunPaused):
            graph.execute({}, run_id=answer)
        with telemetry.tracer.start_as_current_span("request"), suppress(RunCancelled):
            graph.resume(answer, answer)
    runs = telemetry.spans("limpet.run")
    assert [(span.attributes or {})["limpet.run.status"] for span in runs] == [
        "paused",
        "completed",
        "paused",
        "cancelled",
    ]
    assert [(span.attributes or {})["limpet.step.outcome"] for span in telemetry.spans("limpet.step")] == [
        "paused",
        "completed",
        "completed",
        "paused",
        "completed",
        "cancelled",
    ]
    requests = telemetry.spans("request")
    for before, after, request in zip(runs[::2], runs[1::2], requests, strict=True):
        assert [link.context.span_id for link in after.links] == [before.context.span_id]
        assert after.parent is not None
        assert after.parent.span_id == request.context.span_id
        assert after.context.trace_id != before.context.trace_id
        assert (after.attributes or {})["limpet.run.resumed"] is True


def test_a_run_that_is_left_in_the_middle_ends_its_spans(telemetry: Telemetry) -> None:
    """H21: by its caller, or by an exception for the whole process. A stretch that saved nothing isn't linked to."""
    calls: list[None] = []

    def one(state: State) -> None: ...

    def leave(state: State) -> None:
        calls.append(None)
        if len(calls) < 3:
            raise KeyboardInterrupt

    graph = chain(telemetry, one, leave)
    run = graph.stream({})
    next(run)
    run.close()
    with pytest.raises(KeyboardInterrupt):
        graph.execute({}, run_id="r")
    with pytest.raises(KeyboardInterrupt):
        graph.resume("r")
    graph.resume("r")
    _, first, second, third = telemetry.spans("limpet.run")
    statuses = [(span.attributes or {})["limpet.run.status"] for span in telemetry.spans("limpet.run")]
    assert statuses == ["interrupted", "interrupted", "interrupted", "completed"]
    outcomes = [(span.attributes or {})["limpet.step.outcome"] for span in telemetry.spans("limpet.step")]
    assert outcomes == ["completed", "completed", "interrupted", "interrupted", "completed"]
    for later in (second, third):
        assert [link.context.span_id for link in later.links] == [first.context.span_id]


def test_a_callers_trace_continues_through_start_and_child_runs(telemetry: Telemetry, mark: Mark) -> None:
    """H21: the span of the worker is a child of the span in which the run was started, and so is a child run."""

    def small(state: State) -> None:
        mark(f"in small for {baggage.get_baggage('tenant')}")

    store = MemoryStore()
    child = chain(telemetry, small, store=store, name="child")

    def big(state: State, ctx: NodeContext) -> None:
        ctx.join(ctx.start(child, {}))

    parent = chain(telemetry, big, store=store)
    with telemetry.tracer.start_as_current_span("caller"):
        token = context.attach(baggage.set_baggage("tenant", "kelp"))
        parent.start({}, run_id="r")
        context.detach(token)
    with supervise(store, [parent, child]):
        parent.get("r").result(timeout=60)
        until(lambda: telemetry.metrics()["limpet.run.count"].count(({"run.status": "completed"}, 1)) == 2)
    assert len({span.context.trace_id for span in telemetry.spans()}) == 1
    runs = telemetry.spans("limpet.run")
    (inner,) = [span for span in runs if (span.attributes or {})["limpet.graph.name"] == "child"]
    # Two, or more on a busy machine: the parent looks again if the child has posted its end, and hasn't ended yet.
    first, second, *_ = stretches = [span for span in runs if span is not inner]
    caller = telemetry.spans("caller")[0].context.span_id
    step = next(span for span in telemetry.spans("limpet.step") if place_of(span) == "big")
    assert {span.parent and span.parent.span_id for span in stretches} == {caller}
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert inner.parent is not None
    assert inner.parent.span_id == step.context.span_id
    assert (inner.attributes or {})["limpet.run.parent"] == "r"
    assert {span.kind for span in runs} == {SpanKind.CONSUMER}
    assert (first.attributes or {})["limpet.queue.name"] == "default"
    assert telemetry.parents()["in small for kelp"] == "small"


def test_metrics_of_runs_steps_and_commits(telemetry: Telemetry) -> None:
    """H21: with units of the conventions, and no attribute with more than a few values."""

    def ok(state: State) -> None: ...

    def fail(state: State) -> None:
        raise ValueError

    graph = chain(telemetry, ok, fail)
    for run_id in ("a", "b"):
        with pytest.raises(ExecutionError):
            graph.execute({}, run_id=run_id)
    found = telemetry.metrics()
    assert found["limpet.run.count"] == [({"run.status": "failed"}, 2)]
    assert found["limpet.step.duration"] == [
        ({"node.name": "ok", "step.outcome": "completed"}, 2),
        ({"node.name": "fail", "step.outcome": "failed", "error.type": "ValueError"}, 2),
    ]
    assert found["limpet.commit.duration"] == [({}, 4)]
    assert found["limpet.checkpoint.size"] == [({}, 4)]
    data = telemetry.reader.get_metrics_data()
    assert data is not None
    units = {
        metric.name: metric.unit
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert units == {
        "limpet.run.count": "{run}",
        "limpet.step.duration": "s",
        "limpet.commit.duration": "s",
        "limpet.checkpoint.size": "By",
    }


def test_metrics_of_a_queue_and_of_questions(telemetry: Telemetry) -> None:
    """H21: a worker reports what waits in its store, for as long as it works."""

    def ask(state: State) -> None:
        pause("Well?")

    store = MemoryStore()
    graph = chain(telemetry, ask, store=store)
    graph.start({}, queue="served")
    graph.start({}, queue="other")
    with supervise(store, [graph], queues=["served"]):
        until(lambda: bool(graph.runs("paused")))
        found = telemetry.metrics()
    assert ({"queue.name": "other"}, 1) in found["limpet.queue.depth"]
    assert ({"queue.name": "served"}, 0) in found["limpet.queue.depth"]
    assert ({"queue.name": "served"}, 1) in found["limpet.questions.open"]
    assert found["limpet.queue.delay"] == [({"queue.name": "served"}, 1)]
    assert "limpet.queue.depth" not in telemetry.metrics()


def test_a_lease_that_another_process_has_claimed_is_counted(telemetry: Telemetry) -> None:
    """H21: the stretch ends as `lost`."""
    store = MemoryStore()

    def slow(state: State, ctx: NodeContext) -> None:
        head = store.head(ctx.run_id)
        store.claim(ctx.run_id, "another", 60, head.fence)

    with pytest.raises(Exception, match="another"):
        chain(telemetry, slow, store=store).execute({}, run_id="r")
    found = telemetry.metrics()
    assert found["limpet.lease.lost"] == [({}, 1)]
    assert found["limpet.run.count"] == [({"run.status": "lost"}, 1)]
    assert ({"error.type": "Conflict"}, 1) in found["limpet.commit.duration"]


@pytest.mark.parametrize(
    "stored", [None, 1, {"caller": 1}, {"caller": {"traceparent": 1}, "stretch": {"a": "b"}}]
)
def test_a_stored_context_may_be_anything(stored: Any) -> None:
    """H21: what is stored may come from an imported file."""
    assert stored_caller(stored, context.Context()) is None
    assert stored_stretch(stored) is None


class Broken(SpanProcessor):
    """Raises wherever it is called."""

    def on_start(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("no collector")

    def on_end(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("no collector")


class BrokenAtTheEnd(Broken):
    """Raises when a span ends."""

    def on_start(self, *args: Any, **kwargs: Any) -> None:
        return


class BrokenExporter:
    """Raises when it exports."""

    def export(self, spans: Any) -> None:
        raise OSError("no collector")

    def shutdown(self) -> None:
        return


@pytest.mark.parametrize("processor", [Broken(), BrokenAtTheEnd(), SimpleSpanProcessor(BrokenExporter())])  # type: ignore[arg-type]  # it is one by its methods
def test_an_exporter_that_raises_breaks_no_run(
    telemetry: Telemetry, mark: Mark, processor: SpanProcessor, caplog: pytest.LogCaptureFixture
) -> None:
    """H21: that is logged once, and the run is stored as any other."""
    guard._failures.clear()
    tracers = TracerProvider()
    tracers.add_span_processor(processor)
    graph = everything(telemetry._replace(tracers=tracers), mark)
    for run_id in ("a", "b"):
        assert graph.execute({}, run_id=run_id)["words"] == ["kelp", "eel"]
    places = [record for record in caplog.records if record.name == "limpet.observe"]
    assert len(places) == len({record.getMessage() for record in places})
    assert bool(places) == isinstance(processor, Broken)
    guard._failures.clear()


def test_attributes_for_generative_ai_are_there_on_request(telemetry: Telemetry) -> None:
    """H21: a graph is an agent, a workflow is a workflow, and the run is the conversation."""

    def one(state: State) -> None: ...

    chain(telemetry, one).execute({}, run_id="plain")
    option = telemetry.option._replace(genai=True)
    chain(telemetry, one).compile(opentelemetry=option).execute({}, run_id="agent")
    flow = Workflow("flow", opentelemetry=option)
    flow.add_task("one", lambda: None)
    flow.execute({}, run_id="work")
    found = [
        {name: value for name, value in (span.attributes or {}).items() if name.startswith("gen_ai.")}
        for span in telemetry.spans("limpet.run")
    ]
    assert found[0] == {}
    assert found[1] == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "chain",
        "gen_ai.conversation.id": "agent",
    }
    assert found[2]["gen_ai.operation.name"] == "invoke_workflow"
    assert found[2]["gen_ai.workflow.name"] == "flow"


def test_the_option_and_the_environment_switch_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """H21: the option wins; and a graph in YAML has it, too."""

    def telemetry_of(**options: Any) -> object:
        graph = StateGraph().add_node("a").set_entry_point("a").set_finish_point("a")
        return graph.compile(**options).compiled().telemetry

    text = "name: y\nnodes: [{name: a}]\nentry: a\nfinish: a\n"
    assert telemetry_of() is None
    assert telemetry_of(opentelemetry=True) is not None
    assert loads(text).compiled().telemetry is None
    assert loads(f"{text}config: {{opentelemetry: true}}\n").compiled().telemetry is not None
    for value, is_on in (("1", True), ("true", True), ("0", False), ("", False)):
        monkeypatch.setenv("LIMPET_OTEL", value)
        assert (telemetry_of() is not None) == is_on
        assert telemetry_of(opentelemetry=False) is None
    with pytest.raises(
        DefinitionError, match=r"opentelemetry must be True, False or an OpenTelemetry, not 'yes'"
    ):
        telemetry_of(opentelemetry="yes")


def test_without_the_package_the_option_is_refused_and_the_environment_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """H21: one warning, and the run works."""
    for name in ("opentelemetry", "opentelemetry.context"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "limpet.observe.opentelemetry.telemetry", raising=False)
    monkeypatch.setattr(switch, "_warned", [])
    graph = StateGraph(name="g").add_node("a", run=lambda state: {"n": 1})
    graph.set_entry_point("a").set_finish_point("a")
    with pytest.raises(DefinitionError, match=r"pip install 'limpet\[opentelemetry\]'"):
        graph.compile(opentelemetry=True)
    monkeypatch.setenv("LIMPET_OTEL", "1")
    for _ in range(2):
        assert graph.compile().execute({}) == {"n": 1}
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "limpet.observe"]
    assert warning.startswith("LIMPET_OTEL is set, but")
    assert "pip install 'limpet[opentelemetry]'" in warning


def test_a_run_without_it_imports_nothing_of_it() -> None:
    """H21: nothing is paid for what isn't used: the hook is None."""
    code = (
        "import sys; from limpet import StateGraph, MemoryStore\n"
        "g = StateGraph().add_node('a').set_entry_point('a').set_finish_point('a').compile(store=MemoryStore())\n"
        "g.execute({}); assert g.compiled().telemetry is None\n"
        "print([name for name in sys.modules if 'telemetry' in name])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_log_records_of_nodes_have_the_run_the_node_and_the_step(telemetry: Telemetry) -> None:
    """H21: with and without spans; other records have empty fields, and what was logged with `extra` stays."""
    seen: list[tuple[Any, ...]] = []

    class Keeper(logging.Handler):
        def emit(self, record: Any) -> None:
            seen.append((record.getMessage(), record.run, record.graph, record.node, record.step))

    log = logging.getLogger("limpet.test.fields")
    handler = Keeper()
    handler.addFilter(RunLogFields())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False

    def plan(state: State) -> dict[str, Any]:
        log.info("sync")
        return {"words": ["kelp"]}

    async def measure(state: State) -> None:
        log.info("async", extra={"step": "mine"})

    graph = StateGraph(name="g").add_node("plan", run=plan).add_node("measure", run=measure)
    graph.add_fanin_node("join", run=lambda state, parallel_results: log.info("join"))
    graph.add_edge(START, "plan").add_map("plan", each="measure", over="words", fan_in="join")
    graph.add_edge("join", END).compile()
    try:
        log.info("outside")
        graph.execute({}, run_id="r")
        log.info("outside")
    finally:
        log.removeHandler(handler)
    outside = ("outside", "", "", "", "")
    assert seen == [
        outside,
        ("sync", "r", "g", "plan", 1),
        ("async", "r", "g", "measure[0]/measure", "mine"),
        ("join", "r", "g", "join", 3),
        outside,
    ]


def test_the_context_of_the_caller_is_as_it_was(telemetry: Telemetry, mark: Mark) -> None:
    """H21: between the events of a run, and after it."""
    graph = everything(telemetry, mark)
    with telemetry.tracer.start_as_current_span("caller") as caller:
        for _ in graph.stream({}):
            assert trace.get_current_span() is caller
        assert trace.get_current_span() is caller
