"""The tools of workflows-mcp, by their names, for clients and prompts that know them.

A checkpoint stands for its run: it names what was asked there, and its run is resumed, listed and deleted.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

from anyio.to_thread import run_sync

from limpet.engine.node_context.questions import NOT_GIVEN, ResumeInput, check_answer
from limpet.engine.operations.answer import answer
from limpet.engine.operations.run_info import RunInfo
from limpet.engine.operations.stored_state import viewed_progress
from limpet.engine.sessions.checkpoint_refs import run_and_point
from limpet.errors import AnswerRefused, LimpetError, UsageError
from limpet.frontends.graph_inputs import input_schema
from limpet.integrations.mcp.run_calls import follow
from limpet.integrations.mcp.run_outcomes import OUTCOME, shown_question
from limpet.integrations.mcp.served_runs import ServedRuns
from limpet.integrations.mcp.tools.general_tools import details, page_size, refuse_secret_answers, run_graph
from limpet.integrations.mcp.tools.inline_graphs import know_text, run_text
from limpet.integrations.mcp.tools.offered_tool import (
    ADDS,
    DELETES,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    WHOLE_NUMBER,
    Answer,
    OfferedTool,
    ToolCall,
    in_thread,
    takes,
)
from limpet.journal.store import ENDED, PAUSED, RUNNING
from limpet.journal.waits import Question
from limpet.stores.retention import expire_by_age

RETENTION_HOURS: Final = 24.0


async def execute_workflow(call: ToolCall) -> Answer:
    """`run_graph` under its name there."""
    values = call.values
    given = {"graph": _workflow_in(call), "input": values.get("inputs"), "run_id": values.get("run_id")}
    return await run_graph(call._replace(values=given))


async def execute_inline_workflow(call: ToolCall) -> Answer:
    """`run_inline` under its name there."""
    values = call.values
    return await run_text(call, values["workflow_yaml"], values.get("inputs"), values.get("run_id"))


def list_workflows(call: ToolCall) -> dict[str, Any]:
    """The names of the graphs, each with what it is for."""
    graphs = call.served.graphs.values()
    return {"workflows": [{"name": each.name, "description": each.graph.description} for each in graphs]}


def get_workflow_info(call: ToolCall) -> dict[str, Any]:
    """One graph: its inputs, and its tasks with what they depend on."""
    graph = call.served.graph(_workflow_in(call))
    plan = graph.compiled().plan
    info: dict[str, Any] = {
        "name": graph.name,
        "description": graph.graph.description,
        "inputs": input_schema(plan),
        "blocks": [name for name in plan.nodes if not name.startswith("after_layer")],
    }
    if plan.layers is not None:
        info["waves"] = [list(layer) for layer in getattr(graph.graph, "layers", [])]
    return info


def _workflow_in(call: ToolCall) -> str:
    """The name of the workflow that a call is about, by either of its arguments. Raises `UsageError`."""
    name: str | None = call.values.get("workflow") or call.values.get("workflow_name")
    if name is None:
        raise UsageError(f"{call.params.name} needs the argument 'workflow': list_workflows lists them")
    return name


async def resume_workflow(call: ToolCall) -> Answer:
    """Give the response to what was asked at a checkpoint, and follow the run."""
    run = await run_sync(_resume, call)
    return await follow(call, run.run_id)


def _resume(call: ToolCall) -> RunInfo:
    values = call.values
    run = _run_of(call.served, values["checkpoint_id"])
    response = values.get("response", values.get("llm_response", NOT_GIVEN))
    if run.status not in (PAUSED, RUNNING):
        call.served.runs.retry(run.run_id)
        return run
    if response is NOT_GIVEN and not run.waits_for_approval:
        if run.questions:
            raise UsageError(f"run {run.run_id!r} asks {run.questions[0].prompt!r}: give a response")
        return run
    if response is not NOT_GIVEN:
        refuse_secret_answers(run, run.questions)
        if len(run.questions) == 1:
            response = _answer_in(run.questions[0], response)
    given = ResumeInput(response, by=call.answers_as, is_json=True)
    answer(call.served.client, values["checkpoint_id"], given)
    return run


def _answer_in(question: Question, response: Any) -> Any:
    """The answer in a response, which is always a text there: as it is, or as JSON if only that fits."""
    if not isinstance(response, str):
        return response
    try:
        check_answer(question, response)
    except AnswerRefused:
        try:
            return json.loads(response)
        except (ValueError, RecursionError):
            return response
    return response


def list_checkpoints(call: ToolCall) -> dict[str, Any]:
    """The newest checkpoints of runs that haven't ended: each can be resumed."""
    served = call.served
    name = call.values.get("workflow_name")
    page = served.list(page_size(call.values.get("limit")), name, status=[PAUSED, RUNNING])
    return {"checkpoints": [_facts(served, run) for run in page.runs]}


