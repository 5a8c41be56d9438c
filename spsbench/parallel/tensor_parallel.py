"""Tensor parallel: a model over several ranks, whose weights transformers divides among them.

Rank 0 alone runs the loop. Before a pass over a shared model it sends a message that says which
pass; the other ranks run that pass too, and the model's own all-reduces do the rest. So ranks
cannot part by a rounding: nothing is decided twice.

`Channel` carries the messages, `share` and `SharedLM` are rank 0's side, `Follower` is the loop of
every other rank. `models/loader.py` loads the weights.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum, auto
from functools import wraps
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.engines.eager import KINDS, EagerLM
from spsbench.engines.session.engine_config import EngineConfig, set_engine_config
from spsbench.errors import UsageError
from spsbench.hardware.ranks import RANK_TIMEOUT, ranks
from spsbench.hardware.signals import held
from spsbench.parallel.process_group import (
    UNLIMITED,
    LostRankError,
    connect,
    lost_rank,
    lost_rank_as_error,
)

INLINE = 64  # numbers of a message; longer ones take a second one

SHARED = "its weights are shared by {} ranks, each layer of which ends in an all-reduce"


class Message(IntEnum):
    """Commands to the other ranks; whole numbers follow, then the tensors that a command needs."""

    END = auto()
    WAIT = auto()  # rank 0 has other work: nothing is to be done, and it is alive
    LOAD = auto()  # a model: a pickled request follows
    OPEN = auto()  # a session: of which model, its own number
    FEED = auto()  # a session: tokens
    KEEP = auto()  # a session: how many rows of its cache, and which after them
    CLOSE = auto()
    PASS = auto()  # a model without a cache: tokens
    EMBED = auto()  # the embeddings of a model: ids follow
    HEAD = auto()  # its head: hidden states follow


class Channel:
    """The messages of rank 0; the same calls in the same order on all ranks.

    Args:
        timeout: seconds that an exchange may take; rank 0's holds.
        within: seconds to wait for the other ranks.

    Raises:
        LostRankError: they do not come, or one of them has ended.
        UsageError: the environment of this rank cannot be.
    """

    def __init__(self, timeout: float, within: float) -> None:
        connect(timeout, within)
        self.busy = False  # inside a pass that all ranks run
        self.broken = False
        self._closed: list[int] = []
        self._turn, self._over = threading.Lock(), threading.Event()
        self._waiting = threading.Thread(target=self._keep_waiting, args=[timeout / 3], daemon=True)
        if ranks().rank == 0:
            self._waiting.start()

    def send(self, message: Message, numbers: Sequence[int] = ()) -> None:
        """Send a message from rank 0 to all others."""
        closed, self._closed = self._closed, []
        for session in closed:
            self._send(Message.CLOSE, [session])
        self._send(message, numbers)

    def close(self, session: int) -> None:
        """Send with the next message that a session is gone; nothing may be sent right now."""
        self._closed.append(session)

    def receive(self) -> tuple[Message, list[int]]:
        """Return the next message of rank 0, on every other rank."""
        head = torch.empty(INLINE, dtype=torch.int64)
        dist.broadcast(head, 0)
        message, count, *numbers = head.tolist()
        missing = count - (INLINE - 2)
        if missing > 0:
            more = torch.empty(missing, dtype=torch.int64)
            dist.broadcast(more, 0)
            numbers += more.tolist()
        return Message(message), numbers[:count]

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return rank 0's `tensor`; the other ranks give one of its shape and dtype."""
        tensor = tensor.contiguous()
        dist.broadcast(tensor, 0)
        return tensor

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Do a piece of work with all ranks; one that breaks off leaves them out of step for good.

        Raises:
            LostRankError: another rank has ended or stands still, now or before.
        """
        with self._turn:
            if self.broken:
                raise LostRankError(lost_rank("an exchange broke off"))
            self.broken = self.busy = True
            try:
                with lost_rank_as_error():
                    yield
                self.broken = False
            finally:
                self.busy = False

    def end(self) -> None:
        """Leave the group, once every rank has come to its end.

        Raises:
            LostRankError: another rank has ended before.
        """
        self._over.set()
        if self._waiting.is_alive():
            self._waiting.join()
        if not self.broken:
            with self.exchange():
                dist.barrier()
        dist.destroy_process_group()

    def _send(self, message: Message, numbers: Sequence[int]) -> None:
        head = torch.zeros(INLINE, dtype=torch.int64)
        packed = torch.tensor([message, len(numbers), *numbers[: INLINE - 2]], dtype=torch.int64)
        head[: len(packed)] = packed
        dist.broadcast(head, 0)
        if len(numbers) > INLINE - 2:
            dist.broadcast(torch.tensor(numbers[INLINE - 2 :], dtype=torch.int64), 0)

    def _keep_waiting(self, pause: float) -> None:
        """Send WAIT while rank 0 has other work, so that the receive of other ranks goes on."""
        while not self._over.wait(pause):
            if not self._turn.acquire(blocking=False):  # a pass is on its way
                continue
            try:
                if self.broken:
                    return
                with lost_rank_as_error():
                    self._send(Message.WAIT, [])
            except LostRankError:
                self.broken = True  # the next exchange says so
            finally:
                self._turn.release()


_channel: Channel | None = None


def channel(timeout: float = RANK_TIMEOUT, within: float = UNLIMITED) -> Channel:
    """Return the channel of this process; the first call waits for all ranks, as `Channel` does."""
    global _channel
    if _channel is None:
        _channel = Channel(timeout, within)
    return _channel


def end() -> None:
    """Let the other ranks go, from rank 0; also where it had no work for them."""
    rank_channel = channel()
    if not rank_channel.broken:
        with rank_channel.exchange():
            rank_channel.send(Message.END)
    rank_channel.end()


_NUMBERS: "weakref.WeakKeyDictionary[PreTrainedModel, int]" = weakref.WeakKeyDictionary()
_MODELS, _SESSIONS = count(), count()


def is_shared(model: PreTrainedModel) -> bool:
    """Return whether other ranks hold parts of `model`."""
    return model in _NUMBERS


def request_load(request: bytes) -> None:
    """Have the other ranks load their shares of a model; rank 0 then loads its own."""
    rank_channel = channel()
    rank_channel.send(Message.LOAD, [len(request)])
    rank_channel.broadcast(torch.frombuffer(bytearray(request), dtype=torch.uint8))


def share(model: PreTrainedModel, size: int) -> None:
    """Have whatever runs `model` on rank 0 from now on be run by all `size` ranks.

    Sessions send their own messages. A pass without a cache, the embeddings and the head are
    mirrored, since audits and drafters call them; other ways to run the model are refused there.
    """
    number = _NUMBERS[model] = next(_MODELS)
    KINDS[model] = SharedLM
    set_engine_config(model, EngineConfig(engine="eager", reason=SHARED.format(size)))
    _mirror(model, _send_pass(number))
    _mirror(model.get_input_embeddings(), _send_tensor(Message.EMBED, number))
    _mirror(model.get_output_embeddings(), _send_tensor(Message.HEAD, number))


class SharedLM(EagerLM):
    """Rank 0's session with a shared model; the arguments are those of `EagerLM`."""

    joins = False

    def _open(self) -> None:
        super()._open()
        self._number = next(_SESSIONS)
        self._channel = channel()
        with held(), self._channel.exchange():
            self._channel.send(Message.OPEN, [_NUMBERS[self.model], self._number])
        weakref.finalize(self, self._channel.close, self._number)

    def _forward(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Any:
        device = tokens.device.type != "cpu"  # then they are sent there, without the host
        sent = [] if device else tokens.tolist()
        nodes = [] if parents is None else parents.tolist()
        head = [self._number, len(tokens), keep, int(device), -1 if parents is None else len(nodes)]
        with held(), self._channel.exchange():
            self._channel.send(Message.FEED, [*head, *sent, *nodes])
            if device:
                tokens = self._channel.broadcast(tokens)
            return super()._forward(tokens, keep, parents)

    def _keep(self, length: int, nodes: list[int]) -> None:
        if length != self._length or nodes:
            with held(), self._channel.exchange():
                self._channel.send(Message.KEEP, [self._number, length, *nodes])
        super()._keep(length, nodes)


class Follower:
    """Every rank but the first: does what the messages of rank 0 say, until END.

    Args:
        load: from the request of a LOAD to this rank's share of the model.
        within: seconds to wait for the other ranks.
    """

    def __init__(self, load: Callable[[bytes], PreTrainedModel], within: float = UNLIMITED) -> None:
        self._load = load
        self._channel = channel(within=within)
        self._models: list[PreTrainedModel] = []
        self._sessions: dict[int, FollowerLM] = {}

    @torch.inference_mode()
    def serve(self) -> None:
        """Work until the end.

        Raises:
            LostRankError: another rank has ended or stands still.
            SpsError: a model that cannot be loaded here.
        """
        while True:
            with self._channel.exchange():
                message, numbers = self._channel.receive()
                if message is Message.END:
                    break
                if message is not Message.WAIT:
                    self._follow(message, numbers)
        self._channel.end()

    def _follow(self, message: Message, numbers: list[int]) -> None:
        first, arguments = numbers[0], numbers[1:]
        if message is Message.LOAD:
            request = self._channel.broadcast(torch.empty(first, dtype=torch.uint8))
            self._models.append(self._load(request.numpy().tobytes()))
        elif message is Message.OPEN:
            self._sessions[arguments[0]] = FollowerLM(self._models[first])
        elif message is Message.CLOSE:
            del self._sessions[first]
        elif message is Message.FEED:
            self._sessions[first].feed(self._channel, arguments)
        elif message is Message.KEEP:
            self._sessions[first].keep(arguments[0], arguments[1:])
        elif message is Message.PASS:
            model, keep, tokens = self._models[first], arguments[0], arguments[1:]
            ids = torch.tensor([tokens], device=model.device)
            model(input_ids=ids, use_cache=False, logits_to_keep=keep)
        else:
            self._run_part(message, self._models[first], arguments)

    def _run_part(self, message: Message, model: PreTrainedModel, shape: list[int]) -> None:
        embeds = message is Message.EMBED
        dtype = torch.int64 if embeds else model.dtype
        part = model.get_input_embeddings() if embeds else model.get_output_embeddings()
        part(self._channel.broadcast(torch.empty(shape, dtype=dtype, device=model.device)))


class FollowerLM(EagerLM):
    """A session of another rank: the passes of rank 0's, over its own share of the cache."""

    def feed(self, channel: Channel, numbers: list[int]) -> None:
        """Run the pass of a FEED."""
        m, keep, device, nodes = numbers[:4]
        if device:
            place = self.device
            tokens = channel.broadcast(torch.empty(m, dtype=torch.int64, device=place))
        else:
            tokens = torch.tensor(numbers[4 : 4 + m])
        parents = torch.tensor(numbers[len(numbers) - nodes :], dtype=torch.int64)
        self._forward(tokens, keep, None if nodes < 0 else parents)

    def keep(self, length: int, nodes: list[int]) -> None:
        """Keep the rows of a KEEP."""
        self._keep(length, nodes)
        self._length = length + len(nodes)


Send = Callable[[Channel, tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]


def _mirror(module: nn.Module, send: Send) -> None:
    """Send every call of `module` that is no part of a pass which the other ranks run already."""
    plain = module.forward

    @wraps(plain)
    def forward(*args: Any, **named: Any) -> Any:
        rank_channel = channel()
        if rank_channel.busy:
            return plain(*args, **named)
        with held(), rank_channel.exchange():
            return plain(*send(rank_channel, args, named), **named)

    module.forward = forward


def _send_pass(number: int) -> Send:
    """Return how to send a pass over a whole text, without a cache."""

    def send(
        rank_channel: Channel, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, ...]:
        ids = named.get("input_ids")
        plain = not args and named.get("use_cache") is False
        if (
            ids is None
            or len(ids) > 1
            or not plain
            or not named.keys() <= {"input_ids", "use_cache", "logits_to_keep"}
        ):
            rank_channel.broken = False  # nothing was sent
            raise UsageError(
                "a pass over a shared model that the other ranks cannot follow (`parallel`): "
                "expected sessions of an engine. Choose `decoder` native"
            )
        rank_channel.send(Message.PASS, [number, named.get("logits_to_keep", 0), *ids[0].tolist()])
        return args

    return send


def _send_tensor(message: Message, number: int) -> Send:
    """Return how to send a call of a part that takes one tensor."""

    def send(
        rank_channel: Channel, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, ...]:
        (tensor,) = args
        rank_channel.send(message, [number, *tensor.shape])
        return (rank_channel.broadcast(tensor),)

    return send
