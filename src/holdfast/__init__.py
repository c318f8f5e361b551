"""Durable graphs: plain functions wired into graphs whose every finished step is saved."""

from typing import TYPE_CHECKING, Any

from holdfast.errors import (
    ActionFailed,
    AlreadyCompleted,
    AnswerRefused,
    CheckpointError,
    CheckpointNotFound,
    Conflict,
    DamagedCheckpoint,
    DamagedRecord,
    DeadlinePassed,
    DeclarationError,
    DefinitionError,
    ExecutionError,
    ForbiddenType,
    HoldfastError,
    KeyMissing,
    NodeTimeout,
    RunCancelled,
    RunError,
    RunExists,
    RunNotFound,
    RunPaused,
    RunSetAside,
    StoreError,
    StoreUnavailable,
    TemplateError,
    TooLarge,
    UnknownName,
    UnstorableValue,
    UnsupportedFormat,
    UsageError,
    WorkflowChanged,
)
from holdfast.version import VERSION as __version__

if TYPE_CHECKING:
    from holdfast.declared.actions import action, register_action
    from holdfast.declared.loading import load, load_from_file, loads
    from holdfast.engine.catalogue import register_graph
    from holdfast.engine.checkpoints import PauseInfo, WorkflowCheckpoint
    from holdfast.engine.queued import QueuedRun
    from holdfast.engine.records import Difference, RunInfo
    from holdfast.engine.results import BranchResult
    from holdfast.engine.run import AsyncRun, Run
    from holdfast.engine.supervisor import Supervisor
    from holdfast.engine.task import Task, once, pause, sleep
    from holdfast.graphs.config import CheckpointConfig, GraphConfig
    from holdfast.graphs.flowstate import TaskRecord, TaskResult, WorkflowState
    from holdfast.graphs.plan import END, START
    from holdfast.graphs.policy import Retry
    from holdfast.graphs.predicates import always, and_, key_equals, key_exists, not_, or_
    from holdfast.graphs.reducers import append, merge
    from holdfast.graphs.refit import ResumePlan
    from holdfast.graphs.secrets import secret
    from holdfast.graphs.state import State
    from holdfast.journal.reading import Checkpoint
    from holdfast.journal.types import register_type
    from holdfast.journal.verification import Damage, Verification
    from holdfast.journal.waiting import Question
    from holdfast.observe.events import Event
    from holdfast.observe.registry import register_observer
    from holdfast.stategraph import StateGraph
    from holdfast.storekeeping import export_run, import_run, verify_run
    from holdfast.stores.checkpoint_store import CheckpointState, CheckpointStore, PauseMetadata
    from holdfast.stores.checkpointer import Checkpointer, MemoryCheckpointer
    from holdfast.stores.cleaner import Cleaner
    from holdfast.stores.memory import MemoryStore
    from holdfast.stores.registry import open_store, register_store
    from holdfast.stores.retention import Expired, Retention
    from holdfast.supervision import supervise
    from holdfast.workflow import Workflow

_LATER = {
    "END": "graphs.plan",
    "START": "graphs.plan",
    "AsyncRun": "engine.run",
    "BranchResult": "engine.results",
    "Checkpoint": "journal.reading",
    "CheckpointConfig": "graphs.config",
    "CheckpointState": "stores.checkpoint_store",
    "CheckpointStore": "stores.checkpoint_store",
    "Checkpointer": "stores.checkpointer",
    "Cleaner": "stores.cleaner",
    "Damage": "journal.verification",
    "Difference": "engine.records",
    "Event": "observe.events",
    "Expired": "stores.retention",
    "GraphConfig": "graphs.config",
    "MemoryCheckpointer": "stores.checkpointer",
    "MemoryStore": "stores.memory",
    "PauseInfo": "engine.checkpoints",
    "PauseMetadata": "stores.checkpoint_store",
    "Question": "journal.waiting",
    "QueuedRun": "engine.queued",
    "ResumePlan": "graphs.refit",
    "Retention": "stores.retention",
    "Retry": "graphs.policy",
    "Run": "engine.run",
    "RunInfo": "engine.records",
    "State": "graphs.state",
    "StateGraph": "stategraph",
    "Supervisor": "engine.supervisor",
    "Task": "engine.task",
    "TaskRecord": "graphs.flowstate",
    "TaskResult": "graphs.flowstate",
    "Verification": "journal.verification",
    "Workflow": "workflow",
    "WorkflowCheckpoint": "engine.checkpoints",
    "WorkflowState": "graphs.flowstate",
    "action": "declared.actions",
    "always": "graphs.predicates",
    "and_": "graphs.predicates",
    "append": "graphs.reducers",
    "key_equals": "graphs.predicates",
    "key_exists": "graphs.predicates",
    "load": "declared.loading",
    "load_from_file": "declared.loading",
    "loads": "declared.loading",
    "merge": "graphs.reducers",
    "not_": "graphs.predicates",
    "once": "engine.task",
    "open_store": "stores.registry",
    "or_": "graphs.predicates",
    "pause": "engine.task",
    "register_action": "declared.actions",
    "register_graph": "engine.catalogue",
    "register_observer": "observe.registry",
    "register_store": "stores.registry",
    "register_type": "journal.types",
    "secret": "graphs.secrets",
    "sleep": "engine.task",
    "supervise": "supervision",
    "verify_run": "storekeeping",
    "export_run": "storekeeping",
    "import_run": "storekeeping",
}
"""Where each name is found when it is first asked for, so that nobody waits for what they don't use."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"holdfast.{_LATER[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "END",
    "START",
    "ActionFailed",
    "AlreadyCompleted",
    "AnswerRefused",
    "AsyncRun",
    "BranchResult",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointError",
    "CheckpointNotFound",
    "CheckpointState",
    "CheckpointStore",
    "Checkpointer",
    "Cleaner",
    "Conflict",
    "Damage",
    "DamagedCheckpoint",
    "DamagedRecord",
    "DeadlinePassed",
    "DeclarationError",
    "DefinitionError",
    "Difference",
    "Event",
    "ExecutionError",
    "Expired",
    "ForbiddenType",
    "GraphConfig",
    "HoldfastError",
    "KeyMissing",
    "MemoryCheckpointer",
    "MemoryStore",
    "NodeTimeout",
    "PauseInfo",
    "PauseMetadata",
    "Question",
    "QueuedRun",
    "ResumePlan",
    "Retention",
    "Retry",
    "Run",
    "RunCancelled",
    "RunError",
    "RunExists",
    "RunInfo",
    "RunNotFound",
    "RunPaused",
    "RunSetAside",
    "State",
    "StateGraph",
    "StoreError",
    "StoreUnavailable",
    "Supervisor",
    "Task",
    "TaskRecord",
    "TaskResult",
    "TemplateError",
    "TooLarge",
    "UnknownName",
    "UnstorableValue",
    "UnsupportedFormat",
    "UsageError",
    "Verification",
    "Workflow",
    "WorkflowChanged",
    "WorkflowCheckpoint",
    "WorkflowState",
    "__version__",
    "action",
    "always",
    "and_",
    "append",
    "export_run",
    "import_run",
    "key_equals",
    "key_exists",
    "load",
    "load_from_file",
    "loads",
    "merge",
    "not_",
    "once",
    "open_store",
    "or_",
    "pause",
    "register_action",
    "register_graph",
    "register_observer",
    "register_store",
    "register_type",
    "secret",
    "sleep",
    "supervise",
    "verify_run",
]
