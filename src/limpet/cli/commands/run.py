"""`run`, `resume`, `answer`: execute a run here, show its steps, and say what to do where it stops."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from limpet import Limits, Question, Run, RunInfo, Runs
from limpet.cli.exit_codes import BY_STATUS, INTERRUPTED, OK
from limpet.cli.inputs import input_keys, is_input, read_input, read_pairs, state_keys
from limpet.cli.next_commands import suggest_next, worker_command
from limpet.cli.output import Output
from limpet.cli.project import (
    Graph,
    command_line,
    find_run,
    find_store,
    graph_named,
    graph_of_run,
    load_target,
)
from limpet.cli.run_display import RunDisplay, Summary, cut, summary_of, telling_limits, waits_of
from limpet.cli.run_ids import whole_id
from limpet.cli.values import read_value
from limpet.engine.operations.run_info import way_on
from limpet.engine.sessions.compatibility import refuse_cancelled
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.errors import AnswerRefused, LimpetError, RunNotFound, UsageError
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.graphs.secrets import masked
from limpet.journal.store import Store
from limpet.journal.threads.kinds import foreign_run


def run(args: Namespace, output: Output) -> int:
    """Start a run of a graph, or queue one."""
    target, given = _target_and_input(args)
    if args.priority is not None and not args.detach:
        raise UsageError(
            "--priority is about the order of queued runs: give --detach as well, or leave it out"
        )
    if args.queue is not None and not args.detach:
        raise UsageError("--queue is about queued runs: give --detach as well, or leave it out")
    loaded = load_target(target)
    # The commands that are suggested later then say where the code is.
    args.graph = args.graph or [target]
    known = input_keys(loaded.compiled().plan)
    values = read_input(given, known)
    for warning in known.warnings(values):
        output.say(warning)
    config = read_pairs(args.config, "--config")
    store = find_store(args, loaded)
    graph = GraphOnStore(loaded, store)
    checkpoint = _checkpoint(args.checkpoint, store) or graph.declared_checkpoint
    if args.detach:
        if checkpoint is not None:
            raise UsageError("a run that starts from a checkpoint can't be queued: leave out --detach")
        if not store.abilities.shared:
            raise UsageError(
                "a run that is queued in memory ends with this command: with --detach, give a store that a worker "
                "can open, such as --store sqlite:///runs.db"
            )
        existing = _existing(Runs(store), args.id)
        queued = graph.start(
            values,
            config,
            run_id=args.id,
            tags=args.tag,
            priority=args.priority or 0,
            deadline=args.deadline,
            queue=args.queue,
        )
        if existing is not None:
            return _report_existing(existing, args, output)
        return _report_queued(queued.run_id, args, output)
    first: dict[str, Any] | None = values
    if checkpoint is not None and not values:
        first = None
    begin = partial(
        graph.stream, first, config, checkpoint, run_id=args.id, tags=args.tag, deadline=args.deadline
    )
    return _follow(begin, graph, args, output)


def resume(args: Namespace, output: Output) -> int:
    """Resume a run, with changes to its state if some are given."""
    graph = graph_of_run(args, output)
    update = read_changes(args, graph, output) or None
    begin = partial(graph.stream_resumed, args.run, update=update, deadline=args.deadline, wait=args.wait)
    return _follow(begin, graph, args, output)


def answer(args: Namespace, output: Output) -> int:
    """Answer a question of a run, or approve it, and resume it here where its graph is known; else a worker does.

    A process that executes other tasks or branches of the run meanwhile takes the answer in.
    """
    if len(args.answer) > 2:
        raise UsageError("answer RUN [QUESTION] VALUE: quote a value of several words")
    runs = find_run(args, output, changes=True)
    info = runs.get(args.run).info
    if info.kind:
        raise foreign_run(info.run_id, info.kind)
    refuse_cancelled(info.run_id, info.status)
    answers = _answers_typed(args.answer, info)
    if info.shown_status == "running":
        runs.answer(args.run, answers=answers, by=args.by)
        return _report_posted(args.run, args, output)
    if args.detach or not _knows_graph(args, info.graph):
        runs.answer(args.run, answers=answers, by=args.by)
        return _report_queued(args.run, args, output)
    graph = graph_of_run(args, output)
    if args.by is not None:  # a resume doesn't say who answers
        runs.answer(args.run, answers=answers, by=args.by)
        answers = None
    return _follow(partial(graph.stream_resumed, args.run, answers=answers), graph, args, output)


def _answers_typed(words: list[str], info: RunInfo) -> dict[str, Any] | None:
    """The answers by question id that `answer` was given; None approves a run that was interrupted."""
    if not words and info.waits_for_approval:
        return None
    if not words and info.questions:
        missing = UsageError(f"run {info.run_id!r} waits for an answer: give it a VALUE")
        raise missing.with_advice(*way_on(info))
    *named, text = words or [""]
    question = _find_question(info, named[0] if named else None)
    return {question.id: _read_answer(text, question)}


def read_changes(args: Namespace, graph: Graph, output: Output) -> dict[str, Any]:
    """The changes of a run's state that `--set` gives, read by the schema of the run's graph."""
    known = state_keys(graph.compiled().plan)
    update = read_pairs(args.set, "--set", known)
    for warning in known.warnings(update):
        output.say(warning)
    return update


def _follow(begin: Callable[[], Run[Any]], graph: GraphOnStore, args: Namespace, output: Output) -> int:
    """Drive a run to its end, or to a pause that isn't answered here."""
    code, info = _drive(begin, graph, args, output)
    while info is not None and info.status == "paused" and output.interactive:
        try:
            answers = _ask_here(info, output)
            if answers is None:
                break
            resumed = partial(graph.stream_resumed, info.run_id, answers=answers or None)
            code, info = _drive(resumed, graph, args, output)
        except AnswerRefused as refused:
            output.problem(refused.message, refused.code)
    return code