def get_checkpoint_info(call: ToolCall) -> dict[str, Any]:
    """What is known of the run of a checkpoint."""
    served = call.served
    run = _run_of(served, call.values["checkpoint_id"])
    return {**details(served, run), **_facts(served, run)}


def delete_checkpoint(call: ToolCall) -> dict[str, Any]:
    """Delete the run of a checkpoint."""
    run = _run_of(call.served, call.values["checkpoint_id"])
    call.served.runs.delete(run.run_id)
    return {"deleted": run.run_id}


def cleanup_checkpoints(call: ToolCall) -> dict[str, Any]:
    """Delete old runs of the graphs here that have ended; paused ones only if they are named."""
    statuses = [*ENDED, PAUSED] if call.values.get("include_paused") else list(ENDED)
    hours = call.values.get("max_age_hours", RETENTION_HOURS)
    deleted = [expire_by_age(call.served.store, hours, statuses, name) for name in call.served.graphs]
    return {"deleted": sum(deleted)}


def _run_of(served: ServedRuns, checkpoint_id: str) -> RunInfo:
    run_id, _ = run_and_point(served.client, checkpoint_id)
    return served.run(run_id)


def _facts(served: ServedRuns, run: RunInfo) -> dict[str, Any]:
    checkpoint_id = run.run_id
    with suppress(LimpetError):  # the journal of a damaged run can't be read
        checkpoint_id = viewed_progress(served.client, run.run_id).checkpoint_id
    return {
        "checkpoint_id": checkpoint_id,
        "run_id": run.run_id,
        "workflow_name": run.graph,
        "status": run.shown_at(served.shown.now()),
        "created_at": run.created,
        "questions": [shown_question(each) for each in run.questions],
    }


_CHECKPOINT: Final = (TEXT, "the id of the checkpoint, or of its run")
_WORKFLOW: Final = (TEXT, "the name of the workflow")
_RUN_ID: Final = (TEXT, "the id of the run (default: a new one)")
_INPUTS: Final = (OBJECT, "its inputs: get_workflow_info has the schema")

EXECUTE_INLINE: Final = OfferedTool(
    "execute_inline_workflow",
    "Start a durable run of a workflow that is given as YAML, and follow it.",
    takes(["workflow_yaml"], workflow_yaml=(TEXT, "the workflow"), inputs=_INPUTS, run_id=_RUN_ID),
    execute_inline_workflow,
    ADDS,
    OUTCOME,
    prepare=know_text,
)

WORKFLOW_TOOLS: Final = (
    OfferedTool(
        "execute_workflow",
        "Start a durable run of a workflow, and follow it.",
        takes(workflow=_WORKFLOW, workflow_name=_WORKFLOW, inputs=_INPUTS, run_id=_RUN_ID),
        execute_workflow,
        ADDS,
        OUTCOME,
    ),
    OfferedTool("list_workflows", "The workflows that can be executed.", takes(), in_thread(list_workflows)),
    OfferedTool(
        "get_workflow_info",
        "A workflow: its inputs, its blocks, and the waves in which they run.",
        takes(workflow=_WORKFLOW, workflow_name=_WORKFLOW),
        in_thread(get_workflow_info),
    ),
    OfferedTool(
        "resume_workflow",
        "Resume a paused workflow with the response to what it asks, and follow it.",
        takes(
            ["checkpoint_id"],
            checkpoint_id=_CHECKPOINT,
            response=({}, "the response"),
            llm_response=({}, "the same, by another name"),
        ),
        resume_workflow,
        ADDS,
        OUTCOME,
    ),
    OfferedTool(
        "list_checkpoints",
        "The checkpoints of workflows that haven't ended.",
        takes(workflow_name=_WORKFLOW, limit=(WHOLE_NUMBER, "how many")),
        in_thread(list_checkpoints),
    ),
    OfferedTool(
        "get_checkpoint_info",
        "What is known of a checkpoint: its workflow, its status, and what it asks.",
        takes(["checkpoint_id"], checkpoint_id=_CHECKPOINT),
        in_thread(get_checkpoint_info),
    ),
    OfferedTool(
        "delete_checkpoint",
        "Delete the run of a checkpoint, with all of its checkpoints.",
        takes(["checkpoint_id"], checkpoint_id=_CHECKPOINT),
        in_thread(delete_checkpoint),
        DELETES,
    ),
    OfferedTool(
        "cleanup_checkpoints",
        "Delete the runs that ended some time ago.",
        takes(
            max_age_hours=(NUMBER, f"how many hours ago, at least ({RETENTION_HOURS:g})"),
            include_paused=(FLAG, "delete paused runs as well, which were never answered (false)"),
        ),
        in_thread(cleanup_checkpoints),
        DELETES,
    ),
)
