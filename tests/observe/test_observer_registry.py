"""Observers by name, and the events they get: promises G10 and G11."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from limpet.errors import UnknownName, UsageError
from limpet.observe import (
    EVENT_TYPES,
    Event,
    LogObserver,
    NoopObserver,
    ProgressObserver,
    gather,
    register_observer,
    resolve_observer,
)
from limpet.observe import observer_registry as registry


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def explode(event: Event) -> None:
    raise RuntimeError(f"no {event.type} please")


def log_line(caplog: pytest.LogCaptureFixture, type: str, data: dict[str, Any], source: str = "essay") -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="limpet.run"):
        LogObserver().on_event(Event(type, 1.0, source, data))
    (record,) = caplog.records
    return record.getMessage()


def test_the_built_in_names_resolve() -> None:
    """G10: `log`, `noop` and `progress` are there, and `slog` is another word for `log`."""
    assert isinstance(resolve_observer("log"), LogObserver)
    assert isinstance(resolve_observer("slog"), LogObserver)
    assert isinstance(resolve_observer("noop"), NoopObserver)
    assert isinstance(resolve_observer("progress"), ProgressObserver)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    """G10: an unknown name is a clear error."""
    with pytest.raises(
        UnknownName,
        match=r"unknown observer 'lgo'; did you mean 'log'\? Registered: log, noop, progress, slog",
    ):
        resolve_observer("lgo")


def test_objects_and_functions_are_accepted_where_a_name_is() -> None:
    """G10: what has `on_event`, and a plain function, are observers as they are."""
    recorder = Recorder()
    assert resolve_observer(recorder) is recorder
    assert resolve_observer(explode) is explode


def test_a_class_is_made_into_an_observer() -> None:
    """G10: forgetting the parentheses still observes."""
    assert isinstance(resolve_observer(Recorder), Recorder)


@pytest.mark.parametrize("wrong", [None, 3, object(), ["log"]])
def test_what_can_not_observe_is_refused(wrong: Any) -> None:
    """G10: neither callable nor with `on_event` is a usage error, at once and not during the run."""
    with pytest.raises(UsageError, match="can't observe; an observer is"):
        resolve_observer(wrong)
    with pytest.raises(UsageError, match="can't observe"):
        register_observer("mine", wrong)


def test_an_async_observer_is_refused_rather_than_never_awaited() -> None:
    """G10: its coroutine would be dropped in silence."""

    async def watch(event: Event) -> None: ...

    with pytest.raises(UsageError, match="is async"):
        resolve_observer(watch)  # type: ignore[arg-type]  # that is the mistake


def test_a_class_that_needs_arguments_says_so() -> None:
    """G10: the error says what to do instead."""

    class Needy(Recorder):
        def __init__(self, where: str) -> None:
            super().__init__()

    register_observer("needy", Needy)  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(UsageError, match=r"'needy' can't be made without arguments.*'where'.*pass an object"):
        resolve_observer("needy")


def test_a_registered_factory_gives_each_its_own_and_an_object_is_shared() -> None:
    """G10: factories are called on each use; objects and event-taking functions aren't."""
    shared = Recorder()
    seen: list[Event] = []
    register_observer("class", Recorder)
    register_observer("factory", lambda: Recorder())
    register_observer("object", shared)
    register_observer("function", seen.append)
    assert resolve_observer("class") is not resolve_observer("class")
    assert isinstance(resolve_observer("factory"), Recorder)
    assert resolve_observer("object") is shared
    assert resolve_observer("function") == seen.append


def test_a_factory_that_makes_no_observer_is_named() -> None:
    """G10: the error says which name it was."""
    register_observer("broken", lambda: None)  # type: ignore[arg-type, return-value]  # that is the mistake
    with pytest.raises(UsageError, match="observer 'broken': an object of type NoneType can't observe"):
        resolve_observer("broken")


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_name_must_be_text(name: Any) -> None:
    """G10: registering under nothing is refused."""
    with pytest.raises(UsageError, match="the name of an observer must be a str"):
        register_observer(name, Recorder)


