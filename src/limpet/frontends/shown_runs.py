"""Runs as programs and people outside of this process may see them: as JSON, and without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from limpet.engine.leases.lease_client import client_for
from limpet.engine.operations.run_info import RunInfo, info_at_last_stop
from limpet.engine.operations.stored_state import secrets_of, state_in, stored_secrets, viewed_progress
from limpet.errors import DamagedRecord, UsageError
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.frontends.run_facts import run_facts
from limpet.frontends.values import LARGE, shown_values, size_of
from limpet.journal.store import Store

LONGEST_IN_LIST: Final = 2000
"""Characters of the reason, the error or a question of a run in a list, at most. The run itself has all of them."""

QUESTIONS_IN_LIST: Final = 20
"""Open questions of a run in a list, at most."""

QUESTIONS_FOLLOWED: Final = 100
"""The same for a run that is followed: with each change, it is sent again."""

TAGS_IN_LIST: Final = 50
LONGEST_TAG: Final = 200
"""Tags of a run in a list, and characters of each, at most."""


class ShownRuns(NamedTuple):
    """The runs in a store as they may be shown, with the graphs whose code is known here, by name."""

    store: Store
    graphs: Mapping[str, GraphOnStore]

    def state(self, run_id: str, step: int | None = None, branch: str | None = None) -> StoredState:
        """The state of a run after a step, or its newest saved state; that of a branch, if one is named."""
        progress = viewed_progress(client_for(self.store), run_id, step)
        secrets = secrets_of(progress) | self.known_secrets(progress.graph)
        return StoredState(dict(state_in(progress, branch)), secrets)

    def now(self) -> float:
        """The time by the store's clock, as far as that is known without asking."""
        return client_for(self.store).now()

    def secrets(self, run_id: str) -> frozenset[str]:
        """The secret keys of a run, as far as they can be known. Raises `RunNotFound`."""
        client = client_for(self.store)
        known = self.known_secrets(info_at_last_stop(client, run_id).graph)
        try:
            return known | stored_secrets(client, run_id)
        except DamagedRecord:
            return known | self._secrets_of_damaged(run_id)
        except UsageError:  # the journal was deleted when the run completed
            return known

    def _secrets_of_damaged(self, run_id: str) -> frozenset[str]:
        """The same of a run whose newest snapshot is damaged: an earlier one may have them."""
        try:
            return self.state(run_id).secrets
        except (DamagedRecord, UsageError):
            return frozenset()

    def known_secrets(self, graph: str) -> frozenset[str]:
        """The keys that are secret by the code of a graph. Its runs know those that were when they were created."""
        known = self.graphs.get(graph)
        if known is None:
            return frozenset()
        return known.secrets


class StoredState(NamedTuple):
    """The values of a state as they are stored, and which of its keys are secret."""

    values: Mapping[str, Any]
    secrets: frozenset[str]


def shown_run(info: RunInfo, now: float, most_questions: int | None = None) -> dict[str, Any]:
    """What a store knows of a run, as JSON; its status is that at a time by the store's clock.

    It has all open questions, or the first ones, and says how many there are.
    """
    facts = {**run_facts(info, now), "question_count": len(info.questions)}
    facts["questions"] = facts["questions"][:most_questions]
    return shown_values(facts, ())


def listed_run(info: RunInfo, now: float) -> dict[str, Any]:
    """The same for a list, in which long texts are cut and large questions have no form."""
    facts = shown_run(info, now, QUESTIONS_IN_LIST)
    for name in ("reason", "problem"):
        facts[name] = _cut(facts[name])
    if facts["error"]:
        facts["error"] = {name: _cut(value) for name, value in facts["error"].items()}
    facts["tags"] = [_cut(tag, LONGEST_TAG) for tag in facts["tags"][:TAGS_IN_LIST]]
    for question in facts["questions"]:
        question["prompt"] = _cut(question["prompt"])
        for name in ("choices", "schema"):
            if size_of(question[name]) > LARGE:
                question[name] = None
    return facts


def _cut(text: Any, most: int = LONGEST_IN_LIST) -> Any:
    if isinstance(text, str) and len(text) > most:
        return f"{text[:most]}…"
    return text
