"""Large models that were found sound are not read for it again."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from spsbench.errors import DataError
from spsbench.models import loader
from spsbench.models.loader import check_sound_once
from tests.tiny_models import tiny


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loader, "LARGE", 0)


def marks(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "spsbench" / "sound").glob("*")}


def unsound() -> Any:
    model = tiny("llama")
    with torch.no_grad():
        model.lm_head.weight[1, 2] = torch.nan
    return model


def test_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_sound_once(tiny("llama"), tmp_path, "a")
    assert marks(tmp_path) == {"a"}
    with monkeypatch.context() as planted:
        planted.setattr(loader, "check_sound", lambda *given: pytest.fail("read again"))
        check_sound_once(tiny("llama"), tmp_path, "a")
    for _ in range(2):  # other files, which are not sound however often they are read
        with pytest.raises(DataError, match="lm_head"):
            check_sound_once(unsound(), tmp_path, "b")
    assert marks(tmp_path) == {"a"}


def test_small_models_leave_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "LARGE", 2**30)
    check_sound_once(tiny("llama"), tmp_path, "a")
    assert not marks(tmp_path)
    with pytest.raises(DataError):
        check_sound_once(unsound(), tmp_path, "a")


def test_of_unknown_files_nothing_is_remembered(tmp_path: Path) -> None:
    check_sound_once(tiny("llama"), tmp_path, None)
    assert not marks(tmp_path)
    with pytest.raises(DataError):
        check_sound_once(unsound(), tmp_path, None)


def test_few_marks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "MOST", 2)
    for at, stamp in enumerate("abc"):
        check_sound_once(tiny("llama"), tmp_path, stamp)
        os.utime(tmp_path / "spsbench" / "sound" / stamp, (at, at))
    check_sound_once(tiny("llama"), tmp_path, "d")
    assert marks(tmp_path) == {"c", "d"}


def test_without_a_place_every_load_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "own_folder", lambda name: None)
    check_sound_once(tiny("llama"), tmp_path, "a")
    with pytest.raises(DataError):
        check_sound_once(unsound(), tmp_path, "a")