def _drive(
    begin: Callable[[], Run[Any]], graph: GraphOnStore, args: Namespace, output: Output
) -> tuple[int, RunInfo | None]:
    """Drive a run to its next stop, show its steps, and report how it stopped; None if it was interrupted."""
    display = RunDisplay(output)
    graph.observer = display.observe
    running = begin()
    compiled = graph.compiled()
    telling: AbstractContextManager[None] = nullcontext()
    if compiled.limits or compiled.plan.limits:
        telling = telling_limits(
            lambda awaited: output.say(f"  … waits for {awaited}", "dim"),
            lambda: _awaited_limits(compiled, running.id),
        )
    try:
        with telling:
            for event in running:
                display.show(event)
    except KeyboardInterrupt:
        running.close()
        output.say(f"interrupted; everything that run {running.id} finished is saved")
        output.hint("Resume it with:", command_line("resume", args, running.id))
        return INTERRUPTED, None
    info = Runs.of_graph(graph.compiled(), "run").get(running.id).info
    state = masked(dict(running.state), graph.secrets)
    if output.json:
        output.result(
            {
                "run_id": running.id,
                "graph": info.graph,
                "status": running.status,
                "state": state,
                "questions": [question._asdict() for question in running.questions],
                "error": None if running.error is None else running.error.message,
            }
        )
    else:
        _report_stop(info, summary_of(state, graph.compiled().plan), running.error, args, output)
    return BY_STATUS.get(running.status, OK), info


def _awaited_limits(compiled: CompiledGraph, run_id: str) -> str | None:
    """The limits that a run waits for, with how much of them is used; None if it waits for none."""
    with suppress(LimpetError):  # nothing is stored of the run yet, or the store can't be reached
        info = Runs.of_graph(compiled, "run").get(run_id).info
        limits = Limits(compiled.need_client("limits").store).held_up_by(info, compiled)
        if limits:
            return waits_of(info, limits)
    return None


def _ask_here(info: RunInfo, output: Output) -> dict[str, Any] | None:
    """The answers to what a paused run asks, as they are typed at the terminal; None to leave it paused."""
    try:
        if not info.questions:
            reply = output.ask("Resume it here? [y/N] ")
            return {} if reply.strip().lower() in ("y", "yes") else None
        answers = {}
        for question in info.questions:
            what = "Answer here"
            if len(info.questions) > 1:
                what = f"Answer {question.node} here"
            reply = output.ask(f"{what}, or press Enter to leave it: ", hidden=question.secret)
            if reply.strip():
                answers[question.id] = _read_answer(reply, question)
        return answers or None
    except (EOFError, KeyboardInterrupt):
        output.say("")
        return None


