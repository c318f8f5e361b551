"""Graphs whose runs go on from a checkpoint that was named beforehand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from limpet.errors import UsageError

if TYPE_CHECKING:
    from limpet.graph_methods import GraphMethods
    from limpet.engine.sessions.session import Session

    _Runs = GraphMethods[Any]
else:
    _Runs = object


class FromCheckpoint(_Runs):
    """A graph that may have a `checkpoint`: then a run that is started without naming one goes on from there.

    `invoke`, `stream` and `execute` do so, and their async forms; what they are given is merged into the saved state.
    """

    checkpoint_named: str | os.PathLike[str] | None = None
    """The path of a checkpoint file, or the id of a checkpoint; None if runs start anew."""

    def _prepare(
        self,
        input: Any,
        config: Mapping[str, Any] | None,
        checkpoint: str | os.PathLike[str] | None,
        run_id: str | None,
        tags: Iterable[str],
        stream: bool,
    ) -> tuple[str, Callable[[], Session]]:
        if checkpoint is None and self.checkpoint_named is not None:
            if run_id is not None:
                raise UsageError(
                    f"runs of this graph go on from the checkpoint {str(self.checkpoint_named)!r}, which belongs to "
                    "its run: leave out run_id, or load the graph without the checkpoint"
                )
            checkpoint = self.checkpoint_named
        return super()._prepare(input, config, checkpoint, run_id, tags, stream)
