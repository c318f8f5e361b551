"""The hunt: what a program did to a disk, the disks that a power loss may leave of it, and a check of each.

    work(directory, acknowledge)       a program, which calls `acknowledge` for what it has saved
    takeover(directory, acknowledge)   the program that continues after the first one was killed
    check(directory, acknowledged)     raises if any of what was acknowledged is lost

The program runs once and is recorded. Power is then lost after each of its operations; and it is killed between any
two of them, or half way through a large write: `takeover` continues with what processes see then, is recorded too,
and power is lost after each of *its* operations. Some disks that a power loss left are continued by `takeover` as
well, and lose power a second time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from limpet.testing.power_loss.disk_at_risk import AtRisk, DiskAtRisk, survivors
from limpet.testing.power_loss.disk_operations import (
    Acknowledge,
    Disk,
    Image,
    Operation,
    Write,
    operations_for,
    write_image,
)
from limpet.testing.power_loss.recorder import recording

Program = Callable[[Path, Callable[[Any], None]], None]
Check = Callable[[Path, list[Any]], None]

FIRST_LIMIT = 4
"""How many losses are tried for each moment in the first round. It doubles with each round."""
MAX_LIMIT = 256
"""How many in the last round, if there aren't enough different disks."""
MAX_FINDINGS = 20
"""Losses after which a hunt ends: more would say the same."""
MAX_KILLS = 400
"""How many kills are continued by a takeover: a random choice, if there are more moments."""
LARGE_WRITE = 4096
"""Bytes of a write from which on a process may be killed half way through it."""
SECOND_LOSS = 0.01
"""The share of disks that lose power a second time."""


class PowerLossReport(NamedTuple):
    """What a hunt did: different disks after a power loss, checks of them, and processes that were killed before.

    `second_losses` is how many disks were continued after a power loss, and lost power again. `findings` describes
    what was lost.
    """

    states: int
    checks: int
    kills: int
    second_losses: int
    findings: list[str]

    def __str__(self) -> str:
        text = (
            f"{self.states} disks after a power loss in {self.checks} checks, with {self.kills} processes killed "
            f"before it and {self.second_losses} second losses: {len(self.findings)} lost something"
        )
        return "\n\n".join([text, *self.findings[:3]])


class PowerLossFound(AssertionError):
    """A power loss can take what was acknowledged. `report` has the findings."""

    def __init__(self, report: PowerLossReport) -> None:
        super().__init__(str(report))
        self.report = report


def hunt_power_losses(
    work: Program,
    check: Check,
    takeover: Program | None = None,
    *,
    states: int = 1000,
    seed: int = 0,
    ignore: tuple[str, ...] = (),
) -> PowerLossReport:
    """Check `states` different disks that a power loss may leave, or fewer if there are hardly more.

    Disks that differ only in files whose paths begin with one of `ignore` count as the same one: give what holds
    nothing, such as lock files. The same seed tries the same losses, as far as the programs do the same. Raises
    `PowerLossFound`.
    """
    hunt = _Hunt(work, check, takeover, Random(seed), ignore)
    with _fast_directory() as directory:
        report = hunt.run(Path(directory), states)
    if report.findings:
        raise PowerLossFound(report)
    return report


class _Timeline(NamedTuple):
    """Operations on an empty disk. Power is lost after operation number `first`, or any later one."""

    operations: list[Operation]
    first: int
    story: str
    is_second: bool = False


