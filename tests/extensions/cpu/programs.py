"""Tiny models whose passes are programs, and programs of functions."""

import torch

from spsbench.engines.session.engine_config import get_prepared
from spsbench.extensions.cpu.replay.program import Operands, PassProgram, Scratch, Size
from spsbench.extensions.cpu.replay.record import Recorder, Recording, record
from tests.extensions.cpu.laid_out import laid_out
from tests.oracles.models import UNTIED, tiny

WIDE = {"hidden_size": 64, "head_dim": 16, "num_hidden_layers": 3}
MODELS = {
    "llama": WIDE,
    "mistral": {**WIDE, "sliding_window": 9},
    "gpt2": {"n_embd": 64, "n_layer": 3},
    "qwen2": WIDE,
    "qwen3": WIDE,
    "phi3": {**WIDE, "sliding_window": None},
    "gemma3": {
        **WIDE,
        **UNTIED,
        "sliding_window": 9,
        "query_pre_attn_scalar": 16,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
}


def ready(architecture, dtype=torch.float32, layout="panels", spoil=lambda model: None, **more):
    """A model all of whose layers are laid out."""
    model = tiny(architecture, vocab=70, dtype=dtype, **{**MODELS[architecture], **more})
    spoil(model)
    laid_out(model, layout)
    tape = get_prepared(model).replay
    assert tape is not None
    return model, tape


def recorded(run, *tensors, weights=()) -> Recording:
    """The steps of `run(*tensors)`."""
    recorder = Recorder(tensors, None, [], weights, None)
    return record(lambda: {"": run(*tensors)}, recorder)


def computed(run, *tensors, weights=()):
    """What a program of `run` makes."""
    recording = recorded(run, *tensors, weights=weights)
    program = PassProgram([Size(1, 1), Size(2, 2)], [recording] * 2, [""])
    bound = program.at(Size(1, 1))
    made = torch.empty(bound.shapes[""], dtype=program.dtypes[0])
    addresses = [x.data_ptr() for x in weights]
    program.run(bound, Scratch(), [made], Operands(tensors, (), (), (), 0), addresses)
    return made
