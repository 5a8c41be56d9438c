"""What a training needs of memory and disk, before anything starts."""

import shutil
from pathlib import Path
from typing import NamedTuple

import torch

from spsbench.errors import OutOfMemoryError
from spsbench.hardware.files import in_words
from spsbench.models.devices import free_bytes
from spsbench.training.course.checkpoint import KEPT

OPTIMISER = 3  # the weights and two moments, float32
ACTIVATIONS = 40  # rows of hidden states that a layer leaves for its gradient
PASS = 6  # float32 rows of laws that are alive at once


class Need(NamedTuple):
    """Bytes."""

    memory: int
    disk: int

    def __str__(self) -> str:
        return f"{in_words(self.memory)} of memory and {in_words(self.disk)} of disk"


def needed(
    parameters: int,
    rows: int,
    vocab: int,
    width: int,
    layers: int,
    depth: int,
    passes: int,
    recompute: bool = False,
) -> Need:
    """For weights, gradients and moments; the laws of a part of a batch; and what is written.

    Args:
        parameters: that are taught.
        rows: tokens done at a time.
        vocab: columns of a law.
        width: of hidden states.
        layers: of the target, all of whose hidden states are there.
        depth: guesses whose laws are kept for the gradient.
        passes: layers, or passes over them, whose activations are.
        recompute: of all but one of them only what went in is kept.
    """
    learnt = parameters * 4 * (OPTIMISER + 1)
    laws = rows * vocab * 4 * (PASS + 2 * depth)
    inner = ACTIVATIONS + passes if recompute else ACTIVATIONS * passes
    states = rows * width * 4 * (layers + inner)
    written = parameters * 4 * OPTIMISER * (KEPT + 1) + parameters * 8
    return Need(learnt + laws + states, written)


def check_room(need: Need, folder: Path, device: torch.device) -> None:
    """Refuse what cannot end well.

    Raises:
        OutOfMemoryError: the disk, or the memory, has less.
    """
    free = shutil.disk_usage(folder).free
    if need.disk > free:
        raise OutOfMemoryError(
            f"checkpoints and the result need {in_words(need.disk)}, {in_words(free)} are free "
            f"({folder}): expected room. Name another place with --out"
        )
    memory = free_bytes(device)
    if memory and need.memory > memory:
        raise OutOfMemoryError(
            f"learning needs {in_words(need.memory)}, {device} has {in_words(memory)} free: "
            "expected enough. Give fewer --micro-tokens, or a smaller student"
        )