class _Hunt:
    def __init__(
        self, work: Program, check: Check, takeover: Program | None, chance: Random, ignore: tuple[str, ...]
    ) -> None:
        self._work = work
        self._check = check
        self._takeover = takeover
        self._chance = chance
        self._ignore = ignore
        self._states: set[bytes] = set()
        self._checked: set[tuple[bytes, int]] = set()
        self._kills = 0
        self._second_losses = 0
        self._findings: list[str] = []
        self._new_timelines: list[_Timeline] = []

    def run(self, directory: Path, states: int) -> PowerLossReport:
        self._directory = directory
        moments = [moment for timeline in self._timelines() for moment in _moments(timeline)]
        limit = FIRST_LIMIT
        while limit <= MAX_LIMIT and not self._is_done(states):
            self._chance.shuffle(moments)
            for timeline, place in moments:
                self._lose_power(timeline, place, limit)
                if self._is_done(states):
                    break
            moments += [moment for timeline in self._new_timelines for moment in _moments(timeline)]
            self._new_timelines.clear()
            limit *= 2
        return PowerLossReport(
            len(self._states), len(self._checked), self._kills, self._second_losses, self._findings
        )

    def _is_done(self, states: int) -> bool:
        return len(self._states) >= states or len(self._findings) >= MAX_FINDINGS

    def _timelines(self) -> Iterator[_Timeline]:
        with self._new_directory() as place, recording(Path(place)) as recorder:
            self._work(Path(place), recorder.acknowledge)
        operations = recorder.operations
        yield _Timeline(operations, 0, "")
        if self._takeover is None:
            return
        kills = list(_kills(operations))
        for done, story in self._chance.sample(kills, min(len(kills), MAX_KILLS)):
            continued = self._continued(done, story)
            if continued is not None:
                self._kills += 1
                yield continued

    def _continued(self, done: list[Operation], story: str) -> _Timeline | None:
        """What happens when `takeover` continues after these operations; None if it fails, which is a finding."""
        assert self._takeover is not None
        disk = Disk()
        for operation in done:
            disk.apply(operation)
        with self._new_directory() as place:
            write_image(disk.image(), Path(place))
            try:
                with recording(Path(place), disk) as recorder:
                    self._takeover(Path(place), recorder.acknowledge)
            except Exception as problem:
                self._findings.append(f"{story}, the takeover failed: {type(problem).__name__}: {problem}")
                return None
        return _Timeline([*done, *recorder.operations], len(done), f"{story}, then a takeover; ")

    def _lose_power(self, timeline: _Timeline, place: int, limit: int) -> None:
        """Check some of the disks that a power loss after operation number `place` may leave."""
        disk = DiskAtRisk()
        acknowledged = []
        for operation in timeline.operations[: place + 1]:
            disk.apply(operation)
            if isinstance(operation, Acknowledge):
                acknowledged.append(operation.what)
        at_risk = disk.at_risk()
        for survived in survivors(at_risk, self._chance, limit):
            image = disk.image(survived.__contains__)
            state = _digest({path: image[path] for path in image if not path.startswith(self._ignore)})
            if (state, len(acknowledged)) in self._checked:
                continue
            self._states.add(state)
            self._checked.add((state, len(acknowledged)))
            problem = self._problem_with(image, acknowledged)
            if problem is not None:
                lost = [each for each in at_risk if each not in survived]
                story = f"{_told(timeline, place)}: {_summary(lost, at_risk)}"
                self._findings.append(f"{story}:\n{problem}")
            elif not timeline.is_second and self._chance.random() < SECOND_LOSS:
                self._lose_power_again(image, acknowledged, _told(timeline, place))

    def _lose_power_again(self, image: Image, acknowledged: list[Any], story: str) -> None:
        if self._takeover is None:
            return
        done = [*operations_for(image), *map(Acknowledge, acknowledged)]
        continued = self._continued(done, story)
        if continued is not None:
            self._second_losses += 1
            self._new_timelines.append(continued._replace(is_second=True))

    def _problem_with(self, image: Image, acknowledged: list[Any]) -> str | None:
        with self._new_directory() as place:
            write_image(image, Path(place))
            try:
                self._check(Path(place), acknowledged)
            except Exception as problem:
                return f"{type(problem).__name__}: {problem}"
        return None

    def _new_directory(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(dir=self._directory)


def _fast_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory in memory, where there is one: nothing in it has to survive."""
    try:
        return tempfile.TemporaryDirectory(prefix="limpet-power-loss-", dir="/dev/shm")
    except OSError:
        return tempfile.TemporaryDirectory(prefix="limpet-power-loss-")


def _moments(timeline: _Timeline) -> Iterator[tuple[_Timeline, int]]:
    """After which operations power is lost. What is acknowledged without another operation counts at once."""
    operations = timeline.operations
    for place in range(max(timeline.first - 1, 0), len(operations)):
        is_last = place + 1 == len(operations)
        if is_last or not isinstance(operations[place + 1], Acknowledge):
            yield timeline, place


def _kills(operations: list[Operation]) -> Iterator[tuple[list[Operation], str]]:
    """What was done when a process was killed: up to each operation, and up to the middle of each large write."""
    for place, operation in enumerate(operations):
        if isinstance(operation, Write) and len(operation.data) >= LARGE_WRITE:
            half = operation._replace(data=operation.data[: len(operation.data) // 2])
            yield [*operations[:place], half], f"killed half way through operation {place}"
        if not isinstance(operation, Acknowledge):
            yield operations[: place + 1], f"killed after operation {place}, a {type(operation).__name__}"


def _digest(image: Image) -> bytes:
    digest = blake2b(digest_size=16)
    for path in sorted(image):
        content = image[path]
        digest.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        digest.update(content or b"")
    return digest.digest()


def _told(timeline: _Timeline, place: int) -> str:
    """What happened up to the power loss, with the name of the file that was in use."""
    disk = Disk()
    for operation in timeline.operations[: place + 1]:
        disk.apply(operation)
    operation = timeline.operations[place]
    path = getattr(operation, "path", None)
    if path is None:
        file = getattr(operation, "file", None)
        path = next((name for name, number in disk.names.items() if number == file), "")
    done = f"{type(operation).__name__} {path}".strip()
    return f"{timeline.story}power was lost after operation {place} ({done})"


def _summary(lost: list[AtRisk], at_risk: list[AtRisk]) -> str:
    shown = ", ".join(map(str, lost[:4]))
    return (
        f"{len(lost)} of {len(at_risk)} unflushed changes were lost ({shown}{' …' if len(lost) > 4 else ''})"
    )
