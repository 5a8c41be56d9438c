"""A model over several ranks: rank 0 runs it as any other, and the others each of its passes."""

import weakref
from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.engines.channel import Channel, Word, channel
from spsbench.engines.choice import Choice, remember
from spsbench.engines.eager import KINDS, EagerLM
from spsbench.engines.interrupts import held
from spsbench.errors import UsageError

_NUMBERS: "weakref.WeakKeyDictionary[PreTrainedModel, int]" = weakref.WeakKeyDictionary()
_MODELS, _SESSIONS = count(), count()

SHARED = "its weights are shared by {} ranks, each layer of which ends in an all-reduce"


def is_shared(model: PreTrainedModel) -> bool:
    """Whether other ranks hold parts of `model`."""
    return model in _NUMBERS


def lead(model: PreTrainedModel, size: int) -> None:
    """Rank 0: whatever runs `model` from now on is run by all `size` ranks.

    Sessions say what they do themselves. A pass without a cache, the embeddings and the head are
    watched, since audits and drafters call them; what else could run the model is refused there.
    """
    number = _NUMBERS[model] = next(_MODELS)
    KINDS[model] = SharedLM
    remember(model, Choice(engine="eager", reason=SHARED.format(size)))
    _mirror(model, _say_pass(number))
    _mirror(model.get_input_embeddings(), _say_tensor(Word.EMBED, number))
    _mirror(model.get_output_embeddings(), _say_tensor(Word.HEAD, number))


def ask_to_load(request: bytes) -> None:
    """Rank 0: have the others load their shares of a model; the caller then loads its own."""
    team = channel()
    team.say(Word.LOAD, [len(request)])
    team.shared(torch.frombuffer(bytearray(request), dtype=torch.uint8))


class SharedLM(EagerLM):
    """Rank 0's session with a shared model; the arguments are those of `EagerLM`."""

    def _open(self) -> None:
        super()._open()
        self._number = next(_SESSIONS)
        self._channel = channel()
        with held(), self._channel.together():
            self._channel.say(Word.OPEN, [_NUMBERS[self.model], self._number])
        weakref.finalize(self, self._channel.closes, self._number)

    def _forward(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Any:
        device = tokens.device.type != "cpu"  # then they are sent there, without the host
        told = [] if device else tokens.tolist()
        nodes = [] if parents is None else parents.tolist()
        head = [self._number, len(tokens), keep, int(device), -1 if parents is None else len(nodes)]
        with held(), self._channel.together():
            self._channel.say(Word.FEED, [*head, *told, *nodes])
            if device:
                tokens = self._channel.shared(tokens)
            return super()._forward(tokens, keep, parents)

    def _keep(self, length: int, nodes: list[int]) -> None:
        if length != self._length or nodes:
            with held(), self._channel.together():
                self._channel.say(Word.KEEP, [self._number, length, *nodes])
        super()._keep(length, nodes)


class Hands:
    """The other ranks: does what rank 0 says, until it says that it is done.

    Args:
        load: from the request of a LOAD to this rank's share of the model.
    """

    def __init__(self, load: Callable[[bytes], PreTrainedModel]) -> None:
        self._load = load
        self._channel: Channel = channel()
        self._models: list[PreTrainedModel] = []
        self._sessions: dict[int, _Follower] = {}

    @torch.inference_mode()
    def serve(self) -> None:
        """Work until the end.

        Raises:
            LostRankError: another rank has ended.
            SpsError: a model that cannot be loaded here.
        """
        while True:
            with self._channel.together():
                word, numbers = self._channel.hear()
                if word is Word.END:
                    break
                self._do(word, numbers)
        self._channel.end()

    def _do(self, word: Word, numbers: list[int]) -> None:
        first, rest = numbers[0], numbers[1:]
        if word is Word.LOAD:
            request = self._channel.shared(torch.empty(first, dtype=torch.uint8))
            self._models.append(self._load(request.numpy().tobytes()))
        elif word is Word.OPEN:
            self._sessions[rest[0]] = _Follower(self._models[first])
        elif word is Word.CLOSE:
            del self._sessions[first]
        elif word is Word.FEED:
            self._sessions[first].feed(self._channel, rest)
        elif word is Word.KEEP:
            self._sessions[first].keep(rest[0], rest[1:])
        elif word is Word.PASS:
            model, keep, tokens = self._models[first], rest[0], rest[1:]
            ids = torch.tensor([tokens], device=model.device)
            model(input_ids=ids, use_cache=False, logits_to_keep=keep)
        else:
            self._part(word, self._models[first], rest)

    def _part(self, word: Word, model: PreTrainedModel, shape: list[int]) -> None:
        embeds = word is Word.EMBED
        kind = torch.int64 if embeds else model.dtype
        part = model.get_input_embeddings() if embeds else model.get_output_embeddings()
        part(self._channel.shared(torch.empty(shape, dtype=kind, device=model.device)))


class _Follower(EagerLM):
    """A session of another rank: the passes of rank 0's, over its own share of the cache."""

    def feed(self, channel: Channel, numbers: list[int]) -> None:
        m, keep, device, nodes = numbers[:4]
        if device:
            place = self.device
            tokens = channel.shared(torch.empty(m, dtype=torch.int64, device=place))
        else:
            tokens = torch.tensor(numbers[4 : 4 + m])
        parents = torch.tensor(numbers[len(numbers) - nodes :], dtype=torch.int64)
        self._forward(tokens, keep, None if nodes < 0 else parents)

    def keep(self, length: int, nodes: list[int]) -> None:
        self._keep(length, nodes)
        self._length = length + len(nodes)


Tell = Callable[[Channel, tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]


def _mirror(module: nn.Module, tell: Tell) -> None:
    """Tell the others of every call of `module` that is no part of a pass they know of."""
    plain = module.forward

    @wraps(plain)
    def forward(*args: Any, **named: Any) -> Any:
        team = channel()
        if team.busy:
            return plain(*args, **named)
        with held(), team.together():
            return plain(*tell(team, args, named), **named)

    module.forward = forward


def _say_pass(number: int) -> Tell:
    """Of a whole text, without a cache."""

    def tell(team: Channel, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        ids = named.get("input_ids")
        plain = not args and named.get("use_cache") is False
        if (
            ids is None
            or len(ids) > 1
            or not plain
            or not named.keys() <= {"input_ids", "use_cache", "logits_to_keep"}
        ):
            team.broken = False  # nothing was said
            raise UsageError(
                "a pass over a shared model that the other ranks cannot follow (--parallel): "
                "expected sessions of an engine. Choose --decoder native"
            )
        team.say(Word.PASS, [number, named.get("logits_to_keep", 0), *ids[0].tolist()])
        return args

    return tell


def _say_tensor(word: Word, number: int) -> Tell:
    """Of a part that takes one tensor."""

    def tell(team: Channel, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        (tensor,) = args
        team.say(word, [number, *tensor.shape])
        return (team.shared(tensor),)

    return tell
