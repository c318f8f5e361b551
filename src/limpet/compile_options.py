"""How a graph is run and saved: what `compile()` takes, checked, and made into what a run needs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from limpet.defaults import LEASE, MAX_CONCURRENCY
from limpet.engine.leases.lease_client import client_for
from limpet.engine.sessions.session import CompiledGraph
from limpet.engine.sessions.step_retention import Upkeep
from limpet.errors import DefinitionError
from limpet.graphs.config import CheckpointConfig
from limpet.graphs.plan import Plan
from limpet.journal.store import Store
from limpet.observe.events import ObserverLike
from limpet.observe.hub import gather
from limpet.stores.memory import MemoryStore
from limpet.stores.opening import open_default_store, open_store
from limpet.stores.user_stores.checkpointer import Checkpointer, MemoryCheckpointer

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from limpet.stores.retention import Retention

OnSaveError = Literal["fail", "continue", "wait"]


def keys_given(encryption: Any) -> Any:
    """What `compile(encryption=…)` was given, as `Keys` if it is a key: nothing else is to hold it."""
    if encryption is None or encryption is False:
        return encryption
    from limpet.stores.composite.keys import read_keys

    return read_keys(encryption)


class CompileOptions(NamedTuple):
    """The settings that every kind of graph has. What is None is as `checkpoint` says, or as it is without."""

    store: Any = None
    checkpointer: Checkpointer | None = None
    interval: int | None = None
    preserve: bool | None = None
    lease: float = LEASE
    executor: Executor | None = None
    max_concurrency: int = MAX_CONCURRENCY
    on_save_error: OnSaveError = "fail"
    keep: int | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()
    checkpoint_dir: str | os.PathLike[str] | None = None
    encryption: Any = None
    allow_plain_text_secrets: bool = False
    retention: Retention | None = None

    def compiled(self, plan: Plan, observers: Iterable[ObserverLike]) -> CompiledGraph:
        """The plan and all that a run of it needs. Raises `DefinitionError` for settings that can't be."""
        mistakes = list(self._mistakes())
        if mistakes:
            raise DefinitionError(mistakes, plan.name, "graph" if plan.layers is None else "workflow")
        opened, every = self._store()
        if opened is None and plan.interrupts:
            raise DefinitionError(
                "interrupts need somewhere to save the run: compile(store=…), compile(checkpoint_dir=…) "
                "or compile(checkpointer=…)",
                plan.name,
            )
        for what, given in (
            ("an interval", self.interval),
            ("retention", self.retention),
            ("encryption", self.encryption),
        ):
            if opened is None and given:
                raise DefinitionError(f"{what} needs a store: compile(store=…)", plan.name)
        plain_text_place = None if self.allow_plain_text_secrets else self._plain_text_place(opened)
        if plain_text_place and plan.holds_secrets:
            raise DefinitionError(_plain_text_secrets_message(plan, plain_text_place), plan.name)
        return CompiledGraph(
            plan=plan,
            client=None if opened is None else client_for(opened, self.lease),
            interval=every if self.interval is None else CheckpointConfig(interval=self.interval).interval,
            preserve=self.checkpoint.preserve if self.preserve is None else self.preserve,
            emit=gather(observers, time),
            checkpointer=self._checkpointer(),
            own=self.store is not None or (self.checkpointer is None and self.checkpoint_dir is None),
            executor=self.executor,
            max_concurrency=self.max_concurrency,
            tolerant=self.on_save_error == "continue",
            patient=self.on_save_error == "wait",
            keep=self.keep,
            upkeep=None if self.retention is None else Upkeep(self.retention, plan.name),
            secretive=plan.holds_secrets,
            stores_plain_text=bool(plain_text_place),
        )

    def _checkpointer(self) -> Checkpointer | None:
        if self.checkpoint_dir is None:
            return self.checkpointer
        from limpet.stores.user_stores.checkpoint_files import CheckpointFiles

        return CheckpointFiles(self.checkpoint_dir)

    def _store(self) -> tuple[Store | None, int]:
        """The store, if there is one, and after how many steps it is saved to."""
        every = self.checkpoint.interval
        if self.store is not None:
            return open_store(self.store, self.encryption), every or 1
        if self.checkpointer is not None or self.checkpoint_dir is not None:
            return MemoryStore(), 0
        if every:
            return open_store(self.checkpoint.store, self.encryption), every
        opened = open_default_store(self.encryption)
        return opened, int(opened is not None)

    def _plain_text_place(self, opened: Store | None) -> str:
        """Where runs would be kept for all to read, in words; empty if nowhere."""
        if self.checkpoint_dir is not None:
            return f"checkpoint files in {os.fspath(self.checkpoint_dir)!r}"
        if self.checkpointer is not None:
            return "" if isinstance(self.checkpointer, MemoryCheckpointer) else f"{self.checkpointer!r}"
        if opened is None or isinstance(opened, MemoryStore) or getattr(opened, "encrypted", False):
            return ""
        return f"{opened!r}"

    def _mistakes(self) -> Iterable[str]:
        if self.store is not None and self.checkpointer is not None:
            yield "give a store or a checkpointer, not both"
        if self.checkpointer is not None and self.checkpoint_dir is not None:
            yield "give a checkpointer or a checkpoint_dir, not both"
        if self.checkpoint_dir is not None and not (
            self.checkpoint_dir and isinstance(self.checkpoint_dir, str | os.PathLike)
        ):
            yield f"checkpoint_dir is the path of a directory, not {self.checkpoint_dir!r}"
        if self.checkpointer is not None and not isinstance(self.checkpointer, Checkpointer):
            yield f"a checkpointer has save() and load(); {self.checkpointer!r} doesn't"
        if not self.lease > 0:
            yield f"lease is a number of seconds above 0, not {self.lease!r}"
        if self.executor is not None and not callable(getattr(self.executor, "submit", None)):
            yield f"an executor has submit(); {self.executor!r} doesn't"
        if type(self.max_concurrency) is not int or self.max_concurrency < 1:
            yield f"max_concurrency is a whole number from 1, not {self.max_concurrency!r}"
        if self.checkpoint_dir is not None and self.store is None and self.interval:
            yield "a checkpoint_dir keeps a run when it stops; an interval needs a store"
        if self.checkpointer is not None and self.interval:
            yield "a checkpointer keeps a run when it stops; an interval needs a store"
        if self.on_save_error not in ("fail", "continue", "wait"):
            yield f"on_save_error is 'fail', 'continue' or 'wait', not {self.on_save_error!r}"
        if self.keep is not None and (type(self.keep) is not int or self.keep < 1):
            yield f"keep is a whole number from 1, or None for all, not {self.keep!r}"
        if self.retention is not None and not hasattr(self.retention, "statuses"):
            yield f"retention is a Retention, such as Retention(completed='7d'), not {self.retention!r}"
        elsewhere = self.checkpointer is not None or self.checkpoint_dir is not None
        if self.encryption not in (None, False) and elsewhere:
            yield "encryption is for a store; what a checkpointer or checkpoint_dir keeps isn't encrypted"
        if self.retention is not None and elsewhere and self.store is None:
            yield "retention is for a store; clean_checkpoints() is for the files of a checkpoint_dir"


def _plain_text_secrets_message(plan: Plan, where: str) -> str:
    named = ", ".join(map(repr, sorted(plan.secrets))) or "the results of tasks"
    return (
        f"it has secrets ({named}), and {where} would store them in plain text: encrypt them with "
        "compile(store=…, encryption=key) or LIMPET_ENCRYPTION_KEY, or allow it with "
        "compile(allow_plain_text_secrets=True)"
    )
