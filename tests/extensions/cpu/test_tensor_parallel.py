"""A target over several ranks in the compiled engine, which runs it as `eager` does."""

import pytest

from spsbench.extensions.cpu.fast import Fast
from tests.oracles.ranks import check


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_write_the_text_of_one(size, tmp_path):
    check(size, tmp_path, "llama", engines=(Fast(),))
