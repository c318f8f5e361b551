"""A poster and a holder of one run, real processes that are killed at random moments and started again.

`python -m support.post_kills <url of a store> <kills> <seed>` prints what happened as JSON. Exits with an error if a
post that was acknowledged is lost, taken in twice, or out of order.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import IO, NoReturn

from limpet import open_store
from limpet.journal.store import Commit, NewRun, PostsWaiting, Store

RUN = "r"
OPEN = b"o"
"""What a process says once it has opened its store and begins to work."""
LONGEST_DELAY = 0.03
PAUSE = 0.001
"""Seconds between two calls of a process, so that the other one gets the lock of the store."""
LEASE = 1000.0
"""Longer than the hunt: the holder that follows knows that the one before it is dead, and breaks its lease."""

Say = Callable[[bytes], object]
Work = Callable[[Store, Say], None]


class Child:
    """A forked process that does `work` with a store of its own, and what it says."""

    def __init__(self, url: str, work: Work) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reader)
            _work_and_exit(url, work, writer)
        os.close(writer)
        self._reader: IO[bytes] = os.fdopen(reader, "rb")

    def wait_until_open(self) -> None:
        """Wait for its first line; raises if it ends before."""
        line = self._reader.readline()
        if line.strip() != OPEN:
            raise AssertionError(f"process {self.pid} ended before it began: {line!r}")

    def kill(self) -> list[bytes]:
        """End it as kill -9 does; the whole lines that it said and that weren't read yet."""
        os.kill(self.pid, signal.SIGKILL)
        return self._said(signal.SIGKILL)

    def end(self) -> list[bytes]:
        """Wait for its own end; the lines that weren't read yet."""
        return self._said(0)

    def _said(self, expected: int) -> list[bytes]:
        said = self._reader.read()
        self._reader.close()
        _, status = os.waitpid(self.pid, 0)
        if status != expected:
            raise AssertionError(f"a process ended with status {status}, not {expected}")
        return [line.strip() for line in said.splitlines(keepends=True) if line.endswith(b"\n")]


def _work_and_exit(url: str, work: Work, writer: int) -> NoReturn:
    try:
        store = open_store(url)
        work(store, lambda words: os.write(writer, words + b"\n"))
        store.close()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _create(store: Store) -> None:
    store.create(NewRun(RUN, "g", [b"first"]))


def posting(first: int, last: int | None = None) -> Work:
    """Post the keys from `first` on, each once the one before is acknowledged; up to `last`, or until killed."""

    def work(store: Store, say: Say) -> None:
        say(OPEN)
        key = first
        while last is None or key <= last:
            store.post(RUN, str(key), b"body of %d" % key)
            say(b"%d" % key)
            key += 1
            time.sleep(PAUSE)

    return work


def holding(is_last: bool = False) -> Work:
    """Claim the run, commit steps, and take in what was posted; until killed, or until nothing waits."""

    def work(store: Store, say: Say) -> None:
        head = store.head(RUN)
        lease = store.claim(RUN, f"process {os.getpid()}", LEASE, instead_of=head.fence)
        sequence = store.head(RUN).sequence
        say(OPEN)
        while True:
            (refusal,) = store.append([Commit(RUN, lease.fence, sequence, [b"step"])])
            if refusal is None:
                sequence += 1
                if is_last:
                    return
                time.sleep(PAUSE)
                continue
            assert isinstance(refusal, PostsWaiting), refusal
            posts = store.inbox(RUN)
            taken = store.head(RUN).taken
            assert [post.number for post in posts] == list(range(taken + 1, taken + 1 + len(posts)))
            record = json.dumps([[post.number, post.key, post.body.decode()] for post in posts]).encode()
            commit = Commit(RUN, lease.fence, sequence, [record], takes=posts[-1].number, ignores_posts=True)
            (refusal,) = store.append([commit])
            assert refusal is None, refusal
            sequence += 1

    return work


def hunt(url: str, kills: int, seed: int) -> dict[str, object]:
    """Kill the poster or the holder this many times; then finish, and check what the journal has taken in."""
    chance = random.Random(seed)
    for kind in ("files", "postgres", "redis", "sqlite"):
        with suppress(ImportError):  # once, and not in each process
            import_module(f"limpet.stores.{kind}.store")
    Child(url, lambda store, say: _create(store)).end()
    acknowledged = 0
    """The number of keys that were: those from 1 on."""
    killed = {"poster": 0, "holder": 0}
    poster = Child(url, posting(1))
    holder = Child(url, holding())
    began = time.monotonic()
    for _ in range(kills):
        which = chance.choice(["poster", "holder"])
        child = poster if which == "poster" else holder
        if chance.random() < 0.8:  # else it may be killed while it opens its store
            child.wait_until_open()
        time.sleep(LONGEST_DELAY * chance.random() ** 3)
        said = [int(line) for line in child.kill() if line != OPEN]
        killed[which] += 1
        if which == "poster":
            acknowledged = max([acknowledged, *said])
            poster = Child(url, posting(acknowledged + 1))
        else:
            holder = Child(url, holding())
    said = [int(line) for line in poster.kill() if line != OPEN]
    acknowledged = max([acknowledged, *said])
    holder.kill()
    Child(url, posting(acknowledged + 1, acknowledged + 2)).end()
    Child(url, holding(is_last=True)).end()
    checking = Child(url, lambda store, say: say(_checked(store, acknowledged + 2)))
    (result,) = checking.end()
    return {"killed": killed, "seconds": round(time.monotonic() - began, 1), **json.loads(result)}


def _checked(store: Store, last: int) -> bytes:
    """What the journal has taken in, once it is what was posted: keys 1 … `last`, each once and in order."""
    tail = store.read(RUN, first=1)
    commits = [json.loads(record) for record in tail.records if record.startswith(b"[")]
    taken = [tuple(post) for commit in commits for post in commit]
    expected = [(number, str(number), f"body of {number}") for number in range(1, last + 1)]
    wrong = [(found, wanted) for found, wanted in zip(taken, expected, strict=False) if found != wanted]
    assert not wrong, f"the first that is wrong: {wrong[0]}"
    assert len(taken) == last, f"{len(taken)} posts were taken in, and {last} posted"
    assert (tail.head.posted, tail.head.taken, list(store.inbox(RUN))) == (last, last, [])
    assert tail.head.sequence == len(tail.records)
    for key in (1, last):
        assert not store.post(RUN, str(key), b"again")
    return json.dumps({"posts": last, "commits": len(tail.records)}).encode()


if __name__ == "__main__":
    print(json.dumps(hunt(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