def test_the_registry_survives_many_threads() -> None:
    """G10: registering and resolving at once loses nothing and raises nothing."""
    barrier = threading.Barrier(8)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            barrier.wait(10)
            for turn in range(100):
                register_observer(f"{number}-{turn}", Recorder)
                resolve_observer(f"{number}-{turn}")
                with pytest.raises(UnknownName):
                    resolve_observer(f"{number}-{turn}-not")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    for number in range(8):
        for turn in range(100):
            resolve_observer(f"{number}-{turn}")


def test_all_observers_get_every_event_in_order() -> None:
    """G11: several observers at once, objects and functions; an event has type, timestamp, source, data."""
    recorder = Recorder()
    seen: list[Event] = []
    times = iter([10.0, 11.0])
    emit = gather([recorder, seen.append], clock=lambda: next(times))
    assert emit is not None
    emit("graph.start", "essay", {"run_id": "r1", "entry": "draft"})
    emit("node.start", "essay", {"run_id": "r1", "node": "draft", "iteration": 1, "attempt": 1})
    assert recorder.events == seen
    assert seen[0] == Event("graph.start", 10.0, "essay", {"run_id": "r1", "entry": "draft"})
    assert [(event.type, event.timestamp) for event in seen] == [("graph.start", 10.0), ("node.start", 11.0)]


def test_an_event_can_not_be_changed() -> None:
    """G11: all observers get the same event."""
    event = Event("graph.start", 1.0, "essay", {})
    with pytest.raises(AttributeError):
        event.type = "node.start"  # type: ignore[misc]  # that is the mistake


def test_what_nodes_emit_is_logged_at_debug_without_its_value(caplog: pytest.LogCaptureFixture) -> None:
    """H12, G11: a model emits a hundred tokens a second."""
    observer = LogObserver()
    with caplog.at_level("DEBUG", "limpet.run"):
        observer.on_event(
            Event("node.output", 1.0, "chat", {"node": "answer", "attempt": 1, "data": "sesame"})
        )
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "node.output node=answer attempt=1 source=chat")
    ]


def test_the_promised_event_types_exist() -> None:
    """G11: the types of the promise, and those of Limpet's own."""
    promised = (
        "state.create state.clone state.set state.merge graph.start graph.complete node.start node.complete "
        "edge.evaluate edge.transition cycle.detected checkpoint.save checkpoint.load checkpoint.resume"
    )
    own = (
        "node.retry checkpoint.fail layer.start layer.complete branch.start branch.complete "
        "node.sleep node.output node.progress run.pause run.sleep run.wait run.fail run.cancel"
    )
    assert sorted(EVENT_TYPES) == sorted([*promised.split(), *own.split()])


def test_without_observers_there_is_nothing_to_call() -> None:
    """G11: no observer attached costs nothing, and noop ones count as none."""

    def no_clock() -> float:
        raise AssertionError("there is no observer, so the clock must not be read")

    assert gather([], no_clock) is None
    assert gather([NoopObserver(), resolve_observer("noop")], no_clock) is None


def test_an_observer_that_raises_is_logged_once_and_does_not_break_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """G11: the others still get every event, and the log has one traceback per observer."""

    class Broken:
        def on_event(self, event: Event) -> None:
            raise ValueError("broken too")

    seen: list[Event] = []
    emit = gather([explode, Broken(), seen.append], clock=lambda: 1.0)
    assert emit is not None
    for _ in range(3):
        emit("node.start", "essay", {"run_id": "r1"})
    assert len(seen) == 3
    records = [record for record in caplog.records if record.name == "limpet.observe"]
    assert [record.getMessage().split(" failed at ")[0] for record in records] == [
        "observer explode",
        "observer " + Broken.__qualname__,
    ]
    assert all(record.exc_info for record in records)


