"""Which disks are this machine's own, and how much of them may be taken."""

from pathlib import Path

import pytest

from spsbench.hardware import disks
from spsbench.hardware.disks import allowed, bad_share, is_local

MOUNTS = """\
23 28 0:22 / {top}/proc rw,nosuid shared:13 - proc proc rw
28 1 254:0 / {top} rw,noatime - ext4 /dev/vda rw
31 28 0:26 / {top}/dev/shm rw shared:4 - tmpfs tmpfs rw
40 28 0:51 / {top}/my\\040home rw - nfs4 server:/home rw,vers=4.2
41 40 0:60 / {top}/my\\040home/merged rw - overlay overlay rw,lowerdir=/l
"""


@pytest.mark.parametrize(
    ("folder", "local"),
    [
        ("cache", True),
        ("dev/shm/cache", False),
        ("my home/cache", False),
        ("my home/merged/cache", True),
        ("my homes", True),
    ],
)
def test_memory_and_other_machines_are_no_disk(
    folder: str, local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = MOUNTS.format(top=tmp_path.resolve())
    (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(Path, "read_text", lambda self, **given: mounts)
    assert is_local(tmp_path / folder) == local


def test_a_system_that_does_not_tell_has_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **given: str) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert not is_local(tmp_path)


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
