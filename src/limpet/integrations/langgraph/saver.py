"""`LimpetSaver`: LangGraph's checkpoints in any of our stores."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from time import time
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from limpet.errors import UsageError
from limpet.integrations.langgraph.additions import NewCheckpoint, NewWrites, SealedPieces
from limpet.integrations.langgraph.thread_journal import ThreadJournals
from limpet.integrations.langgraph.thread_names import ThreadName
from limpet.integrations.langgraph.thread_state import (
    SavedCheckpoint,
    ThreadState,
    Writes,
    checkpoints_without,
    records_of,
)
from limpet.integrations.langgraph.values import Dump, from_pieces, load_piece
from limpet.journal.threads.records import ThreadRecord
from limpet.stores.opening import open_store
from limpet.threads.async_methods import change_in_thread

PendingWrites = list[PendingWrite]
Records = Iterator[ThreadRecord] | None

KEEP_LATEST = "keep_latest"
DELETE = "delete"


class LimpetSaver(BaseCheckpointSaver[int]):
    """Keeps LangGraph's checkpoints in a store of Limpet: `builder.compile(checkpointer=LimpetSaver(store))`.

    `store` is whatever `open_store` takes, such as "sqlite:///runs.db" or "postgresql://…". `serde` is LangGraph's
    own serializer, unless you give another: it decides which values can be stored, and which classes are restored.

    What `put` and `put_writes` were given is durable when they return, at the level of the store. Stored is what
    changed: of a list the new items, of a dict the new entries. Any number of threads and processes may use a thread
    at the same time. Each namespace of a thread is a run, which `Runs(store)`, `limpet runs` and the web page list,
    and which nothing but LangGraph executes. Every method has an async version that doesn't block the event loop.

    Raises what `open_store` raises, and `UsageError` for a store that can only keep whole checkpoints.
    """

    def __init__(self, store: Any, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        opened = open_store(store)
        if not opened.abilities.deltas:
            raise UsageError(
                f"{opened} keeps whole checkpoints only, and no threads of LangGraph"
            ).with_advice("give one of Limpet's own stores: SQLite, PostgreSQL, Redis, files or memory")
        self._threads = ThreadJournals(opened)
        self._sealed = SealedPieces()

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and return the config that names it. Raises `StoreUnavailable`."""
        name = _named(config)
        described = get_checkpoint_metadata(config, metadata)
        parent = get_checkpoint_id(config)
        self._threads.add(
            name, NewCheckpoint(checkpoint, described, parent, frozenset(new_versions), self._dump, time())
        )
        return _config_of(name, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task has written after a checkpoint. The first write of a task at an index counts."""
        name = _named(config)
        checkpoint_id = get_checkpoint_id(config)
        if not checkpoint_id:
            raise UsageError("put_writes needs a config with the checkpoint_id that the writes belong to")
        numbered = [
            (WRITES_IDX_MAP.get(channel, index), channel, value)
            for index, (channel, value) in enumerate(writes)
        ]
        if numbered:
            self._threads.add(
                name, NewWrites(checkpoint_id, numbered, (task_id, task_path), self._dump, time())
            )

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the newest of its thread and namespace; None if there is none."""
        name = _named(config)
        newest = self._threads.newest(name)
        wanted = get_checkpoint_id(config)
        if newest is None or wanted in (None, "", newest.saved.id):
            if newest is None:
                return None
            return self._tuple(name, newest.saved, newest.writes)
        saved = self._threads.whole(name).all.get(wanted)
        if saved is None:
            return None
        return self._tuple(name, saved, saved.writes)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints that match, newest first: of a thread, or of all; in one namespace, if one is given."""
        wanted = None if config is None else get_checkpoint_id(config)
        end = None if before is None else get_checkpoint_id(before)
        left = limit
        for name in self._names(config):
            found = self._threads.whole(name).all
            for saved in sorted(found.values(), key=lambda each: each.id, reverse=True):
                if left is not None and left <= 0:
                    return
                if (wanted and saved.id != wanted) or (end and saved.id >= end):
                    continue
                if filter and not self._matches(saved, filter):
                    continue
                if left is not None:
                    left -= 1
                yield self._tuple(name, saved, saved.writes)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What the ancestors of a checkpoint have written to channels, and the stored values that this began with."""
        if not channels:
            return {}
        state = self._threads.whole(_named(config))
        target = get_checkpoint_id(config) or (state.newest.id if state.newest else "")
        saved = state.all.get(target)
        histories = {channel: _History() for channel in channels}
        while saved is not None and saved.parent:
            saved = state.all.get(saved.parent)
            open_channels = [each for each, history in histories.items() if not history.has_seed]
            if saved is None or not open_channels:
                break
            writes = self._pending(saved.writes, open_channels)
            for channel in open_channels:
                histories[channel].writes[:0] = [write for write in writes if write[1] == channel]
                if channel in saved.values:
                    histories[channel].has_seed = True
                    histories[channel].seed = from_pieces(saved.values[channel], self.serde)
        return {channel: history.result() for channel, history in histories.items()}

    def delete_thread(self, thread_id: str) -> None:
        """Delete all of a thread: its checkpoints and writes, in all namespaces."""
        for name in self._of_thread(thread_id):
            self._threads.delete(name)
        self._threads.delete(ThreadName(str(thread_id), ""))  # also if its head can't be read

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints, with their writes, that these runs of LangGraph have made, in all threads.

        One that a later checkpoint needs to restore a `DeltaChannel` stays, and so does a thread without any, until
        it is deleted. All threads of the store are looked through.
        """
        wanted = frozenset(map(str, run_ids))
        if not wanted:
            return
        for name in [*self._threads.names()]:
            self._keep(name, lambda saved: str(self._metadata(saved).get("run_id")) not in wanted)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all of a thread to another one, which keeps those of its own checkpoints that have other ids."""
        for name in [*self._of_thread(source_thread_id)]:
            source = self._threads.whole(name)

            def with_source(target: ThreadState, source: ThreadState = source) -> Records:
                if not source.all and not source.early:
                    return None
                merged = {**target.all, **source.all}
                return records_of(merged.values(), {**target.early, **source.early})

            self._threads.rewrite(ThreadName(str(target_thread_id), name.namespace), with_source)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = KEEP_LATEST) -> None:
        """Delete old checkpoints of threads: all but the newest of each namespace, or with "delete" all.

        The newest one's ancestors stay as far as they are needed to restore a `DeltaChannel` of it.
        """
        if strategy not in (KEEP_LATEST, DELETE):
            raise UsageError(f"the strategy is {KEEP_LATEST!r} or {DELETE!r}, not {strategy!r}")
        for thread_id in thread_ids:
            if strategy == DELETE:
                self.delete_thread(thread_id)
                continue
            for name in [*self._of_thread(thread_id)]:
                self._threads.rewrite(name, self._only_newest)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple` without blocking the event loop."""
        return await to_thread(self.get_tuple, config)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put` without blocking the event loop."""
        return await change_in_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """`put_writes` without blocking the event loop."""
        await change_in_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread` without blocking the event loop."""
        await change_in_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs` without blocking the event loop."""
        await change_in_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread` without blocking the event loop."""
        await change_in_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = KEEP_LATEST) -> None:
        """`prune` without blocking the event loop."""
        await change_in_thread(self.prune, thread_ids, strategy=strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history` without blocking the event loop."""
        return await to_thread(self.get_delta_channel_history, config=config, channels=channels)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list` without blocking the event loop."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await to_thread(next, found, None)) is not None:
            yield each

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        """The version after `current`: a whole number. A thread that came from another saver keeps its texts."""
        if isinstance(current, str):
            number = int(current.partition(".")[0]) + 1
            return f"{number:032}.{0:016}"
        return 1 if current is None else int(current) + 1

    def __repr__(self) -> str:
        return f"LimpetSaver({str(self._threads.store)!r})"

    @property
    def _dump(self) -> Dump:
        return self._sealed.dump_with(
            self.serde
        )  # not kept: `with_allowlist` replaces the serializer of a copy

    def _names(self, config: RunnableConfig | None) -> Iterable[ThreadName]:
        if config is None:
            return self._threads.names()
        configurable = config.get("configurable", {})
        if configurable.get("checkpoint_ns") is not None:
            return [_named(config)]
        return self._of_thread(_thread_id(config))

    def _of_thread(self, thread_id: Any) -> Iterable[ThreadName]:
        """The namespaces of a thread; the outermost last, so that a thread that is half deleted is still found."""
        found = [*self._threads.names(str(thread_id))]
        return sorted(found, key=lambda name: name.namespace, reverse=True)

    def _matches(self, saved: SavedCheckpoint, filter: Mapping[str, Any]) -> bool:
        metadata = self._metadata(saved)
        return all(metadata.get(key) == value for key, value in filter.items())

    def _metadata(self, saved: SavedCheckpoint) -> dict[str, Any]:
        return cast(dict[str, Any], load_piece(saved.metadata, self.serde))

    def _only_newest(self, state: ThreadState) -> Records:
        if state.newest is None:
            return None
        newest = state.newest.id
        return self._kept_records(state, {each for each in state.all if each != newest})

    def _keep(self, name: ThreadName, is_kept: Callable[[SavedCheckpoint], bool]) -> None:
        """Delete the checkpoints of a namespace that aren't kept."""

        def kept(state: ThreadState) -> Records:
            return self._kept_records(state, {each.id for each in state.all.values() if not is_kept(each)})

        self._threads.rewrite(name, kept)

    def _kept_records(self, state: ThreadState, unwanted: Collection[str]) -> Records:
        kept = checkpoints_without(state.all, unwanted, self._metadata)
        if len(kept) == len(state.all):
            return None
        return records_of(kept, state.early)

    def _tuple(self, name: ThreadName, saved: SavedCheckpoint, writes: Writes) -> CheckpointTuple:
        checkpoint = {
            "v": saved.v,
            "ts": saved.ts,
            "id": saved.id,
            "channel_values": {
                channel: from_pieces(value, self.serde) for channel, value in saved.values.items()
            },
            "channel_versions": dict(saved.versions),
            "versions_seen": {node: dict(seen) for node, seen in saved.seen.items()},
            "updated_channels": saved.updated,
            **load_piece(saved.extra, self.serde),
        }
        return CheckpointTuple(
            config=_config_of(name, saved.id),
            checkpoint=cast(Checkpoint, checkpoint),
            metadata=cast(CheckpointMetadata, self._metadata(saved)),
            parent_config=_config_of(name, saved.parent) if saved.parent else None,
            pending_writes=self._pending(writes),
        )

    def _pending(self, writes: Writes, channels: Collection[str] | None = None) -> PendingWrites:
        """Writes in the order in which LangGraph applies them."""
        ordered = sorted(writes.items(), key=lambda each: writes_sort_key(each[1].task_path, *each[0]))
        return [
            (task_id, write.channel, from_pieces(write.value, self.serde))
            for (task_id, _), write in ordered
            if channels is None or write.channel in channels
        ]


class _History:
    """What the ancestors of a checkpoint have written to a channel."""

    def __init__(self) -> None:
        self.writes: PendingWrites = []
        self.has_seed = False
        self.seed: Any = None

    def result(self) -> DeltaChannelHistory:
        if self.has_seed:
            return {"writes": self.writes, "seed": self.seed}
        return {"writes": self.writes}


def _named(config: RunnableConfig) -> ThreadName:
    """The thread and namespace that a config names. Raises `UsageError`."""
    return ThreadName(_thread_id(config), config["configurable"].get("checkpoint_ns") or "")


def _thread_id(config: RunnableConfig) -> str:
    configurable = config.get("configurable") or {}
    thread_id = configurable.get("thread_id")
    if thread_id is None:
        raise UsageError(
            "LimpetSaver keeps threads by their ids, and the config has none: "
            'config={"configurable": {"thread_id": "1"}}'
        )
    return str(thread_id)


def _config_of(name: ThreadName, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": name.thread_id,
            "checkpoint_ns": name.namespace,
            "checkpoint_id": checkpoint_id,
        }
    }
