"""The ranks that torchrun started, in step: each runs the whole command, and rank 0 alone writes.

Noise is an argument, so all ranks draw alike. What follows from a clock, a file or a user is
decided on rank 0 (`on_rank_0`), and the logits of a session are rank 0's (`InStepLM`), so that no
rounding parts the ranks. A rank that has ended is noticed by its closed connection, one that stands
still by the timeout of the group; either is raised as `LostRankError`, one line.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous
from transformers import PreTrainedModel

from spsbench.engines.eager import KINDS, EagerLM
from spsbench.engines.session.engine_config import EngineConfig, set_engine_config
from spsbench.errors import UnavailableError, UsageError
from spsbench.hardware.ranks import RANK_TIMEOUT, Ranks, ranks
from spsbench.loop.sampling import send
from spsbench.loop.types import LM, Scores

MEETING = 300.0  # seconds in which all ranks of a command must have joined

T = TypeVar("T")

_timeout: float | None = None  # seconds an exchange may take; None: no ranks


class LostRankError(UnavailableError):
    """Another rank has ended, stands still or drafts otherwise: this one cannot go on."""


def join_group(timeout: float = RANK_TIMEOUT) -> None:
    """Join the process group of the ranks that torchrun started; a second call does nothing.

    Waits for all ranks and takes this one's accelerator; a later exchange may take `timeout`
    seconds. Raises LostRankError where a rank did not join within `MEETING` seconds, and UsageError
    where torchrun did not start this, or more ranks on this machine than accelerators.
    """
    global _timeout
    if _timeout is not None:
        return
    here = ranks()
    backend = backend_of(here)
    if absent := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise UsageError(
            f"RANK without {' and '.join(absent)} (environment): expected all variables of "
            "torchrun. Start the ranks with torchrun, or unset RANK"
        )
    meeting, _timeout = timedelta(seconds=MEETING), MEETING
    with lost_rank_as_error():
        if not dist.is_initialized():
            store, _, _ = next(rendezvous("env://", timeout=meeting))
            store.set(f"spsbench/{here.rank}", "")
            store.wait([f"spsbench/{rank}" for rank in range(here.size)], meeting)
            dist.init_process_group(
                backend,
                store=store,
                rank=here.rank,
                world_size=here.size,
                timeout=timedelta(seconds=timeout),
            )
    _timeout = timeout


def backend_of(here: Ranks) -> str:
    """Return the backends of this rank: gloo for the host, NCCL for accelerators if there are any.

    Selects the accelerator of this rank's number on its machine; UsageError: there are fewer.
    """
    if not torch.cuda.is_available():
        return "gloo"
    if here.local >= torch.cuda.device_count():
        raise UsageError(
            f"rank {here.rank} has no accelerator of its own (this machine has "
            f"{torch.cuda.device_count()}): expected one for each rank of a machine. Start fewer "
            "ranks, or hide the accelerators with CUDA_VISIBLE_DEVICES="
        )
    torch.cuda.set_device(here.local)
    return "cpu:gloo,cuda:nccl"


def on_rank_0(decide: Callable[[], T]) -> T:
    """Return what `decide` returns on rank 0, which alone calls it; without a group, call it here.

    Every rank must call this. An error of `decide` is raised on rank 0 alone, the others wait until
    the timeout; LostRankError: another rank has ended or stands still.
    """
    if _timeout is None:
        return decide()
    box = [decide() if ranks().rank == 0 else None]
    with lost_rank_as_error():
        dist.broadcast_object_list(box, 0, device=torch.device("cpu"))
    return box[0]  # type: ignore[return-value]


class InStepLM:
    """A session whose scores are rank 0's on every rank."""

    def __init__(self, lm: LM) -> None:
        self.vocab_size, self.limit = lm.vocab_size, lm.limit
        self._lm = lm
        self._fed: list[Tensor] = []  # compared once a round: each comparison waits for the device

    @property
    def length(self) -> int:
        """Return the number of tokens in the cache."""
        return self._lm.length

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed tokens, noted for `commit`; return rank 0's logits and states, but own experts."""
        logits, hidden, experts = self._lm.append(tokens, keep, parents)
        self._fed.append(send(tokens, logits.device))
        states = {layer: _of_rank_0(rows) for layer, rows in hidden.items()}
        return Scores(_of_rank_0(logits), states, experts)

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Keep the first `length` tokens and the tree nodes `path` after them, as `LM.commit`.

        LostRankError: this rank has fed other tokens than rank 0 since the last commit. Errors of
        torch for a lost rank pass.
        """
        fed, self._fed = self._fed, []
        if fed and not torch.equal(_of_rank_0(tokens := torch.cat(fed)), tokens):
            raise LostRankError(
                f"rank {ranks().rank} drafts other tokens than rank 0: expected the same of all. "
                "Start the ranks on machines of one kind, with the same software"
            )
        self._lm.commit(length, path)


def _of_rank_0(tensor: Tensor) -> Tensor:
    copy = tensor.clone(memory_format=torch.contiguous_format)
    dist.broadcast(copy, 0)
    return copy


def share_model(model: PreTrainedModel) -> None:
    """Have sessions over `model`, of which each rank has a part, run it as `eager` does."""
    KINDS[model] = EagerLM
    reason = f"its weights are shared by {ranks().size} ranks, each layer ends in an all-reduce"
    set_engine_config(model, EngineConfig(engine="eager", reason=reason))


@contextmanager
def lost_rank_as_error() -> Iterator[None]:
    """Raise errors of torch for a rank that has ended or stands still as LostRankError, one line.

    Other errors pass as they are; without a group all do.
    """
    try:
        yield
    except LostRankError:
        raise
    except Exception as error:
        causes = list(_causes(error))
        if ranks().size == 1 or not any(map(_is_of_ranks, causes)):
            raise
        words = " ".join(str(cause).lower() for cause in causes)
        if "timed out" in words or "timeo" in words:
            line = (
                f"a rank has not answered for {_timeout:g} s (rank {ranks().rank} waits): "
                "expected every rank to take part. Look whether one stands still "
                "or its machine is out of reach, and start again"
            )
        else:
            line = (
                f"a rank has ended (its connection closed): expected all {ranks().size} of them to "
                "live. Look at what the other one says, and start again"
            )
        raise LostRankError(line) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield `error` and what it came of: a loader wraps what has happened to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_of_ranks(error: BaseException) -> bool:
    """Return whether a library says that a rank cannot be reached; gloo's errors have no type."""
    is_named = isinstance(error, RuntimeError) and any(n in str(error) for n in ("gloo", "NCCL"))
    return is_named or isinstance(error, dist.DistError | ConnectionError)
