"""Durable graphs: plain functions wired into graphs whose every finished step is saved."""

from typing import TYPE_CHECKING, Any

from limpet.errors import (
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
    KeyMissing,
    LimpetError,
    NodeTimeout,
    RunCancelled,
    RunError,
    RunExists,
    RunNotFound,
    RunPaused,
    RunQuarantined,
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
from limpet.version import VERSION as __version__

if TYPE_CHECKING:
    from limpet.engine.node_context.branch_result import BranchResult
    from limpet.engine.node_context.node_context import NodeContext, once, pause, sleep
    from limpet.engine.operations.records import Difference, RunInfo
    from limpet.engine.operations.workflow_checkpoints import PauseInfo, WorkflowCheckpoint
    from limpet.engine.supervisor.catalog import register_graph
    from limpet.engine.supervisor.supervisor import Supervisor
    from limpet.graphs.config import CheckpointConfig, GraphConfig
    from limpet.graphs.plan import END, START
    from limpet.graphs.predicates import always, and_, key_equals, key_exists, not_, or_
    from limpet.graphs.reducers import append, merge
    from limpet.graphs.retry import Retry
    from limpet.graphs.secrets import secret
    from limpet.graphs.state import State
    from limpet.graphs.workflow.redefinition import ResumePlan
    from limpet.graphs.workflow.state import TaskRecord, TaskResult, WorkflowState
    from limpet.journal.encoding.user_types import register_type
    from limpet.journal.reader import Checkpoint
    from limpet.journal.verify import Damage, Verification
    from limpet.journal.waits import Question
    from limpet.observe.events import Event
    from limpet.observe.registry import register_observer
    from limpet.queued_run import QueuedRun
    from limpet.run import AsyncRun, Run
    from limpet.runs import export_run, import_run, verify_run
    from limpet.state_graph import StateGraph
    from limpet.stores.cleaner import Cleaner
    from limpet.stores.memory import MemoryStore
    from limpet.stores.opening import open_store, register_store
    from limpet.stores.retention import Expired, Retention
    from limpet.stores.user_stores.checkpoint_store import CheckpointState, CheckpointStore, PauseMetadata
    from limpet.stores.user_stores.checkpointer import Checkpointer, MemoryCheckpointer
    from limpet.supervise import supervise
    from limpet.workflow import Workflow
    from limpet.yaml_files.actions.registry import action, register_action
    from limpet.yaml_files.loading import load, load_from_file, loads

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
    "NodeContext": "engine.task",
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
        raise AttributeError(f"module 'limpet' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"limpet.{_LATER[name]}"), name)
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
    "KeyMissing",
    "LimpetError",
    "MemoryCheckpointer",
    "MemoryStore",
    "NodeContext",
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
    "RunQuarantined",
    "State",
    "StateGraph",
    "StoreError",
    "StoreUnavailable",
    "Supervisor",
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
