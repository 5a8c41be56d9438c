"""The bytes that a token reads, from headers."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from spsbench.checkpoints.weights import token_weight_bytes
from spsbench.errors import DataError, MissingError


def weights(path, shapes):
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, path)


def test_every_weight_is_read_once_at_the_dtype_it_runs_in(tmp_path):
    weights(tmp_path / "model-1.safetensors", {"model.embed_tokens.weight": [10, 4]})
    weights(tmp_path / "model-2.safetensors", {"a.weight": [4, 4], "scale": []})
    assert token_weight_bytes(tmp_path, "float32") == 4 * (40 + 16 + 1)
    assert token_weight_bytes(tmp_path, "bfloat16") == 2 * (40 + 16 + 1)


def test_input_embeddings_beside_a_head_are_read_one_row_at_a_time(tmp_path):
    weights(
        tmp_path / "model.safetensors",
        {"model.embed_tokens.weight": [10, 4], "lm_head.weight": [10, 4], "a.weight": [3]},
    )
    assert token_weight_bytes(tmp_path, "float32") == 4 * (40 + 3)


def test_damaged_weights_are_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    with pytest.raises(DataError):
        token_weight_bytes(tmp_path, "float32")


def test_no_weights(tmp_path):
    with pytest.raises(MissingError):
        token_weight_bytes(tmp_path, "float32")
