"""`run`, `resume`, `answer`: go on with a run here, show how it goes, and say what to do where it stops."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from limpet.cli.exit_codes import BY_STATUS, INTERRUPTED, OK
from limpet.cli.output import Output
from limpet.cli.project import client_of, command, graph_of, store_of, targets_of
from limpet.cli.targets import OnStore, load_target
from limpet.cli.values import moment, read_input, read_pairs, read_value
from limpet.engine.leases.process_identity import is_dead
from limpet.engine.node_context.resume_input import ResumeInput
from limpet.engine.operations.answer import answer as answer_run
from limpet.engine.operations.run_info import RunInfo, run_info
from limpet.engine.sessions import resume as entry
from limpet.errors import LimpetError, RunNotFound, UsageError
from limpet.graphs.secrets import masked
from limpet.journal.waits import Question
from limpet.run import Run


def run(given: Namespace, output: Output) -> int:
    """Start a run of a graph, or queue one."""
    graph = load_target(given.target)
    given.graph = given.graph or [given.target]  # so that what is said next says where the code is
    values = read_input(part for parts in given.input for part in parts)
    config = read_pairs(given.config, "--config")
    on_store = OnStore(graph, store_of(given, graph))
    checkpoint = given.checkpoint or on_store.checkpoint_named
    if given.detach and checkpoint is not None:
        raise UsageError("a run that goes on from a checkpoint isn't queued: leave out --detach")
    if given.detach:
        there = _standing(on_store, given.id)
        queued = on_store.start(values, config, run_id=given.id, tags=given.tag, priority=given.priority)
        if there is not None:
            output.say(f"run {queued.id} is there already: it is {there}, and this input isn't used")
        return _queued(queued.id, given, output)
    found = values or None if checkpoint is not None else values
    started = on_store.stream(found, config, checkpoint, run_id=given.id, tags=given.tag)
    return follow(started, on_store, given, output)


def resume(given: Namespace, output: Output) -> int:
    """Go on with a run, with changes to its state if some are given."""
    return _go_on(given, output, ResumeInput(update=read_pairs(given.set, "--set") or None), given.wait)


def answer(given: Namespace, output: Output) -> int:
    """Answer what a run asks; go on with it here where its graph is known, else leave that to a worker."""
    *named, text = given.answer
    if len(named) > 1:
        raise UsageError("answer RUN [QUESTION] VALUE: quote a value of several words")
    client = client_of(given)
    info = run_info(client.head(given.run))
    asked = _asked(info, named[0] if named else None)
    brought = ResumeInput(answers={asked.id: _fitting(text, asked)})
    try:
        graph_of(given, info.graph)
    except UsageError:
        if not given.detach and given.graph:
            raise
    else:
        if not given.detach:
            return _go_on(given, output, brought, None)
    answer_run(client, given.run, brought)
    return _queued(given.run, given, output)


def follow(going: Run[Any], graph: OnStore, given: Namespace, output: Output) -> int:
    """Drive a run to its next stop, showing its steps, and say how it stands then."""
    try:
        for event in going:
            _show(event, output)
    except KeyboardInterrupt:
        going.close()
        output.say(f"left; run {going.id} is as far as it was saved")
        output.hint("Go on with:", command("resume", given, going.id))
        return INTERRUPTED
    client = graph.compiled().need_client("run")
    info = run_info(client.head(going.id))
    state = masked(dict(going.state), graph.compiled().plan.secrets)
    stopped = {"run_id": going.id, "graph": info.graph, "status": going.status, "state": state}
    if output.json:
        error = going.error
        questions = [question._asdict() for question in going.questions]
        output.result({**stopped, "questions": questions, "error": None if error is None else str(error)})
    else:
        _tell(info, state, going.error, given, output)
    return BY_STATUS.get(going.status, OK)


def what_next(info: RunInfo, given: Namespace, output: Output) -> None:
    """The command that goes on with a run that has stopped, exactly."""
    if info.status == "paused" and info.questions:
        for question in info.questions:
            name = [question.id] if len(info.questions) > 1 else []
            output.hint(_said(question), command("answer", given, info.run_id, *name, _example(question)))
    elif info.status == "paused":
        output.hint(f"{info.reason or 'It waits'}. Go on with:", _resume(given, info.run_id))
    elif info.status == "failed":
        output.hint("When that is mended, try it again with:", _resume(given, info.run_id))
    elif info.status == "running" and (info.holder is None or is_dead(info.holder)):
        said = "Nobody has it" if info.holder is None else "Its process is gone"
        output.hint(f"{said}. A worker goes on with it, or:", _resume(given, info.run_id))
    elif info.status == "cancelled":
        output.hint("To go on all the same:", _resume(given, info.run_id))


def _resume(given: Namespace, run_id: str) -> str:
    """The command that goes on with a run; where nobody said where its code is, with a place for that."""
    return command("resume", given, run_id, *([] if targets_of(given) else ["--graph", "GRAPH"]))


def _go_on(given: Namespace, output: Output, brought: ResumeInput, wait: float | None) -> int:
    client = client_of(given)
    graph = OnStore(graph_of(given, client.head(given.run).graph), client.store)
    compiled = graph.compiled()
    going: Run[Any] = Run(given.run, lambda: entry.resume(compiled, given.run, brought, wait, stream=True))
    return follow(going, graph, given, output)


def _queued(run_id: str, given: Namespace, output: Output) -> int:
    if output.json:
        output.result({"run_id": run_id, "status": "running"})
        return OK
    output.text(run_id)
    if targets_of(given):
        output.hint("A worker goes on with it; if none runs:", command("worker", given, "--once"))
    else:
        said = "A worker goes on with it; if none runs, and GRAPH is where its code is:"
        output.hint(said, command("worker", given, "GRAPH", "--once"))
    output.hint("Follow it with:", command("runs watch", given, run_id))
    return OK


def _standing(graph: OnStore, run_id: str | None) -> str | None:
    """The status of a run that is there already."""
    try:
        return None if run_id is None else graph.compiled().need_client("run").head(run_id).status
    except RunNotFound:
        return None


def _asked(info: RunInfo, wanted: str | None) -> Question:
    listed = ", ".join(repr(question.id) for question in info.questions)
    if not info.questions:
        left = info.status == "running" and info.holder is None
        stands = "nobody has it now, and resume goes on" if left else f"it is {info.status}"
        raise UsageError(f"run {info.run_id!r} asks nothing: {stands}")
    if wanted is None and len(info.questions) > 1:
        raise UsageError(f"run {info.run_id!r} asks several things; name one of {listed}")
    found = [each for each in info.questions if wanted in (None, each.id)]
    if not found:
        raise UsageError(f"run {info.run_id!r} doesn't ask {wanted!r}; it asks {listed}")
    return found[0]


def _fitting(text: str, question: Question) -> Any:
    """An answer as the question takes it: text where text is wanted, else JSON where it is any."""
    if question.choices is not None:
        by_text = {str(choice): choice for choice in question.choices}
        return by_text.get(text, read_value(text))
    if question.schema is not None and question.schema.get("type") == "string":
        return text
    return read_value(text)


def _show(event: dict[str, Any], output: Output) -> None:
    """One thing that happened, as it happens."""
    where = _where(event)
    match event["type"]:
        case "state" | "task_complete":
            output.say(f"  ✓ {where}", "completed")
        case "layer_start":
            output.say(f"  layer {event['layer']}: {', '.join(map(str, event.get('tasks', ())))}", "dim")
        case "task_error" | "error":
            output.say(f"  ✗ {where}: {event.get('error')}", "failed")


def _where(event: dict[str, Any]) -> str:
    """The node or task, with the way to its branch where that isn't called the same."""
    name, branch = str(event.get("task") or event.get("node")), event.get("branch") or ""
    return branch if branch.rpartition("/")[2] == name else f"{branch}/{name}" if branch else name


def _tell(
    info: RunInfo, state: dict[str, Any], error: LimpetError | None, given: Namespace, output: Output
) -> None:
    output.facts(
        {"run": info.run_id, "status": info.status, **{f"  {key}": value for key, value in state.items()}}
    )
    if error is not None and info.status == "failed":
        output.problem(info.reason or str(error), error)
        output.hint("Where that was:", command("runs show", given, info.run_id))
    what_next(info, given, output)


def _said(question: Question) -> str:
    until = f" (until {moment(question.deadline)} UTC)" if question.deadline is not None else ""
    return f"{question.node} asks: {question.prompt}{_wanted(question)}{until}\nAnswer with:"


def _wanted(question: Question) -> str:
    """What an answer may be, as part of a sentence."""
    if question.choices:
        return f" ({' / '.join(map(str, question.choices))})"
    kind = (question.schema or {}).get("type")
    return f" ({kind})" if isinstance(kind, str) else ""


def _example(question: Question) -> str:
    return str(question.choices[0]) if question.choices else "ANSWER"
