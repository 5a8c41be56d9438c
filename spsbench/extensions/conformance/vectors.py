"""Test vectors of the exact rules: inputs of single rounds, and what each rule makes of them.

An engine in any language reads the file, gives its own rule the uniforms, and compares. All numbers
are multiples of powers of two, which float32 holds too, and no verdict changes when uniforms move
by `MARGIN`, so that rounding decides nothing. `docs/reference/vectors.md` has the format.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.audit.exact.draft_kinds import FORKS, LEAVES, SIBLINGS, TREE
from spsbench.audit.exact.tables import ToyPair
from spsbench.errors import UsageError
from spsbench.loop.types import Draft, Drawn, Guarantee, Purpose, Verifier
from spsbench.plugins import make
from spsbench.registry import BUILT_IN
from spsbench.spec import Spec
from spsbench.store.atomic import check_replaceable, replace_file

VERSION = 1  # counted up when the format or the cases change
CHAINS = tuple(tuple(range(-1, n - 1)) for n in range(7))
SHAPES = (*CHAINS, SIBLINGS, LEAVES[:3], LEAVES, TREE, FORKS, (-1, 0, 0, 1, 1, 2))
PER_SLOT, TRIES = 4, 24  # vectors on the edge of each uniform, and rounds until one depends on it
STEPS, GRID = 64, 1 << 16  # probabilities are multiples of 1 / STEPS, uniforms of 1 / GRID
ZEROS = 0.2  # share of uniforms that are 0, where nothing impossible may pass
MARGIN = 1e-5
KINDS = (*("plain",) * 5, "ties", "zeros", "equal", "disjoint")


Numbers = dict[Purpose, list[float]]
"""The uniforms of each purpose."""


class Given:
    """The noise of one round: numbers, all moved by `shift`; it notes each request."""

    def __init__(self, numbers: Numbers, shift: float = 0.0) -> None:
        self.numbers, self.shift = numbers, shift
        self.requests: list[tuple[Purpose, int]] = []

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """Return [n] float64 in [0, 1), the purpose's first numbers moved; note the request."""
        self.requests.append((purpose, n))
        moved = torch.tensor(self.numbers[purpose][:n], dtype=torch.float64) + self.shift
        return moved.clamp(0.0, 1 - 2.0**-53)


def write_vectors(path: Path, specs: Sequence[Spec] = ()) -> int:
    """Write the vectors of `specs`, or of our exact rules; return their number.

    `path` ends in .json, or in .txt for plain lines. UsageError: another ending, or a rule that
    changes the distribution; WriteError: the file cannot be written.
    """
    if path.suffix not in (".json", ".txt"):
        raise UsageError(f"`vectors` {path}: expected a name that ends in .json or .txt")
    check_replaceable(path)
    ours = [Spec(e.name) for e in BUILT_IN if e.kind == "verifiers" and e.guarantee == "exact"]
    vectors = [vector for spec in specs or ours for vector in vectors_of(spec)]
    text = f"spsbench-vectors {VERSION} {len(vectors)}\n" + "".join(map(in_lines, vectors))
    if path.suffix == ".json":
        rows = ",\n".join(json.dumps(vector, separators=(",", ":")) for vector in vectors)
        text = f'{{"format": "spsbench-vectors", "version": {VERSION}, "vectors": [\n{rows}\n]}}\n'
    replace_file(path, text.encode())
    return len(vectors)


def vectors_of(spec: Spec) -> Iterator[dict[str, Any]]:
    """Yield the vectors of a rule, with every shape and way to draw that it accepts.

    Each has a seed of its own; a slot of which no seed of `TRIES` gives a vector has none.
    UsageError: the rule changes the distribution.
    """
    rule: Verifier = make("verifiers", spec)
    if rule.guarantee is not Guarantee.EXACT:
        raise UsageError(f"`verifier` {spec} with `vectors`: expected an exact rule")
    for shape in SHAPES:
        chain = shape in CHAINS
        for drawn in Drawn if len(shape) > 0 else [Drawn.IID]:
            if rule.refuses(drawn, not chain) or (chain and drawn is Drawn.DISTINCT):
                continue
            for slot in range(PER_SLOT * (len(shape) + 1)):
                seeds = (f"{shape}/{drawn.value}/{slot}/{number}" for number in range(TRIES))
                tried = (vector_of(rule, shape, drawn, slot, seed) for seed in seeds)
                if vector := next(filter(None, tried), None):
                    yield {"rule": str(spec), **vector}


