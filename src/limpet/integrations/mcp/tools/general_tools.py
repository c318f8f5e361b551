"""The tools that every server has: look at graphs and runs, start runs, and do with them what can be done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from anyio.to_thread import run_sync
from mcp_types import CallToolResult

from limpet.engine.node_context.questions import NOT_GIVEN, ResumeInput
from limpet.engine.operations.answer import answer_run
from limpet.engine.operations.run_info import RunInfo
from limpet.engine.operations.stored_state import checkpoint_page
from limpet.errors import UsageError, did_you_mean
from limpet.frontends.graph_inputs import input_schema
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.frontends.run_facts import step_facts
from limpet.frontends.shown_runs import listed_run
from limpet.frontends.values import check_size, shown_values, size_of, without_large
from limpet.graphs.plan import PLANNER
from limpet.integrations.mcp.run_calls import follow
from limpet.integrations.mcp.run_outcomes import OUTCOME, next_step, outcome_of, shown_question
from limpet.integrations.mcp.served_runs import ServedRuns
from limpet.integrations.mcp.tools.graph_tools import start_run
from limpet.integrations.mcp.tools.offered_tool import (
    ADDS,
    ANYTHING,
    DELETES,
    FLAG,
    NUMBER,
    OBJECT,
    REPLACES,
    TEXT,
    TEXTS,
    WHOLE_NUMBER,
    Answer,
    OfferedTool,
    ToolCall,
    in_thread,
    takes,
)
from limpet.journal.waits import Question

MAX_PAGE: Final = 200
USUAL_PAGE: Final = 20
"""Runs or steps in an answer: at most, and if that isn't said."""

LISTED: Final = (
    "run_id",
    "graph",
    "status",
    "node",
    "step",
    "created",
    "updated",
    "tags",
    "reason",
    "error",
    "problem",
)
"""What a list says of each run."""


def list_graphs(call: ToolCall) -> dict[str, Any]:
    """The graphs that are served."""
    return {"graphs": [_short_facts(graph) for graph in call.served.graphs.values()]}


def describe_graph(call: ToolCall) -> dict[str, Any]:
    """One graph: what it is started with, and its nodes."""
    graph = call.served.graph(call.values["graph"])
    return {**_short_facts(graph), "input_schema": input_schema(graph.compiled().plan)}


def _short_facts(graph: GraphOnStore) -> dict[str, Any]:
    plan = graph.compiled().plan
    kind = "graph" if plan.layers is None else "workflow"
    facts: dict[str, Any] = {"name": plan.name, "kind": kind}
    if graph.graph.description:
        facts["description"] = graph.graph.description
    return {**facts, "nodes": [name for name in plan.nodes if name != PLANNER]}


async def run_graph(call: ToolCall) -> Answer:
    """Start a run of a graph by its name, and follow it."""
    values = call.values
    graph = call.served.graph(values["graph"])
    handle = await run_sync(
        lambda: start_run(
            call.served,
            graph,
            values.get("input") or {},
            values.get("run_id"),
            tags=values.get("tags") or (),
            deadline=values.get("deadline"),
        )
    )
    return await follow(call, handle.run_id, values.get("wait"))


def list_runs(call: ToolCall) -> dict[str, Any]:
    """A page of the runs that match, newest first."""
    values = dict(call.values)
    page = call.served.list(page_size(values.pop("limit", None)), **values)
    now = call.served.shown.now()
    runs = [_listed(info, now) for info in page.runs]
    return {"runs": runs, "next": page.next}


def _listed(info: RunInfo, now: float) -> dict[str, Any]:
    facts = listed_run(info, now)
    found = {name: facts[name] for name in LISTED if facts[name] not in (None, [])}
    if info.questions:
        found["questions"] = [shown_question(each) for each in info.questions[:MAX_PAGE]]
    return found


async def get_run(call: ToolCall) -> Answer:
    """What has become of a run; of one under way, after a while."""
    run_id = call.values["run_id"]
    wait = call.values.get("wait")
    if wait:
        found = await follow(call, run_id, wait)
        if isinstance(found, CallToolResult):
            found.is_error = False  # to look at a run that has failed isn't an error
        return found
    return await run_sync(lambda: details(call.served, call.served.run(run_id)))


def details(served: ServedRuns, run: RunInfo) -> dict[str, Any]:
    """What is known of a run, and its result if it has one."""
    return {**_listed(run, served.shown.now()), **outcome_of(served, run)}


