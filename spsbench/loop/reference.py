"""Algorithms 1 and 2 of Chen et al. 2023, line for line: no cache, no plug-ins; the oracle.

The paper reuses t and advances n inside the loop it indexes with n + t; here the prefix x simply
grows. Its draws come from the same streams as the loop's, so that the two agree token for token:
u from DRAFT, r from ACCEPT, the last draw from FINAL. K is clamped to the tokens left, less the one
that every round adds.
"""

from collections.abc import Callable

from torch import Tensor

from spsbench.loop.sampling import residual, sample
from spsbench.loop.types import NoiseStream, Purpose

Model = Callable[[list[int]], Tensor]
"""[n] tokens -> [n, V] distributions: row i is the distribution of the token after token i."""


def autoregressive_sampling(q: Model, x: list[int], T: int, noise: NoiseStream) -> list[int]:
    """Run Algorithm 1 (ArS); return a copy of prompt `x`, continued until it has `T` tokens."""
    x, step = list(x), 0
    while len(x) < T:  # while n < T do
        u = noise.round(step).uniform(Purpose.FINAL, 1)
        x.append(int(sample(q(x)[-1], u[0])))  # x_{n+1} ~ q(x | x_1, ..., x_n)
        step += 1
    return x


def speculative_sampling(
    q: Model, p: Model, x: list[int], K: int, T: int, noise: NoiseStream
) -> list[int]:
    """Run Algorithm 2 (SpS), up to `K` drafts of `p`; return a copy of `x`, of `T` tokens."""
    x, step = list(x), 0
    while len(x) < T:  # while n < T do
        k = min(K, T - len(x) - 1)
        fresh = noise.round(step)
        u, r = fresh.uniform(Purpose.DRAFT, k), fresh.uniform(Purpose.ACCEPT, k)
        v = fresh.uniform(Purpose.FINAL, 1)
        draft: list[int] = []
        for t in range(k):  # for t = 1 : K do
            p_t = p(x + draft)[-1]  # sample the draft auto-regressively
            draft.append(int(sample(p_t, u[t])))
        Q = q(x + draft)[-k - 1 :]  # in parallel, K + 1 sets of logits
        P = p(x + draft)[-k - 1 :]
        for t in range(k):  # for t = 1 : K do
            x_t = draft[t]
            if r[t] < min(1.0, float(Q[t, x_t] / P[t, x_t])):  # r < min(1, q / p)
                x.append(x_t)  # x_{n+t} <- x~_{n+t}
            else:
                x.append(int(sample(residual(Q[t], P[t]), v[0])))  # x_{n+t} ~ (q - p)+
                break  # and exit for loop
        else:  # if all tokens are accepted
            x.append(int(sample(Q[k], v[0])))  # sample the extra token
        step += 1
    return x