def test_a_log_handler_that_raises_does_not_break_the_run_either() -> None:
    """G11: telling of a broken observer must not be what breaks the run."""

    class Worse(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    logger = logging.getLogger("limpet.observe")
    handler = Worse()
    logger.addHandler(handler)
    try:
        emit = gather([explode], clock=lambda: 1.0)
        assert emit is not None
        emit("node.start", "essay", {})
    finally:
        logger.removeHandler(handler)


def test_keyboard_interrupt_passes_through() -> None:
    """G11: only exceptions are held back, not the user's wish to stop."""

    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    emit = gather([interrupted], clock=lambda: 1.0)
    assert emit is not None
    with pytest.raises(KeyboardInterrupt):
        emit("node.start", "essay", {})


@pytest.mark.parametrize(
    ("type", "data", "line"),
    [
        (
            "node.complete",
            {"run_id": "r1", "node": "draft", "iteration": 3, "error": False, "duration": 0.0123},
            "node.complete node=draft iteration=3 duration=0.012 run=r1 source=essay",
        ),
        (
            "node.complete",
            {"run_id": "r1", "node": "draft", "iteration": 3, "error": True, "duration": 2.0},
            "node.complete node=draft iteration=3 duration=2.000 error=true run=r1 source=essay",
        ),
        (
            "edge.evaluate",
            {"from": "review", "to": "publish", "result": False},
            "edge.evaluate from=review to=publish result=false source=essay",
        ),
        (
            "cycle.detected",
            {"node": "draft", "visit_count": 2, "iteration": 4, "path_length": 5},
            "cycle.detected node=draft iteration=4 visits=2 path=5 source=essay",
        ),
        (
            "checkpoint.resume",
            {"run_id": "r1", "checkpoint_node": "draft", "resume_node": "review"},
            "checkpoint.resume checkpoint=draft resume=review run=r1 source=essay",
        ),
        (
            "run.fail",
            {"run_id": "r1", "node": "draft", "error": ValueError("no\nluck")},
            "run.fail node=draft error='ValueError: no\\nluck' run=r1 source=essay",
        ),
    ],
)
def test_a_log_line_says_what_happened_in_one_line(
    caplog: pytest.LogCaptureFixture, type: str, data: dict[str, Any], line: str
) -> None:
    """G11: one compact line per event."""
    assert log_line(caplog, type, data) == line


def test_a_log_line_never_holds_state(caplog: pytest.LogCaptureFixture) -> None:
    """G11: keys that may carry values of the state aren't written, nor is what a condition returned."""
    secret = {"token": "hunter2"}
    for data in (
        {"key": "token", "value": "hunter2", "state": secret, "updates": secret},
        {"from": "a", "to": "b", "result": "hunter2"},
        {"node": secret, "reason": secret, "error": secret},
    ):
        assert "hunter2" not in log_line(caplog, "state.set", data)


def test_a_name_can_not_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """G11: one event is one line, whatever its texts hold; long texts are cut."""
    line = log_line(caplog, "run.pause", {"node": "a\nrun.fail node=b", "reason": "x" * 5000}, source="")
    assert "\n" not in line
    assert len(line) < 300


def test_retries_and_failures_are_logged_louder(caplog: pytest.LogCaptureFixture) -> None:
    """G11: at least a warning, at least an error; and `level` applies to the rest."""
    logger = logging.getLogger("elsewhere")
    observer = LogObserver(logger, level=logging.DEBUG)
    with caplog.at_level(logging.DEBUG, logger="elsewhere"):
        for type in ("node.start", "node.retry", "run.fail"):
            observer.on_event(Event(type, 1.0, "essay", {"node": "draft"}))
    assert [record.levelname for record in caplog.records] == ["DEBUG", "WARNING", "ERROR"]


def test_a_silent_logger_costs_no_formatting() -> None:
    """G11: if the level is disabled, no line is made."""

    class Untouchable(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise AssertionError("formatted in vain")

    logger = logging.getLogger("silent")
    logger.setLevel(logging.CRITICAL)
    LogObserver(logger).on_event(Event("node.start", 1.0, "essay", Untouchable()))


def test_importing_the_observers_imports_no_logging() -> None:
    """G11: what isn't used costs no import time."""
    code = "import sys, limpet.observe; sys.exit(bool({'logging', 'asyncio'} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60).returncode == 0