def get_history(call: ToolCall) -> dict[str, Any]:
    """A page of the steps of a run, oldest first."""
    values = call.values
    run = call.served.run(values["run_id"])
    limit = page_size(values.get("limit"))
    page, has_more = checkpoint_page(call.served.client, run.run_id, values.get("after", -1), limit)
    steps = [{**step_facts(each), "keys": list(each.keys)} for each in page]
    return {"run_id": run.run_id, "steps": steps, "next": page[-1].step if page and has_more else None}


def get_state(call: ToolCall) -> dict[str, Any]:
    """The state of a run after a step. Large values come only if their key is asked for."""
    values = call.values
    run = call.served.run(values["run_id"])
    stored = call.served.shown.state(run.run_id, values.get("step"), values.get("branch"))
    key = values.get("key")
    if key is not None:
        if key not in stored.values:
            raise UsageError(f"the state has no key {key[:200]!r}{did_you_mean(key[:200], stored.values)}")
        shown = shown_values({key: stored.values[key]}, stored.secrets)
        check_size(size_of(shown))
        return {"run_id": run.run_id, "values": shown}
    small, large = without_large(shown_values(stored.values, stored.secrets))
    answer: dict[str, Any] = {"run_id": run.run_id, "values": small}
    if large:
        answer["large"] = large
        answer["next"] = "get_state with key=… has a large value; large says how many bytes each has"
    return answer


async def answer(call: ToolCall) -> Answer:
    """Answer what a run asks, or approve it, and follow it."""
    await run_sync(_store_answers, call)
    return await follow(call, call.values["run_id"], call.values.get("wait"))


def _store_answers(call: ToolCall) -> None:
    values = call.values
    run = call.served.run(values["run_id"])
    answers = values.get("answers")
    asked = [each for each in run.questions if answers is None or each.id in answers]
    refuse_secret_answers(run, asked)
    by = call.answers_as
    if values.get("by"):
        by = f"{values['by']} ({by})"
    given = ResumeInput(values.get("value", NOT_GIVEN), answers, by=by, is_json=True)
    answer_run(call.served.client, run.run_id, given, run.created)


def refuse_secret_answers(run: RunInfo, asked: Sequence[Question]) -> None:
    """Raise `UsageError` if one of these questions is secret: clients and models see what a tool is given."""
    secret = [each.id for each in asked if each.secret]
    if secret:
        raise UsageError(
            f"question {secret[0]!r} is secret, and its answer isn't taken here: the user gives it in a terminal, "
            f"limpet answer {run.run_id}, or on the page of limpet serve"
        )


def send_message(call: ToolCall) -> dict[str, Any]:
    """Send a message to a run."""
    values = call.values
    handle = call.served.handle(values["run_id"])
    is_new = handle.send(values["name"], values["value"], key=values.get("key"))
    return {"run_id": handle.run_id, "sent": is_new}


def cancel_run(call: ToolCall) -> dict[str, Any]:
    """Stop a run."""
    handle = call.served.handle(call.values["run_id"])
    handle.cancel()
    return outcome_of(call.served, handle.info)


async def retry_run(call: ToolCall) -> Answer:
    """Hand a run back to the workers, and follow it."""
    values = call.values
    run_id = values["run_id"]
    handle = await run_sync(call.served.handle, run_id)
    await handle.aretry(values.get("update"), deadline=values.get("deadline"))
    return await follow(call, run_id, values.get("wait"))


async def fork_run(call: ToolCall) -> Answer:
    """Create a run that starts where another was after a step, hand it to the workers, and follow it."""
    values = call.values
    handle = await run_sync(call.served.handle, values["run_id"])
    forked = await handle.afork(
        values.get("step"),
        values.get("update"),
        new_run_id=values.get("new_run_id"),
        tags=values.get("tags") or (),
    )
    if not values.get("begin", True):
        info = await forked.ainfo()
        return {**outcome_of(call.served, info), "next": next_step(call.served, info)}
    await forked.aretry()
    return await follow(call, forked.run_id, values.get("wait"))


def page_size(limit: int | None) -> int:
    """How many things an answer has. Raises `UsageError` for less than one, or too many."""
    if limit is None:
        return USUAL_PAGE
    if not 1 <= limit <= MAX_PAGE:
        raise UsageError(f"limit must be from 1 to {MAX_PAGE}, not {limit}")
    return limit


_RUN_ID: Final = (TEXT, "the id of the run")
_WAIT: Final = (NUMBER, "for how many seconds to follow the run: 0 only starts it")
_UPDATE: Final = (OBJECT, "values that are merged into its state")
_DEADLINE: Final = (TEXT, "when it fails if it hasn't ended, such as 2h")
_TAGS: Final = (TEXTS, "its tags, by which lists can be filtered")
_LIMIT: Final = (WHOLE_NUMBER, f"how many, at most {MAX_PAGE} ({USUAL_PAGE})")

