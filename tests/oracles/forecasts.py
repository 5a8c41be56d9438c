"""Tables of costs with round numbers, and texts and candidates of forecasts."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from spsbench.metrics.costs import PLAIN, BatchCosts, Costs, DrafterCosts, Rule
from spsbench.metrics.surfaces import Surface
from spsbench.planning.forecast.forecasts import forecast_all
from spsbench.planning.forecast.predictions import predict
from spsbench.settings.cell import constant
from spsbench.settings.method import Drafting, Method
from spsbench.store.traces import DraftOf, SampledDraft, Written

TURNS = 8
SMALL, NGRAM = map(Drafting.parse, ("model small", "ngram"))


def surface(
    seconds: Callable[[int, int], float],
    tokens: Sequence[int] = (1, 2, 5, 9),
    contexts: Sequence[int] = (100, 200),
    slow: Sequence[float] = (1.0,) * TURNS,
) -> Surface:
    """`seconds(tokens, context)` at every point, times what each turn was slower."""
    grid = [[seconds(n, context) for context in contexts] for n in tokens]
    return Surface(
        tuple(tokens), tuple(contexts), np.multiply.outer(np.array(slow), np.array(grid))
    )


def drafts(
    draft: float, fixed: float = 0.5, verifier: str = "sps", slow: Sequence[float] = (1.0,) * TURNS
) -> DrafterCosts:
    """A drafter that takes `draft` a token, of rounds that take `fixed` more than their parts."""
    k = (1, 4, 8)
    return DrafterCosts(
        verifier=verifier,
        drafted=surface(lambda n, _: n, k),
        draft=surface(lambda n, _: draft * n, k, slow=slow),
        unexplained=surface(lambda n, _: fixed, k),
    )


def rule() -> Rule:
    return Rule(
        sampling=surface(lambda n, _: 0.1 * n, contexts=[150]),
        verify=surface(lambda n, _: 0.2, contexts=[150]),
        host=surface(lambda n, _: 0.3, contexts=[150]),
    )


def costs(**more: object) -> Costs:
    """A target of 10 seconds and one more for each token more; drafts of 2 seconds a token."""
    values: dict[str, object] = {
        "passes": surface(lambda n, context: 9.0 + n + (context - 100) / 100),
        "arms": {PLAIN: drafts(0.0, verifier="match"), SMALL: drafts(2.0)},
        "rules": {"sps": rule(), "match": rule()},
        "setting": {"machine": {"cpu": "made up"}, "threads": 2},
    }
    return Costs(**{**values, **more})  # type: ignore[arg-type]


SIZES = (1, 2, 4, 8, 16, 32)
ROOM = 16  # rows of a pass that memory hides
WEIGHTS, CACHED = 1_000_000, 100


def pass_seconds(size, n):
    """A pass takes as long as reading the weights, then as long as its rows."""
    return 10.0 * max(1.0, size * n / ROOM)


def in_batches(draft=1.0):
    """Rounds that draft at `draft` a token for all texts, and take 0.1 more for each."""
    passes = [surface(lambda n, _, b=b: pass_seconds(b, n), range(1, 18)) for b in SIZES]
    plain = [surface(lambda k, _, b=b: 0.1 * b, (0,), (150,)) for b in SIZES]
    drafts = [surface(lambda k, _, b=b: draft * k + 0.1 * b, (1, 8), (150,)) for b in SIZES]
    rest = {PLAIN: tuple(plain), SMALL: tuple(drafts)}
    return BatchCosts(sizes=SIZES, passes=tuple(passes), rest=rest, cached=CACHED)


DRAFT = DraftOf(name=SMALL, sampled=True)
L = 24


def flat(**more):
    """Costs that do not depend on the context."""
    return costs(passes=surface(lambda n, context: 9.0 + n), **more)


def texts(alpha, count=10, length=L):
    """Texts of one acceptance probability, which is what Leviathan et al. assume."""
    found = []
    for number in range(count):
        ones = np.ones(length)
        found.append(
            (
                Written(
                    key=("c", str(number), 0),
                    prompt_tokens=100,
                    budget=10 * length,
                    finish="eos",
                    q=ones,
                    entropy=ones,
                ),
                SampledDraft(
                    p=alpha * ones, overlap=alpha * ones, entropy=ones, peak=ones, agrees=ones > 0
                ),
            )
        )
    return found


def candidate(k, verifier="sps"):
    return Method(SMALL, verifier, constant(k))


def found(alpha, own=None, count=8):
    every = [candidate(k, rule) for rule in ("sps", "block") for k in (1, 4, 8)]
    rules = {**flat().rules, "block": flat().rules["sps"]}
    own = flat() if own is None else own
    return forecast_all(every, {SMALL: (DRAFT, texts(alpha, count))}, replace(own, rules=rules))


def forecast(one, draft, traced, costs, new_prompts=None):
    """The prediction of one candidate."""
    (prediction,) = predict([one], draft, traced, costs, new_prompts)
    return prediction
