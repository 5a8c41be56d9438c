"""Which disks are this machine's own, and how much of them may be taken."""

from pathlib import Path

import pytest

from spsbench.machine import disks
from spsbench.machine.disks import allowed, bad_share, is_local

MOUNTS = """\
23 28 0:22 / /proc rw,nosuid shared:13 - proc proc rw
28 1 254:0 / / rw,noatime - ext4 /dev/vda rw
31 28 0:26 / /dev/shm rw shared:4 - tmpfs tmpfs rw
40 28 0:51 / /home rw - nfs4 server:/home rw,vers=4.2
41 28 0:60 / /merged rw - overlay overlay rw,lowerdir=/l
"""


@pytest.mark.parametrize(
    ("device", "local"),
    [((254, 0), True), ((0, 60), True), ((0, 26), False), ((0, 51), False), ((9, 9), False)],
)
def test_memory_and_other_machines_are_no_disk(
    device: tuple[int, int], local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, **given: MOUNTS)
    monkeypatch.setattr(disks.os, "major", lambda number: device[0])
    monkeypatch.setattr(disks.os, "minor", lambda number: device[1])
    assert is_local(tmp_path) == local


def test_what_is_not_there_is_on_no_disk(tmp_path: Path) -> None:
    assert not is_local(tmp_path / "missing")


@pytest.mark.parametrize(
    ("given", "bad", "size"),
    [
        (None, False, 20_000_000_000),
        ("0", False, 0),
        ("1.5", False, 1_500_000_000),
        ("-1", True, 20_000_000_000),
        ("inf", True, 20_000_000_000),
        ("much", True, 20_000_000_000),
        ("", True, 20_000_000_000),
    ],
)
def test_how_much_may_be_taken(
    given: str | None, bad: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(disks.VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(disks.VARIABLE, given)
    assert (bad_share() is not None, allowed()) == (bad, size)
