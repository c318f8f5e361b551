"""Encryption at rest: a store around another one, which sees records, notes, posts, output and documents encrypted.

`ciphertexts.py` has the format. What it doesn't hide: ids of runs, names of graphs and nodes, types of errors, tags,
parents, statuses, holders, times, priorities, keys of posts, names and due times of documents, and how large and how
many the records are. What it can't detect: that a whole run, or a run's newest records, or a note, a post or a
document, were replaced by an older version of themselves, and that items of one run's output were reordered. An empty
note stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from limpet.errors import (
    DamagedDocument,
    DamagedRecord,
    KeyMissing,
    LimpetError,
    StoreUnavailable,
    UsageError,
)
from limpet.journal.encoding.envelope import ENCRYPTED
from limpet.journal.inbox import CANCEL
from limpet.journal.optional_calls import provides
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    Abilities,
    Commit,
    Document,
    Heads,
    Lane,
    Lease,
    NewRun,
    Output,
    Post,
    RunHead,
    Store,
    Tail,
)
from limpet.stores import heads
from limpet.stores.composite.ciphertexts import Keys as Keys
from limpet.stores.composite.ciphertexts import Place, post_place
from limpet.stores.composite.wrapper import StoreWrapper
from limpet.stores.problem_log import ProblemLog

Stored = TypeVar("Stored")


class EncryptedStore(StoreWrapper):
    """The runs of another store, encrypted: the module's text says what is hidden and what isn't.

    Everything else is the inner store's. Closing closes that too.
    """

    def __init__(self, store: Store, keys: Keys) -> None:
        if not provides(store, Store):
            raise UsageError("EncryptedStore(store, keys) takes a store; open_store(url) gives you one")
        if not isinstance(keys, Keys):
            raise UsageError("EncryptedStore(store, keys) takes Keys: Keys({'2026': key})")
        self.inner = store
        self.keys = keys
        self._problems = ProblemLog("limpet.stores")

    def __repr__(self) -> str:
        return f"EncryptedStore({self.inner!r}, {self.keys!r})"

    def __str__(self) -> str:
        return f"{self.inner} (encrypted)"

    @property
    def _durable_store(self) -> Store:
        return self.inner

    @property
    def abilities(self) -> Abilities:
        """What the inner store can do, and that secrets are safe here."""
        return self.inner.abilities._replace(keeps_secrets=True)

    def create(self, run: NewRun) -> Lease | None:
        records = self._records(run.run_id, 0, run.records)
        return self.inner.create(run._replace(records=records, note=self._note(run.run_id, run.note)))

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(commits)
        encrypted: list[tuple[int, Commit]] = []
        for number, commit in enumerate(commits):
            try:
                encrypted.append((number, self._commit(commit)))
            except StoreUnavailable as too_large:  # refuses its own commit only
                outcomes[number] = too_large
        results = self.inner.append([commit for _, commit in encrypted])
        for (number, _), outcome in zip(encrypted, results, strict=True):
            outcomes[number] = outcome
        return outcomes

    def head(self, run_id: str) -> RunHead:
        return self._head(self.inner.head(run_id))

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        found = self.inner.heads(run_ids)
        readable = {head.run_id: head for head in self._readable(head for head in found if head is not None)}
        return [readable.get(run_id) for run_id in run_ids]

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        tail = self.inner.read(run_id, first, last)
        records = [
            self.keys.decrypted(Place("record", run_id, number), data)
            for number, data in enumerate(tail.records, tail.first)
        ]
        return Tail(self._head(tail.head), tail.first, records)

    def salvage(self, run_id: str) -> Mapping[int, bytes | DamagedRecord]:
        """The records that the inner store has left, decrypted. Raises `KeyMissing`."""
        found: dict[int, bytes | DamagedRecord] = {}
        for number, data in super().salvage(run_id).items():
            try:
                if isinstance(data, bytes):
                    data = self.keys.decrypted(Place("record", run_id, number), data)
                found[number] = data
            except DamagedRecord as damage:
                found[number] = damage
        return found

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        return self.inner.post(run_id, key, self.keys.encrypted(post_place(run_id, key), body))

    def inbox(self, run_id: str) -> Sequence[Post]:
        return [self._post(run_id, post) for post in self.inner.inbox(run_id)]

    def add_output(self, run_id: str, fence: int, bodies: Sequence[bytes], keep: int) -> int:
        place = Place("output", run_id)
        return self.inner.add_output(
            run_id, fence, [self.keys.encrypted(place, body) for body in bodies], keep
        )

    def output(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Output]:
        """As in every store. An item that is damaged is left out, with a warning in the log. Raises `KeyMissing`."""
        place = Place("output", run_id)
        items: list[Output] = []
        for number, data in self.inner.output(run_id, after, limit):
            try:
                items.append(Output(number, self.keys.decrypted(place, data)))
            except DamagedRecord as problem:
                self._log_once(problem)
        return items

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        return self.inner.put_document(name, self.keys.encrypted(Place("document", name), body), version, due)

    def get_document(self, name: str) -> Document | None:
        found = self.inner.get_document(name)
        return None if found is None else self._document(found)

    def list_documents(
        self, prefix: str = "", due: bool = False, limit: int | None = None
    ) -> Sequence[Document]:
        """As in every store. One that is damaged, or whose key is missing, is left out, with a warning in the log."""

        def readable(wanted: int | None) -> tuple[int, list[Document]]:
            found = self.inner.list_documents(prefix, due, wanted)
            return len(found), self._readable_documents(found)

        return _enough(readable, limit)

    def damaged_documents(self, prefix: str = "") -> Sequence[DamagedDocument]:
        """Those that the inner store can't read, and those that were changed; not those whose keys are missing."""
        found = [*super().damaged_documents(prefix)]
        for document in self.inner.list_documents(prefix):
            try:
                self._document(document)
            except DamagedDocument as damage:
                found.append(damage)
            except KeyMissing:
                continue
        return sorted(found, key=lambda damage: damage.name)

    def list(self, which: RunFilter) -> list[RunHead]:
        """As in every store. A run whose key is missing is left out, with a warning in the log.

        Raises `KeyMissing` if that leaves none.
        """
        found: Heads = []
        missing: KeyMissing | None = None
        for head, problem in self.list_all(which):
            if problem is not None:
                self._log_once(problem)
            if isinstance(problem, KeyMissing):
                missing = problem
            else:
                found.append(head)
        if missing and not found:
            raise missing
        return found

    def list_all(self, which: RunFilter) -> ReadHeads:
        """What `list` gives, and in their places the runs that it leaves out, each with the reason and no note."""
        problems: dict[str, LimpetError] = {}
        found: Heads = []
        for head in self.inner.list(heads.before_reading(which)):
            try:
                found.append(self._head(head))
            except DamagedRecord as problem:
                problems[head.run_id] = problem
                found.append(heads.damaged(head))
            except KeyMissing as problem:
                problems[head.run_id] = problem
                found.append(head._replace(note=b""))
        return [(head, problems.get(head.run_id)) for head in heads.after_reading(found, which)]

    def ready(self, lanes: Sequence[Lane], limit: int) -> Heads:
        """As in every store. A run with a damaged note or a missing key is left out, with a warning in the log."""

        def readable(wanted: int | None) -> tuple[int, Heads]:
            found = self.inner.ready(lanes, limit if wanted is None else wanted)
            return len(found), self._readable(found)

        return _enough(readable, limit)

    def close(self) -> None:
        self.inner.close()

    def _commit(self, commit: Commit) -> Commit:
        note = commit.note
        if note is not None:
            note = self._note(commit.run_id, note)
        return Commit(
            commit.run_id,
            commit.fence,
            commit.expected,
            self._records(commit.run_id, commit.expected, commit.records),
            commit.snapshot,
            commit.status,
            note,
            commit.purge,
            commit.due,
            commit.takes,
            commit.ignores_posts,
            commit.labels,
        )

    def _records(self, run_id: str, after: int, records: Sequence[bytes]) -> Records:
        return [
            self.keys.encrypted(Place("record", run_id, number), data)
            for number, data in enumerate(records, after + 1)
        ]

    def _note(self, run_id: str, note: bytes) -> bytes:
        if not note:
            return note
        return self.keys.encrypted(Place("note", run_id), note)

    def _head(self, head: RunHead) -> RunHead:
        if not head.note:
            return head
        return head._replace(note=self.keys.decrypted(Place("note", head.run_id), head.note))

    def _readable(self, found: Iterable[RunHead]) -> Heads:
        """The heads that can be read. The others are logged."""
        readable: Heads = []
        for head in found:
            try:
                readable.append(self._head(head))
            except (DamagedRecord, KeyMissing) as problem:
                self._log_once(problem)
        return readable

    def _post(self, run_id: str, post: Post) -> Post:
        # A request to cancel that a store of an older version had was made a post when the store was migrated.
        if post.key == CANCEL and post.body[:1] != bytes([ENCRYPTED]):
            return post
        return post._replace(body=self.keys.decrypted(post_place(run_id, post.key), post.body))

    def _document(self, document: Document) -> Document:
        """A document of the inner store. Raises `DamagedDocument`, with the version that the inner store knows."""
        try:
            body = self.keys.decrypted(Place("document", document.name), document.body)
        except DamagedDocument as damage:
            raise DamagedDocument(document.name, document.version, damage.reason) from damage
        return document._replace(body=body)

    def _readable_documents(self, found: Iterable[Document]) -> Documents:
        readable: Documents = []
        for document in found:
            try:
                readable.append(self._document(document))
            except (DamagedDocument, KeyMissing) as problem:
                self._log_once(problem)
        return readable

    def _log_once(self, problem: LimpetError) -> None:
        """Log why a run or document can't be read, unless that was logged: a worker lists them all the time."""
        self._problems.warn(f"what is listed can't be read: {problem}")


ReadHeads = list[tuple[RunHead, LimpetError | None]]
Records = list[bytes]
Documents = list[Document]


def _enough(readable: Callable[[int | None], tuple[int, list[Stored]]], limit: int | None) -> list[Stored]:
    """The first `limit` that can be read, of what a list gives: how many it found, and those that can be read."""
    requested = limit
    while True:
        count, found = readable(requested)
        if requested is None or limit is None or len(found) >= limit or count < requested:
            return found[:limit]
        # Unreadable ones at the front must not hide the readable ones behind them.
        requested *= 2
