"""Calling a node by the user's executor, which may use other processes: it gets the function and plain data."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import TYPE_CHECKING, Any

from limpet.engine.drivers.node_call import CallEnd, is_failure, timed_out
from limpet.engine.leases.held_lease import StopRequest
from limpet.engine.loop.driver_commands import Cancelled, Failed
from limpet.engine.node_context.call_scope import CURRENT
from limpet.engine.node_context.node_context import NodeContext
from limpet.errors import UnstorableValue, UsageError
from limpet.graphs.state import AccessLog, State, TrackedState
from limpet.journal.encoding.codec import encode

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from limpet.graphs.parameters import Function

EXECUTOR_CHECK_INTERVAL = 0.005
"""Seconds between two checks whether an executor has started a call: a `Future` doesn't notify of that."""


def call_in_executor(executor: Executor, task: NodeContext, stop: StopRequest) -> Any:
    """`call_node` by an executor that may use other processes: it gets the function and plain data."""
    from concurrent.futures import TimeoutError as FutureTimeout

    function = task.plan_node.function
    assert function is not None
    if any(thing in ("ctx", "graph") for _, thing in function.takes):
        problem = f"node {task.node!r} takes ctx or graph, which can't go to {type(executor).__name__}"
        return Failed(UsageError(problem), again=False)
    state_parameter, arguments = _sendable_arguments(task, function)
    state = dict(dict.items(task.state))
    reducers = list(task.state.access_log.reducers)
    try:
        future = executor.submit(call_with_copy, function.call, state, reducers, state_parameter, arguments)
        if not _wait_until_started(future, task, stop):
            return Cancelled()
        ended = CallEnd(stop)
        future.add_done_callback(lambda _: ended.set())
        ended.wait(task.plan_node.timeout)
        returned, changed, deleted = future.result(0)
        for key, value in changed.items():
            task.state[key] = value
        for key in deleted:
            del task.state[key]
        return returned
    except FutureTimeout:
        future.cancel()
        return timed_out(task, stop.is_overdue)
    except Exception as error:
        unsendable = _why_unsendable(task, executor, error, {**state, **arguments})
        if unsendable is not None:
            unsendable.__cause__ = error
            return Failed(unsendable, again=False)
        return Failed(error)
    except BaseException as error:
        if not is_failure(error):
            raise
        return Failed(error)


def _why_unsendable(
    task: NodeContext, executor: Executor, error: Exception, values: dict[str, Any]
) -> UsageError | None:
    """What an executor couldn't send to another process or back, if its error is about that."""
    if type(error).__name__ != "PicklingError" and "pickle" not in str(error):
        return None
    where = f"node {task.node!r} can't be called by {type(executor).__name__}, in another process"
    function = task.plan_node.function
    assert function is not None
    if not _can_be_pickled(function.call):
        name = getattr(function.call, "__qualname__", repr(function.call))
        problem = UsageError(f"{where}: its function {name} can't be pickled")
        return problem.with_advice("define it with def at the top of a module, or use threads")
    for key, value in values.items():
        if not _can_be_pickled(value):
            problem = UsageError(f"{where}: {key!r}, of type {type(value).__name__}, can't be pickled")
            return problem.with_advice("keep it out of the state, or use threads")
    problem = UsageError(f"{where}: what it returned or raised can't be pickled: {error}")
    return problem.with_advice("return plain data, or use threads")


def _can_be_pickled(value: Any) -> bool:
    """Whether a process pool can send a value: this is what it does with it."""
    from multiprocessing.reduction import ForkingPickler

    try:
        ForkingPickler.dumps(value)
    except Exception:
        return False
    return True


def _sendable_arguments(task: NodeContext, function: Function) -> tuple[str | None, dict[str, Any]]:
    """The parameter for the state, as `call_with_copy` takes it, and the other arguments, as plain data."""
    parameters = {thing: parameter for parameter, thing in function.takes}
    if task.plan_node.workflow_task is None:
        others = tuple(each for each in function.takes if each[1] != "state")
        arguments = function._replace(takes=others).arguments(task.offer)
        state_parameter = parameters.get("state", "")
    else:
        # A task of a workflow reads the state and returns its result, so it gets the state as a plain dict.
        arguments = function.arguments(task.offer)
        state_parameter = ""
        if "state" in parameters:
            arguments[parameters["state"]] = dict(arguments[parameters["state"]])
    if function.plain:
        return None, arguments
    return state_parameter, arguments


def _wait_until_started(future: Future[Any], task: NodeContext, stop: StopRequest) -> bool:
    """Wait until an executor has started a call, so that its timeout begins then; False if it was cancelled."""
    while not (future.running() or future.done()):
        if (stop.asked or task.scope.current_call is not task) and future.cancel():
            return False
        sleep(EXECUTOR_CHECK_INTERVAL)
    return True


def call_with_copy(
    function: Callable[..., Any],
    values: dict[str, Any],
    reducers: list[str],
    state_parameter: str | None,
    arguments: dict[str, Any],
) -> tuple[Any, dict[str, Any], list[str]]:
    """Call a node's function with a copy of the state: what it returned, what it changed there and what it deleted.

    `state_parameter` names the parameter for the state: None if that is the only one, empty if there is none.
    """
    CURRENT.set(None)
    encoded_before: dict[str, bytes | None] = {}

    def on_read(key: str, value: Any) -> Any:
        encoded_before[key] = _encoded(value)
        return value

    state = TrackedState(values)
    state.access_log = notes = AccessLog(State(), dict.fromkeys(reducers), on_read)
    if state_parameter is None:
        returned = function(state)
    elif state_parameter:
        returned = function(**arguments, **{state_parameter: state})
    else:
        returned = function(**arguments)
    changed = {key: dict.__getitem__(state, key) for key, exists in notes.written.items() if exists}
    # A value that was read may have been changed in place, which only its content shows.
    for key, before in encoded_before.items():
        if key not in notes.written and _encoded(dict.get(state, key)) != before:
            changed[key] = dict.__getitem__(state, key)
    return returned, changed, [key for key, exists in notes.written.items() if not exists]


def _encoded(value: Any) -> bytes | None:
    try:
        return encode(value)
    except UnstorableValue:
        return None