GENERAL_TOOLS: Final = (
    OfferedTool("list_graphs", "The graphs of which runs can be started.", takes(), in_thread(list_graphs)),
    OfferedTool(
        "describe_graph",
        "A graph: the JSON Schema of its input, and its nodes.",
        takes(["graph"], graph=(TEXT, "its name")),
        in_thread(describe_graph),
    ),
    OfferedTool(
        "run_graph",
        "Start a durable run of a graph, and follow it. The same run_id and input twice are one run.",
        takes(
            ["graph"],
            graph=(TEXT, "its name"),
            input=(OBJECT, "the first values of its state: describe_graph has the schema"),
            run_id=(TEXT, "the id of the run (default: a new one)"),
            tags=_TAGS,
            deadline=_DEADLINE,
            wait=_WAIT,
        ),
        run_graph,
        ADDS,
        OUTCOME,
    ),
    OfferedTool(
        "list_runs",
        "Runs, newest first: all, or those of a status, a graph, a tag or a time.",
        takes(
            graph=(TEXT, "the name of its graph"),
            status=(
                TEXTS,
                "running, paused, completed, failed, cancelled, queued, sleeping, waiting, abandoned …",
            ),
            tag=(TEXTS, "it has all of these tags"),
            since=(TEXT, "it last changed then or later: a time, or how long ago, such as 2h"),
            before=(TEXT, "it last changed earlier"),
            after=(TEXT, "`next` of the page before"),
            limit=_LIMIT,
        ),
        in_thread(list_runs),
    ),
    OfferedTool(
        "get_run",
        "What has become of a run: its status, result, error or questions, and what to do next.",
        takes(
            ["run_id"],
            run_id=_RUN_ID,
            wait=(NUMBER, "for how many seconds to wait until it ends or asks (0)"),
        ),
        get_run,
    ),
    OfferedTool(
        "get_history",
        "The steps of a run, oldest first.",
        takes(["run_id"], run_id=_RUN_ID, after=(WHOLE_NUMBER, "`next` of the page before"), limit=_LIMIT),
        in_thread(get_history),
    ),
    OfferedTool(
        "get_state",
        "The state of a run, now or after a step. Secrets are masked.",
        takes(
            ["run_id"],
            run_id=_RUN_ID,
            step=(WHOLE_NUMBER, "the step (default: the newest)"),
            branch=(TEXT, "a branch that is open then, by its name in the history"),
            key=(TEXT, "only this key, however large its value is"),
        ),
        in_thread(get_state),
    ),
    OfferedTool(
        "answer_run",
        "Answer what a run asks, with what the user has said, and follow it; without a value, approve a run that was "
        "interrupted.",
        takes(
            ["run_id"],
            run_id=_RUN_ID,
            value=(ANYTHING, "the answer to its only question"),
            answers=(OBJECT, "the answers by the ids of its questions"),
            by=(TEXT, "who answers, for the history"),
            wait=_WAIT,
        ),
        answer,
        ADDS,
        OUTCOME,
    ),
    OfferedTool(
        "send_message",
        "Send a message to a run that waits for one, or will.",
        takes(
            ["run_id", "name", "value"],
            run_id=_RUN_ID,
            name=(TEXT, "the name that a node receives"),
            value=(ANYTHING, "what is sent"),
            key=(TEXT, "of several messages with this key, the first counts"),
        ),
        in_thread(send_message),
        ADDS,
    ),
    OfferedTool(
        "cancel_run",
        "Stop a run. retry_run continues it from what it saved.",
        takes(["run_id"], run_id=_RUN_ID),
        in_thread(cancel_run),
        DELETES,
    ),
    OfferedTool(
        "retry_run",
        "Hand a run that failed, or was cancelled, back to the workers, from where it stopped, and follow it.",
        takes(["run_id"], run_id=_RUN_ID, update=_UPDATE, deadline=_DEADLINE, wait=_WAIT),
        retry_run,
        REPLACES,
        OUTCOME,
    ),
    OfferedTool(
        "fork_run",
        "Start a new run from where another was after a step, maybe with changes. The other stays as it is.",
        takes(
            ["run_id"],
            run_id=_RUN_ID,
            step=(WHOLE_NUMBER, "the step (default: the newest)"),
            update=_UPDATE,
            new_run_id=(TEXT, "the id of the new run"),
            tags=_TAGS,
            begin=(FLAG, "whether workers execute it at once (true)"),
            wait=_WAIT,
        ),
        fork_run,
        ADDS,
        OUTCOME,
    ),
)
