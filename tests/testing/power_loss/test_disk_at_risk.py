"""The model of a disk that loses power: what is safe stays, and of the rest any part may."""

from __future__ import annotations

from random import Random

from limpet.testing.power_loss.disk_at_risk import SECTOR_SIZE, AtRisk, DiskAtRisk, SectorAtRisk, survivors
from limpet.testing.power_loss.disk_operations import (
    DIRECTORY,
    Create,
    Disk,
    Flush,
    FlushAll,
    FlushDirectory,
    Image,
    Link,
    Operation,
    Rename,
    Resize,
    Unlink,
    Write,
    operations_for,
)

SAVED: list[Operation] = [
    Create("a", 1),
    Write(1, 0, b"1" * 700),
    Flush(1),
    FlushDirectory(""),
]


def disk_after(*operations: Operation) -> DiskAtRisk:
    disk = DiskAtRisk()
    for operation in operations:
        disk.apply(operation)
    return disk


def images(disk: DiskAtRisk) -> list[Image]:
    """All disks that a power loss may leave, if little is at risk."""
    at_risk = disk.at_risk()
    assert len(at_risk) < 10
    found: list[Image] = []
    for bits in range(1 << len(at_risk)):
        survived = {each for place, each in enumerate(at_risk) if bits >> place & 1}
        image = disk.image(survived.__contains__)
        if image not in found:
            found.append(image)
    return found


def test_what_was_flushed_with_its_name_is_safe() -> None:
    assert disk_after(*SAVED).at_risk() == []
    assert images(disk_after(*SAVED)) == [{"a": b"1" * 700}]


def test_a_file_is_lost_with_its_name_however_often_it_is_flushed() -> None:
    assert images(disk_after(*SAVED[:3])) == [{}, {"a": b"1" * 700}]


def test_an_unflushed_rename_leaves_either_file_whole() -> None:
    replaced = [Create("b", 2), Write(2, 0, b"2"), Flush(2), Rename("b", "a", 2)]
    contents = [image.get("a") for image in images(disk_after(*SAVED, *replaced))]
    assert set(contents) == {b"1" * 700, b"2"}


def test_a_rename_before_the_content_is_flushed_may_leave_nothing_of_it() -> None:
    replaced = [Create("b", 2), Write(2, 0, b"2"), Rename("b", "a", 2), FlushDirectory("")]
    assert images(disk_after(*SAVED, *replaced)) == [{"a": b""}, {"a": b"\0"}, {"a": b"2"}]


def test_a_flushed_directory_says_nothing_of_another_one() -> None:
    made = [Create("d", DIRECTORY), Create("d/a", 1), Flush(1), FlushDirectory("d")]
    assert {"d/a": b""} in images(disk_after(*made)), "the directory that it is in was lost"
    assert images(disk_after(*made, FlushDirectory(""))) == [{"d": None, "d/a": b""}]


def test_each_sector_of_a_write_survives_or_not_and_so_does_the_size() -> None:
    disk = disk_after(*SAVED, Write(1, 700, b"2" * 700))
    found = [image["a"] for image in images(disk)]
    one = b"1" * 700 + b"2" * (1024 - 700)
    assert b"1" * 700 in found
    assert one + b"2" * 376 in found
    assert one + b"\0" * 376 in found
    assert b"1" * 700 + b"\0" * 324 + b"2" * 376 in found
    assert len(found) == 5


def test_a_sector_that_was_written_twice_may_be_as_it_was_in_between() -> None:
    disk = disk_after(*SAVED, Write(1, 0, b"2"), Write(1, 1, b"3"))
    assert {(image["a"] or b"")[:2] for image in images(disk)} == {b"11", b"21", b"23"}


def test_a_file_that_was_cut_off_may_still_be_long() -> None:
    disk = disk_after(*SAVED, Resize(1, 600))
    found = {image["a"] for image in images(disk)}
    assert found == {b"1" * 700, b"1" * 600, b"1" * 600 + b"\0" * 100}


def test_links_and_removed_names_come_and_go_apart() -> None:
    names = {frozenset(image) for image in images(disk_after(*SAVED, Link("b", 1), Unlink("a", 1)))}
    assert names == {frozenset("a"), frozenset("b"), frozenset("ab"), frozenset()}


def test_processes_see_all_that_was_done() -> None:
    disk = Disk()
    operations = [Create("b", 2), Write(2, 3, b"x"), Rename("b", "c", 2), Resize(1, 2), Unlink("a", 1)]
    for operation in [*SAVED, *operations]:
        disk.apply(operation)
    assert disk.image() == {"c": b"\0\0\0x"}


def test_an_image_can_be_made_by_operations() -> None:
    image: Image = {"d": None, "d/a": b"x" * 600, "b": b""}
    assert images(disk_after(*operations_for(image))) == [image]
    assert images(disk_after(Create("a", 1), Write(1, 0, b"1"), FlushAll())) == [{"a": b"1"}]


def test_survivors_begin_with_all_and_nothing_and_are_many() -> None:
    at_risk: list[AtRisk] = [SectorAtRisk(1, 1, sector) for sector in range(60)]
    found = list(survivors(at_risk, Random(1), 1000))
    assert found[:2] == [frozenset(at_risk), frozenset()]
    assert len(found) == 1002
    assert {frozenset(at_risk) - {each} for each in at_risk} <= set(found)
    assert {frozenset([each]) for each in at_risk} <= set(found)
    assert list(survivors([], Random(1), 5)) == [frozenset()]
    assert SECTOR_SIZE == 512
