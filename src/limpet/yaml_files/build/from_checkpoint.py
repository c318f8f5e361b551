"""Graphs whose runs resume from a checkpoint that the file, or the caller of `load`, names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from limpet.engine.node_context.questions import NOT_GIVEN
from limpet.errors import UsageError

if TYPE_CHECKING:
    from limpet.graph_methods import GraphMethods, Invocation
    from limpet.run import OpenSession

    _Base = GraphMethods[Any]
else:
    _Base = object


class ResumesFromCheckpoint(_Base):
    """A graph that may have a `default_checkpoint`. A run that is started without a checkpoint then resumes from it.

    This holds for `invoke`, `stream` and `execute`, and for their async forms. Their input is merged into the saved
    state.
    """

    default_checkpoint: str | os.PathLike[str] | None = None
    """The path of a checkpoint file, or the id of a checkpoint; None if runs start at the beginning."""

    declared_store: Any = None
    """What the file says of the store, in a graph that was only checked: its store isn't opened."""

    declared_schedules: Sequence[Mapping[str, Any]] = ()
    """The schedules of the file, each as `Schedules.add` takes it. A worker puts them into the store."""

    def _prepare(self, invocation: Invocation, stream: bool) -> tuple[str, OpenSession]:
        if invocation.checkpoint is None and self.default_checkpoint is not None:
            if invocation.run_id is not None:
                raise UsageError(
                    f"runs of this graph resume from the checkpoint {str(self.default_checkpoint)!r}, which belongs "
                    "to its run: leave out run_id, or load the graph without the checkpoint"
                )
            given = None if invocation.input is NOT_GIVEN else invocation.input
            invocation = invocation._replace(input=given, checkpoint=self.default_checkpoint)
        return super()._prepare(invocation, stream)
