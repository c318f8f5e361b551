"""The calls that look at the runs of a graph, carry them, draw it, and let old runs go. Nothing is run here."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from limpet.async_twins import twin
from limpet.engine.operations import records
from limpet.engine.operations.records import Difference, RunInfo
from limpet.engine.sessions.session import CompiledGraph
from limpet.errors import UsageError
from limpet.graphs.state import State
from limpet.journal.reader import Checkpoint
from limpet.journal.store import ENDED, STATUSES

if TYPE_CHECKING:
    from limpet.drawing.draw import Format
    from limpet.journal.verify import Verification
    from limpet.stores.retention import Expired, Retention

Config = Mapping[str, Any] | None
S = TypeVar("S", bound=State)


class GraphInspection(ABC, Generic[S]):
    """A graph whose runs can be looked at. What it gives: a `name`, and `compiled()`."""

    name: str

    @abstractmethod
    def compiled(self) -> CompiledGraph:
        """The plan and its settings. Raises `DefinitionError`."""

    def history(self, run_id: str) -> list[Checkpoint]:
        """The steps of a run, oldest first, as far as its journal goes back."""
        return records.checkpoints(self.compiled().need_client("history"), run_id)

    ahistory = twin(history)

    def state_at(self, run_id: str, step: int | None = None) -> S:
        """The state of a run after a step, or its newest saved one."""
        return cast(S, records.state_at(self.compiled(), run_id, step))

    astate_at = twin(state_at)

    def diff(self, run_id: str, a: int, b: int) -> Difference:
        """What is different after step `b` from what was after step `a`."""
        compiled = self.compiled()
        return records.difference(compiled.need_client("diff"), run_id, a, b, compiled.plan.secrets)

    adiff = twin(diff)

    def verify(self, run_id: str) -> Verification:
        """What of a stored run is damaged, and what can still be had. Changes nothing; damage doesn't raise."""
        return records.verify(self.compiled().need_client("verify"), run_id)

    averify = twin(verify)

    def export_run(self, run_id: str, path: str | os.PathLike[str]) -> None:
        """Write a run with its whole journal to one file, in place of what was there; `import_run` reads it.

        The run stays as it is. What is in the file isn't encrypted. Raises `RunNotFound`, `Conflict` while somebody
        advances the run, `DamagedRecord`, and `StoreUnavailable` if the file can't be written.
        """
        from limpet.engine.operations import carriage

        carriage.export_run(self.compiled().need_client("export_run"), run_id, path)

    aexport_run = twin(export_run)

    def import_run(self, path: str | os.PathLike[str], run_id: str | None = None) -> str:
        """Put an exported run into this graph's store, under its own id or another, and return the id.

        All of it is stored, or nothing: `RunExists` if the id is taken, `StoreError` for a file that is damaged.
        """
        from limpet.engine.operations import carriage

        return carriage.import_run(self.compiled().need_client("import_run"), path, run_id)

    aimport_run = twin(import_run)

    def runs(
        self,
        status: str | None = None,
        *,
        graph: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        """The runs in the store, newest first, of this graph or the one named (`"*"` for all)."""
        compiled = self.compiled()
        wanted = None if graph == "*" else graph or compiled.plan.name
        return records.list_runs(compiled.need_client("runs"), status, wanted, tag, limit)

    aruns = twin(runs)

    def draw(
        self,
        format: Format | None = None,
        run_id: str | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        width: int | None = None,
        color: bool = False,
        ascii: bool = False,
    ) -> str:
        """A picture of the graph as `"svg"`, `"mermaid"` or `"text"`, made here; nothing is fetched from anywhere.

        With `run_id`, it is coloured by how far that stored run has come: with counts, prompts of open questions and
        types of errors, never a value of the state. It is written to `path` as well, if there is one, whose suffix
        (.svg, .mmd, .txt) is the format that isn't named. A text has at most `width` columns, 100 if you don't say;
        `color` and `ascii` are for terminals that have the one, or nothing else. Raises `DefinitionError`,
        `RunNotFound`, and `UsageError`.
        """
        from limpet.drawing import draw as drawing

        compiled, kind, standing = self.compiled(), drawing.chosen_format(format, path), None
        if run_id is not None:
            from limpet.drawing.run_marks import standing_of

            tail = compiled.need_client("draw").store.read(run_id, first=1)
            if tail.head.graph != compiled.plan.name:
                other, mine = tail.head.graph, compiled.plan.name
                raise UsageError(f"run {run_id!r} belongs to graph {other!r}, not to {mine!r}")
            standing = standing_of(compiled.plan, tail)
        outline = drawing.outline_for(compiled.plan, standing)
        made = drawing.picture(outline, standing, kind, width=width, color=color, ascii=ascii)
        if path is not None:
            drawing.put_down(made, path)
        return made

    def _repr_svg_(self) -> str | None:
        """What a notebook shows: the graph as far as it goes, and what is wrong with it. Never raises."""
        try:
            from limpet.drawing.draw import graph_as_svg

            return graph_as_svg(self)
        except Exception:
            return None  # a notebook then shows the repr

    def cleanup_expired(self, max_age_hours: float = 24.0, statuses: Iterable[str] = ENDED) -> int:
        """Delete the runs in the store that ended so long ago, of whichever graph; returns how many there were.

        Runs that are paused or running stay, unless you name these `statuses` as well; nobody may hold them.
        """
        wanted = (statuses,) if isinstance(statuses, str) else tuple(statuses)
        unknown = [status for status in wanted if status not in STATUSES]
        if unknown or not max_age_hours >= 0:
            raise UsageError(f"cleanup_expired() takes hours from 0 and statuses of {', '.join(STATUSES)}")
        return self.compiled().need_client("cleanup_expired").store.expire(max_age_hours * 3600, wanted)

    acleanup_expired = twin(cleanup_expired)

    def cleanup(self, retention: Retention | None = None, *, dry_run: bool = False) -> list[Expired]:
        """Delete the runs of this graph that a policy lets go: that of `compile(retention=…)`, or another.

        Returns what went and why; with `dry_run`, what would go. Raises `UsageError` where there is no policy.
        """
        from limpet.stores.retention import Retention, expired, let_go

        compiled = self.compiled()
        policy = retention or (compiled.upkeep.policy if compiled.upkeep is not None else None)
        if not isinstance(policy, Retention):
            raise UsageError(
                "cleanup() needs a policy: cleanup(Retention(completed='7d')), or compile(retention=…)"
            )
        store = compiled.need_client("cleanup").store
        found = expired(store, policy, compiled.plan.name)
        return found if dry_run else let_go(store, found)

    acleanup = twin(cleanup)