def _report_queued(run_id: str, args: Namespace, output: Output) -> int:
    _report(run_id, "queued", output)
    output.hint(*worker_command("A worker executes it. If none is running, start one:", args, "--once"))
    output.hint("Follow it with:", command_line("runs watch", args, run_id))
    return OK


def _report_existing(info: RunInfo, args: Namespace, output: Output) -> int:
    """A run that was to be queued exists already."""
    output.say(f"run {info.run_id} already exists ({info.shown_status}), and stays as it is")
    _report(info.run_id, info.shown_status, output)
    suggest_next(info, args, output)
    return OK


def _report_posted(run_id: str, args: Namespace, output: Output) -> int:
    """The process that executes the run has got an answer."""
    _report(run_id, "running", output)
    output.hint(
        "The process that executes the run continues with it. Follow it with:",
        command_line("runs watch", args, run_id),
    )
    return OK


def _report(run_id: str, status: str, output: Output) -> None:
    """Name a run that isn't executed here: by its id, and for a program with its status."""
    if output.json:
        output.result({"run_id": run_id, "status": status})
    else:
        output.text(run_id)


def _target_and_input(args: Namespace) -> tuple[str, list[str]]:
    """The graph to run, and the parts of its input. Raises `UsageError`.

    In `run -i a=1 GRAPH`, the option takes the graph for one more part of the input, and it can't be one.
    """
    parts = [part for parts in args.input for part in parts]
    if args.target is not None:
        return args.target, parts
    graphs = [part for parts in args.input for part in parts[1:] if not is_input(part)]
    if not graphs:
        raise UsageError("run needs a GRAPH: file.yaml, file.py:attribute or package.module:attribute")
    parts.remove(graphs[0])
    return graphs[0], parts


def _checkpoint(typed: str | None, store: Store) -> str | None:
    """A checkpoint as it was typed: a file, or `run@step` with the whole id of the run."""
    if typed is None or os.path.exists(typed):
        return typed
    run_id, at, step = typed.rpartition("@")
    return f"{whole_id(store, run_id, any_prefix=True)}@{step}" if at else typed


def _existing(runs: Runs, run_id: str | None) -> RunInfo | None:
    """A run that already exists."""
    if run_id is None:
        return None
    try:
        return runs.get(run_id).info
    except RunNotFound:
        return None


def _knows_graph(args: Namespace, name: str) -> bool:
    """Whether the run can be resumed here. Raises `UsageError` if --graph was given and is another graph."""
    try:
        graph_named(args, name)
    except UsageError:
        if args.graph:
            raise
        return False
    return True


def _find_question(info: RunInfo, question_id: str | None) -> Question:
    listed = ", ".join(repr(question.id) for question in info.questions)
    if not info.questions:
        raise _nothing_asked(info)
    if question_id is None and len(info.questions) > 1:
        raise UsageError(f"run {info.run_id!r} has several open questions; name one of {listed}")
    found = [each for each in info.questions if question_id in (None, each.id)]
    if not found:
        raise UsageError(f"run {info.run_id!r} has no open question {question_id!r}; open: {listed}")
    return found[0]


def _nothing_asked(info: RunInfo) -> UsageError:
    status = info.shown_status
    if info.waits_for_approval:
        status = f"{info.reason}, and waits for an approval"
    elif status == "paused":
        status = "paused without a question"
    return UsageError(f"run {info.run_id!r} has no open question: it is {status}").with_advice(*way_on(info))


def _read_answer(text: str, question: Question) -> Any:
    """An answer of the type that the question takes: text where it takes text, else JSON if possible."""
    if question.choices is not None:
        by_text = {str(choice): choice for choice in question.choices}
        return by_text.get(text, read_value(text))
    if question.schema is not None and question.schema.get("type") == "string":
        return text
    return read_value(text)


def _report_stop(
    info: RunInfo, summary: Summary, error: LimpetError | None, args: Namespace, output: Output
) -> None:
    output.facts({"run": info.run_id, "status": info.shown_status}, summary.lines)
    if error is not None and info.status == "failed":
        output.problem(cut(info.reason or error.message), error.code)
        output.hint("The whole error:", command_line("runs show", args, info.run_id))
    elif error is not None and info.status == "running":  # the store couldn't save that it failed
        output.problem(cut(error.message), error.code)
    if not summary.is_whole:
        output.hint("The whole state:", command_line("runs state", args, info.run_id))
    suggest_next(info, args, output)
