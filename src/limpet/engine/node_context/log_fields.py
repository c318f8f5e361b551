"""Log records that say in which run, node and step they were written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.engine.node_context.call_scope import CURRENT

if TYPE_CHECKING:
    from logging import LogRecord


class RunLogFields:
    """A log filter that adds `run`, `graph`, `node` and `step` to each record: `handler.addFilter(RunLogFields())`.

    A record that is written while a node runs, by whatever code, has the id of the run, the names of the graph and
    the node, with the branch that it is in, and the number of the step. Other records have empty texts, so that a
    format may name the fields. A field that a record has already, as it was logged with `extra`, stays. No record is
    dropped.

    A handler gets the records of all loggers, and a filter of a logger sees only those of that very logger. So add it
    to a handler. With a `QueueHandler`, that is the one: the other thread knows of no run.
    """

    def filter(self, record: LogRecord) -> bool:
        """Add the fields; always True."""
        for name, value in _fields().items():
            if name not in record.__dict__:
                setattr(record, name, value)
        return True


def _fields() -> dict[str, Any]:
    ctx = CURRENT.get()
    if ctx is None:
        return {"run": "", "graph": "", "node": "", "step": ""}
    scope = ctx.scope
    return {
        "run": scope.root.run_id,
        "graph": scope.plan.name,
        "node": scope.place(ctx.node),
        "step": scope.root.step + 1,
    }