def vector_of(
    rule: Verifier, shape: Sequence[int], drawn: Drawn, slot: int, seed: str
) -> dict[str, Any] | None:
    """Return one vector; None where it does not depend on the slot, or rounding could change it.

    `shape` [N] has the parents of the drafted tokens; `seed` names the distributions, the draft and
    the uniforms. Of U uniforms, in the order of their requests, number `slot` % U is moved to the
    edge of the verdict: above it where `slot` // U is odd, else below. The vector has drawn,
    parents, draft, q [N + 1, V], p of the draft or None, uniforms (purpose and numbers by request),
    accepted, tokens and, again, q, p and uniforms in `hex`. None too where siblings run out.
    """
    stream = random.Random(seed)
    drafted = round_of(shape, drawn, stream)
    if drafted is None:
        return None
    draft, q = drafted

    def verdict(numbers: Numbers, shift: float = 0.0) -> tuple[list[int], list[int]]:
        path, token, _ = rule(draft, q, Given(numbers, shift))
        nodes = path[path >= 0]
        return nodes.tolist(), [*draft.tokens[nodes].tolist(), int(token)]

    power = stream.choice([0.3, 1.0, 3.0])  # rejections, or acceptance
    numbers = {
        purpose: [
            int(GRID * stream.random() ** power) / GRID * (stream.random() > ZEROS) for _ in q
        ]
        for purpose in (Purpose.ACCEPT, Purpose.FINAL, Purpose.PLAIN)
    }
    noise = Given(numbers)
    rule(draft, q, noise)
    places = [(numbers[purpose], i) for purpose, n in noise.requests for i in range(n)]
    times, place = divmod(slot, len(places))
    if not sharpen(*places[place], lambda: verdict(numbers), above=times % 2 == 1):
        return None
    nodes, tokens = verdict(numbers)
    if any(verdict(numbers, shift) != (nodes, tokens) for shift in (MARGIN, -MARGIN)):
        return None
    p = None if draft.probs is None else draft.probs.tolist()
    uniforms = [(purpose.name.lower(), numbers[purpose][:n]) for purpose, n in noise.requests]
    inputs = {"q": q.tolist(), "p": p, "uniforms": uniforms}
    words = {"drawn": drawn.value, "parents": list(shape), "draft": draft.tokens.tolist()}
    hexed = {"hex": {name: in_hex(value) for name, value in inputs.items()}}
    return words | inputs | {"accepted": len(nodes), "tokens": tokens} | hexed


def sharpen(row: list[float], slot: int, verdict: Callable[[], Any], *, above: bool) -> bool:
    """Move `row[slot]`, in [0, 1), to just above or below a change of the verdict; False: none.

    `verdict` reads `row`, which is left changed in either case: `row[slot]` is a multiple of
    1 / GRID, the largest below 1 where there is no change.
    """

    def at(step: int) -> Any:
        row[slot] = step / GRID
        return verdict()

    low, high = 0, GRID - 1
    first = at(low)
    if at(high) == first:
        return False
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) == first else (low, middle)
    row[slot] = (min(high + 1, GRID - 1) if above else max(low - 1, 0)) / GRID
    return True


def round_of(
    shape: Sequence[int], drawn: Drawn, stream: random.Random
) -> tuple[Draft, Tensor] | None:
    """Draw a draft of a shape and [N + 1, V] q of toy models, context first; None: no token left.

    Deterministic and distinct siblings differ; a deterministic draft has no probs.
    """
    vocab = max(map(shape.count, shape), default=1) + stream.randrange(1, 3)
    pair = ToyPair(vocab, stream.randrange(1 << 30), KINDS)
    paths: list[tuple[int, ...]] = [()]
    rows: list[list[float]] = []
    for node, parent in enumerate(shape):
        rows.append(rounded(pair.p(paths[parent + 1])))
        siblings = {paths[other + 1][-1] for other in range(node) if shape[other] == parent}
        weights = [1.0] * vocab if drawn is Drawn.POINT else rows[-1]
        if drawn is not Drawn.IID:
            weights = [w * (x not in siblings) for x, w in enumerate(weights)]
        if not any(weights):
            return None
        paths.append((*paths[parent + 1], *stream.choices(range(vocab), weights)))
    q = torch.tensor([rounded(pair.q(path)) for path in paths], dtype=torch.float64)
    p = None if drawn is Drawn.POINT else torch.tensor(rows, dtype=torch.float64).view(-1, vocab)
    tokens = torch.tensor([path[-1] for path in paths[1:]], dtype=torch.int64)
    return Draft(tokens, p, None if shape in CHAINS else torch.tensor(shape), drawn), q


def rounded(row: Sequence[float]) -> list[float]:
    """Return probabilities as multiples of 1 / STEPS that sum to 1, by the largest remainders."""
    counts = [int(x * STEPS) for x in row]
    order = sorted(range(len(row)), key=lambda x: counts[x] - row[x] * STEPS)
    for x in order[: STEPS - sum(counts)]:
        counts[x] += 1
    return [count / STEPS for count in counts]


def in_hex(value: Any) -> Any:
    """Return nested lists with each float as hexadecimal digits, such as 0x1.8p-2; others stay."""
    if isinstance(value, (list, tuple)):
        return [in_hex(part) for part in value]
    if not isinstance(value, float):
        return value
    digits, _, exponent = value.hex().partition("p")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}p{exponent}"


def in_lines(vector: dict[str, Any]) -> str:
    """Return a vector as lines by `docs/reference/vectors.md`, numbers in hex, and a blank one."""
    sizes = len(vector["draft"]), len(vector["q"][0])
    rows: list[tuple[Any, ...]] = [("vector", vector["rule"], vector["drawn"], *sizes)]
    rows += [(name, *vector[name]) for name in ("parents", "draft")]
    rows += [(name, *row) for name in ("q", "p") for row in vector["hex"][name] or ()]
    rows += [("u", purpose, *numbers) for purpose, numbers in vector["hex"]["uniforms"]]
    rows += [("accepted", vector["accepted"]), ("tokens", *vector["tokens"])]
    return "\n".join(" ".join(map(str, row)) for row in rows) + "\n\n"
