"""Files in the user's cache: whole or not there, and no more than are wanted."""

import pytest

from spsbench.hardware.files import beside


def test_a_draft_takes_its_place_when_it_is_done(tmp_path):
    path = tmp_path / "kept.json"
    path.write_text("old")
    with beside(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
        assert draft.parent == tmp_path
        assert draft.stat().st_mode & 0o077 == 0
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "kept.json"
    path.write_text("old")

    def fail():
        with beside(path) as draft:
            draft.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="missing"), beside(tmp_path / "missing" / "file"):
        pass
