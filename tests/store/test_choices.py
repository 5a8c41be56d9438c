"""Choices of engines beside a run's records."""

import pytest

from spsbench.errors import DataError
from spsbench.store.folder import choices_path, read_choices, write_choices


def test_what_is_written_is_read_by_shard(tmp_path):
    assert read_choices(tmp_path, (0, 2)) == {}
    write_choices(tmp_path, (0, 2), {"model": {"engine": "fast", "threads": None}})
    assert read_choices(tmp_path, (0, 2)) == {"model": {"engine": "fast", "threads": None}}
    assert read_choices(tmp_path, (1, 2)) == {}


@pytest.mark.parametrize(
    "text", ["{", "[]", "3", '{"m": 5}', '{"m": {"packed": [1]}}', "[" * 100_000]
)
def test_damage_is_a_user_s_error(tmp_path, text):
    choices_path(tmp_path, (0, 1)).write_text(text)
    with pytest.raises(DataError, match="choices"):
        read_choices(tmp_path, (0, 1))
