"""Where a task is: what those of a run, or of one branch of it, share, and the right to write in its journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from limpet.engine.node_context.branch_result import BranchResult
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import SecretMasker
from limpet.graphs.state import unshared
from limpet.journal.encoding.copies import detached_value
from limpet.journal.open_section import Key
from limpet.journal.progress import Progress

if TYPE_CHECKING:
    from limpet.engine.node_context.node_context import NodeContext


T = TypeVar("T")
Keep = Callable[["Scope", str, Any], None]
"""Store the result of a `once()` durably: `keep(scope, key, value)`."""


class JournalLock:
    """The right to write in a run's journal, and to end a call. Whoever is in it is alone.

    While calls run beside each other, the loop has it all the time, except when it waits: `held_by_loop`.
    """

    __slots__ = ("_lock", "held_by_loop")

    def __init__(self, lock: Any = None) -> None:
        self._lock = lock
        self.held_by_loop = False

    def acquire(self) -> None:
        """Have it for the loop."""
        self._lock.acquire()
        self.held_by_loop = True

    def try_acquire(self) -> bool:
        """Have it for the loop, if nobody else has it."""
        self.held_by_loop = bool(self._lock.acquire(False))
        return self.held_by_loop

    def release(self) -> None:
        """The loop lets others have it."""
        self.held_by_loop = False
        self._lock.release()

    def call_unlocked(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function of the user's from the loop: it may wait for a node that waits for this."""
        if not self.held_by_loop:
            return call(*args)
        self.release()
        try:
            return call(*args)
        finally:
            self.acquire()

    def __enter__(self) -> None:
        if self._lock is not None:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()


class Scope:
    """What the tasks of a run, or of one branch of it, share: the plan, how far it has come, where results are kept.

    `path` leads from the `root` of the run to this branch, `branch` names it and `prefix` makes the numbers of its
    steps different from those of all others. `task` is the call that is under way. `outer` is the progress that a
    branch was opened by, and `kept` what the planner of a workflow wants to remember. `in_layer` says that this is a
    task of a workflow: a branch of one node, which has its name. `timer` is the store's clock, and `masker`
    knows what is secret.
    """

    __slots__ = (
        "branch",
        "in_layer",
        "journal_lock",
        "keep",
        "kept",
        "masker",
        "outer",
        "path",
        "plan",
        "prefix",
        "progress",
        "root",
        "task",
        "timer",
    )

    def __init__(
        self,
        plan: Plan,
        progress: Progress,
        keep: Keep | None,
        journal_lock: JournalLock,
        root: Progress,
        path: tuple[Key, ...] = (),
        branch: str = "",
        prefix: str = "",
        outer: Progress | None = None,
        timer: Callable[[], float] = float,
        masker: SecretMasker | None = None,
    ) -> None:
        self.timer, self.masker = timer, masker or SecretMasker()
        self.plan, self.progress, self.keep, self.journal_lock = plan, progress, keep, journal_lock
        self.root, self.path, self.branch, self.prefix = root, path, branch, prefix
        self.outer = outer
        section = outer.section if outer is not None else None
        self.in_layer = section is not None and section.layer is not None
        self.task: NodeContext | None = None
        self.kept: Any = None

    @property
    def around(self) -> str:
        """The branch that this is told to be in: of a task, that of its workflow."""
        return self.branch.rpartition("/")[0] if self.in_layer else self.branch

    def place(self, node: str) -> str:
        """A node of it, by the whole way there."""
        if self.in_layer:
            return self.branch
        return f"{self.branch}/{node}" if self.branch else node

    def results(self) -> list[BranchResult]:
        """What the branches came to that were opened here, in the order they were declared in."""
        section = self.progress.section
        if section is None or section.inside:
            return []
        opener = self.plan.nodes[section.source].section
        sub = opener.sub if opener is not None else None
        base = unshared(self.progress.state)  # it may grow in place when the fan-in is done
        found = []
        for index, (key, child) in enumerate(section.children.items()):
            data = child.result(base) if sub is None or child.error else sub.result(child.state)
            made = BranchResult(
                data, branch=section.label(key), index=index, error=detached_value(child.error), started=child.began,
                ended=child.at, run_id=child.run_id, checkpoint_node=child.made_by,
                changed=child.changed if child.base is not None else None, secrets=self.masker.names,
            )  # fmt: skip
            found.append(made)
        return found

    def joined(self) -> list[dict[str, Any]] | None:
        """The same as plain dicts that share nothing, once all branches are done; None where there are none."""
        section = self.progress.section
        if section is None or section.inside or section.layer is not None:
            return None
        if not all(child.done for child in section.children.values()):
            return None
        return [detached_value(dict(result)) for result in self.results()]
