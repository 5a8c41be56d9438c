"""The preallocated cache against plain lists: growth, rewinds, gathered rows, and no new memory."""

import pytest
import torch

from spsbench.engines.session import cache
from spsbench.engines.session.cache import PreallocatedCache
from spsbench.errors import OutOfMemoryError

pytestmark = pytest.mark.numeric


def states(tokens, layer):
    """[1, 2, m, 3] keys and values that tell token and layer."""
    x = torch.tensor(tokens, dtype=torch.float32)[None, None, :, None].expand(1, 2, -1, 3)
    return x + 1000 * layer, -x - 1000 * layer


def held(past, layer):
    own = past.layers[layer]
    keys = own.keys[0, 1, : own.length, 2] - 1000 * layer
    assert torch.equal(own.values[0, 0, : own.length, 0], -keys - 1000 * layer)
    return [int(k) for k in keys]


def test_appends_rewinds_and_restarts_stay_in_one_buffer():
    past = PreallocatedCache()
    past.update(*states(list(range(100)), 0), 0)
    place = past.layers[0].keys.data_ptr()
    for _ in range(1000):
        past.update(*states([1, 2, 3], 0), 0)
        past.keep(50, [60, 70])
        past.keep(0)
        past.update(*states(list(range(100)), 0), 0)
    assert past.layers[0].keys.data_ptr() == place
    assert past.layers[0].capacity == cache.FIRST


def test_room_that_is_not_free_is_refused_before_it_is_taken(monkeypatch):
    past = PreallocatedCache()
    past.update(*states([1, 2, 3], 0), 0)
    past.update(*states([1, 2, 3], 1), 1)
    assert past.token_bytes == 2 * 2 * 2 * 3 * 4  # layers, keys and values, heads, width, float32
    one = past.token_bytes
    free = [one * (700 - 256) + one * 256]
    monkeypatch.setattr(cache, "ram", lambda: (0, free[0]))
    past.reserve(600)  # 1024 cannot be had
    assert [layer.capacity for layer in past.layers] == [600, 600]
    with pytest.raises(OutOfMemoryError):
        past.reserve(2000)
    assert [layer.capacity for layer in past.layers] == [600, 600]
    assert held(past, 0) == held(past, 1) == [1, 2, 3]
    free[0] = 0  # not known
    past.reserve(2000)
    assert past.layers[0].capacity == 2400
