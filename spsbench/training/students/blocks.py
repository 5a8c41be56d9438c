"""What a head of Falcon foretells along texts: blocks that end at every place of them.

B texts of T tokens; row t holds the feature of token t and the embedding of token t + 1. A block
that ends at row e foretells the tokens e + 2 .. e + 1 + k: slot s by row e - k + 1 + s, so row r of
any block foretells token r + k + 1, and rows of a batch (`students.student.Batch`) are told that
are k further on.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.methods.drafters.falcon import FalconNetwork, State
from spsbench.training.students.growing import Growing


class Told(NamedTuple):
    """Some rows of a batch, and the features that are foretold of them."""

    rows: Tensor  # [N]
    features: Tensor  # [N, H]


def foretold(
    network: FalconNetwork, features: Tensor, embedded: Tensor, depth: int
) -> Iterator[Told]:
    """By depth, for blocks that end at every place, and for those that follow them along the text.

    Keys and values of the text are the same wherever blocks begin, so they are made once.

    Args:
        network: of the head.
        features: [B, T, H] of the target.
        embedded: [B, T, H] of the token after each.
        depth: how many, whole blocks of them.
    """
    texts, length, _ = features.shape
    k, count, device = network.block, length - 1, features.device
    ends = torch.arange(k - 1, max(count, k - 1), device=device)

    def told(d: int, made: Tensor) -> Told:
        """[B, E, H] of the token d + 1 after the pending one, by where the first block ends."""
        fits = max(min(len(ends), length - k - d), 0)
        first = torch.arange(texts, device=device)[:, None] * length
        return Told((first + ends[:fits] + 1 + d).flatten(), made[:, :fits].flatten(0, 1))

    x, state = _read(network, features[:, :-1], embedded[:, :-1], depth > k)
    place = torch.arange(count, device=device).repeat(texts)
    text = torch.arange(texts, device=device).repeat_interleave(count)
    cache = Growing()
    held, same, found = network.note(x, place, cache), text[:, None] == text, []
    for slot in range(k):
        sees = same & (place <= place[:, None] + k - 1 - slot)
        made = network.foretell(x, place, held, sees).view(texts, count, -1)
        found.append(made[:, slot : slot + len(ends)])
        yield told(slot, found[-1])
    fed = torch.stack(found, 2)  # [B, E, k, H]
    state = _at(state, k - 1)
    rounds = texts * len(ends)
    own = torch.arange(rounds, device=device).repeat_interleave(k)
    whose = torch.arange(texts, device=device).repeat_interleave(len(ends))
    before = (whose[:, None] == text) & (place <= ends.repeat(texts)[:, None])
    sees, mine = before.repeat_interleave(k, 0), own[:, None] == own
    for block in range(1, -(-depth // k)):
        at = ends[:, None] + 1 + (block - 1) * k + torch.arange(k, device=device)  # [E, k]
        after = embedded[:, at.clamp(max=length - 1)]
        made, state = network.rows(_by_slot(fed), _by_slot(after), state)
        x, where = made.transpose(0, 1).flatten(0, 1), at.repeat(texts, 1).flatten()
        held, sees = network.note(x, where, cache), torch.cat([sees, mine], 1)
        fed = network.foretell(x, where, held, sees).view(texts, len(ends), k, -1)
        for slot in range(k):
            yield told(block * k + slot, fed[:, :, slot])


def aligned(
    network: FalconNetwork, features: Tensor, embedded: Tensor, offset: int, shown: Tensor
) -> list[Told]:
    """By slot, for blocks that begin at rows `offset`, `offset` + k ..., some answers being shown.

    A slot that is shown has the feature that it is to foretell, and the token after it, in place of
    its own; the other slots of its block see that. It tells nothing itself: what it would learn is
    to copy.

    Args:
        network: of the head.
        features: as in `foretold`.
        embedded: likewise.
        offset: 0 to k - 1.
        shown: [k, B * T] bool, by slot and by the row after the one where a block ends.
    """
    texts, length, _ = features.shape
    k, count, device = network.block, length - 1, features.device
    row = torch.arange(count, device=device)
    slot = (row - offset) % k
    end = row - slot + k - 1
    whole = (row >= offset) & (end < count)
    place = (end + 1).clamp(max=length - 1)
    seen = (shown.view(k, texts, length)[slot, :, place] & whole[:, None]).T  # [B, R]
    answer = (row + k).clamp(max=length - 1)
    features, embedded = (
        torch.where(seen[..., None], each[:, answer], each[:, :-1]) for each in (features, embedded)
    )
    x, _ = _read(network, features, embedded, False)
    at = row.repeat(texts)
    text = torch.arange(texts, device=device).repeat_interleave(count)
    upto = torch.where(whole, end, row).repeat(texts)
    sees = (text[:, None] == text) & (at <= upto[:, None])
    made = network.foretell(x, at, network.note(x, at, Growing()), sees)
    tells = (whole & (row + k < length)).repeat(texts) & ~seen.flatten()
    chosen = [(tells & (slot.repeat(texts) == s)).nonzero()[:, 0] for s in range(k)]
    return [Told((text * length + at + k)[mine], made[mine]) for mine in chosen]


def _read(
    network: FalconNetwork, features: Tensor, embedded: Tensor, every: bool
) -> tuple[Tensor, State]:
    """[B, R, H] each -> [B * R, H] rows of the LSTM, and with `every` its states after each row.

    Those are [2, R, B, H].
    """
    features, embedded = features.transpose(0, 1), embedded.transpose(0, 1)
    rows, texts, _ = features.shape
    if not every:
        made, state = network.rows(features, embedded, network.start(texts))
        return made.transpose(0, 1).flatten(0, 1), state
    state, found, states = network.start(texts), [], []
    for t in range(rows):
        one, state = network.rows(features[t : t + 1], embedded[t : t + 1], state)
        found.append(one)
        states.append(state)
    outputs, cells = (torch.stack(part, 1) for part in zip(*states, strict=True))
    return torch.cat(found).transpose(0, 1).flatten(0, 1), (outputs, cells)


def _at(state: State, first: int) -> State:
    """[2, R, B, H] states after each row -> [2, B * E, H], from row `first` on."""
    outputs, cells = (
        part[:, first:].transpose(1, 2).flatten(1, 2) if part.ndim == 4 else part for part in state
    )
    return outputs, cells


def _by_slot(given: Tensor) -> Tensor:
    """[B, E, k, H] -> [k, B * E, H]."""
    return given.flatten(0, 1).transpose(0, 1)
