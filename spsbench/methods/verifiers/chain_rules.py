"""Variants of `sps` for chains: a token passes by its ratio q / p, or at a given rate.

`rejection` (Leviathan et al. 2023, appendix A.2) proposes one token, and a plain draw from q takes
its place: q / M + (1 - 1 / M) q = q. `lenient` (appendix A.5) keeps tokens where q is only near p;
the paper leaves open what is drawn after a rejection: here the residual of `sps`, with which no
token comes more often than q / l. `ensemble` is `sps` towards a mixture of target and draft, as
transformers' `assistant_ensemble_weight`. `synthetic` keeps tokens at a given rate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.errors import DataError
from spsbench.loop.sampling import send
from spsbench.loop.types import Draft, Guarantee, Noise
from spsbench.methods.verifiers.sps import by_ratio, chain_probs, ratios
from spsbench.methods.verifiers.walk_down import (
    CHAINS,
    SAMPLED_CHAINS,
    Tested,
    WalkDown,
    drawn_from,
    row_at,
    uniforms,
)
from spsbench.metrics.rates import alpha_for
from spsbench.plugins import INSIDE, SHARE
from spsbench.spec import K_MAX
from spsbench.untrusted import cut, is_finite_number, read_text


@dataclass(frozen=True)
class Rejection(WalkDown):
    """A verifier that keeps x with q / (M p), M = max q / p, and draws from q otherwise."""

    accepts = SAMPLED_CHAINS

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        """Return which tokens pass with q / (M p), none without probs; and a draw from q's row."""
        passed = (u := uniforms(draft, q, noise)) < 0
        if len(u) and draft.probs is not None:
            # A token without mass in q and p is 0 / 0; one that only q has makes M infinite.
            greatest = (q[:-1] / draft.probs).nan_to_num(0.0, posinf=torch.inf).amax(-1)  # [N] M
            passed = u < ratios(draft, q) / greatest
        return (passed, drawn_from(lambda end: row_at(q, end), noise))


@dataclass(frozen=True)
class Lenient(WalkDown):
    """A verifier that keeps x with min(1, q / (l p)) and draws from (q - p)+ after a rejection.

    A drafted slot's probs are min(p, q / l) + (1 - sum min(p, q / l)) (q - p)+ / sum (q - p)+, at
    most q / l; that of the bonus token is q. `l` 1 is `sps`. At temperature 0 x passes where its
    probability at temperature 1 is at least l times the greatest, else the likeliest token comes.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    accepts = SAMPLED_CHAINS

    ranges: ClassVar = {"l": (INSIDE[0], 1)}

    l: float = 0.5  # noqa: E741 - the paper's letter

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        return by_ratio(draft, q, noise, self.l)

    def relax(self, draft: Draft, q: Tensor, sure: Tensor) -> Tensor:
        """Return `q` [N+1, V], one-hot in rows whose drafted token reaches l times the peak.

        `sure` [N+1, V], the target's probs at temperature 1, has the peaks. Where `l` is 1, `q`
        itself is returned.
        """
        if self.l == 1:
            return q
        at = draft.tokens[:, None]
        rows = sure[: len(at)]
        near = rows.gather(1, at) >= self.l * rows.amax(-1, keepdim=True)  # [N, 1]
        drafted = torch.zeros_like(rows).scatter_(1, at, 1.0)
        return torch.cat([torch.where(near, drafted.to(q.dtype), q[: len(at)]), q[len(at) :]])


@dataclass(frozen=True)
class Ensemble(WalkDown):
    """A verifier that runs `sps` with the target m = w p + (1 - w) q wherever there is a p.

    A drafted slot's probs are m, so its total variation from q is w TV(p, q). The bonus token has
    no p and comes from q: its frequency depends on K, and so does the distribution of a text. `w`
    0 is `sps`, 1 keeps every draft.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    accepts = SAMPLED_CHAINS

    ranges: ClassVar = {"w": SHARE}

    w: float = 0.3

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        mixed = self.w * chain_probs(draft, q)[:-1] + (1 - self.w) * q[:-1]
        return by_ratio(draft, torch.cat([mixed, q[-1:]]), noise)


@dataclass(frozen=True)
class Synthetic(WalkDown):
    """A verifier that keeps drafted tokens by chance, whatever they are: for timing only.

    The token after the kept ones is the target's likeliest; the output is meaningless. A token is
    kept with chance `alpha`, or, where `length` is given, with the chances of `synthetic_rates` for
    the tokens drafted in this round. `length` is the mean of a round's tokens, or the path of a
    file of such means by K (`read_golden`; `curve` names one of its curves).
    """

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    accepts = CHAINS

    ranges: ClassVar = {"alpha": SHARE, "length": (1, K_MAX + 1)}

    alpha: float = 0.8
    length: float | str = ""
    shape: str = "minvar"
    curve: str = ""

    def __post_init__(self) -> None:
        if self.shape not in (shapes := ("minvar", "geometric", "normal")):
            raise ValueError(f"shape is {self.shape!r}: expected {', '.join(shapes)}")
        if self.length != "":
            self._rates(1)  # so that a file is refused before a model is loaded

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        u = uniforms(draft, q, noise)
        chances = self.alpha if self.length == "" else send(self._rates(len(u)), q.device)
        return (u < chances, lambda end: row_at(q, end).argmax())

    def _rates(self, n: int) -> Tensor:
        """Return `synthetic_rates` [n] of `n` drafted tokens; a `length` must be given.

        A file that lacks `n` has its mean by its next larger K, as at the end of a text. DataError:
        it has none so large, or as `read_golden`.
        """
        length = self.length
        if isinstance(length, str):
            means = read_golden(length, self.curve)
            if n > (most := max(means)):
                raise DataError(f"K = {n} ({length}): expected up to {most}, as it has. Lower `k`")
            length = means[min(k for k in means if k >= n)]
        return torch.tensor(synthetic_rates(self.shape, length, n))


@cache
def synthetic_rates(shape: str, length: float, n: int) -> tuple[float, ...]:
    """Return [n] chances to keep a drafted token if those before it are kept.

    The number kept has the mean `length` - 1, or n where that is less. `minvar`: it is the integer
    below or above (vLLM, ATOM, TensorRT-LLM; SGLang's match-expected, there one draw for a whole
    batch). `geometric`: all chances are equal (llama.cpp). Any other shape: it is a normal number
    of that mean and deviation 1, rounded and cut to 0 .. n, which moves the mean (SGLang's
    multinomial). A chance that never matters is 0.
    """
    if shape == "geometric":
        alpha = alpha_for(length, n)
        return (1.0 if alpha is None else alpha,) * n
    if shape == "minvar":
        reached = [min(max(length - place, 0.0), 1.0) for place in range(1, n + 1)]
    else:
        reached = [NormalDist().cdf(length - place - 0.5) for place in range(1, n + 1)]
    return tuple(b / a if a else 0.0 for a, b in pairwise([1.0, *reached]))


@cache
def read_golden(path: str, curve: str) -> Mapping[int, float]:
    """Return K -> mean tokens of a round, read from a file of InferenceX's golden lengths.

    Its YAML is {model: {curve: {K: mean}}}, a curve being `thinking_on` or the like. `curve` ""
    takes the only curve of all models. DataError: unreadable, another form, no such curve or
    several, no K in it, or a K that is no integer, or a mean not in 1 .. K + 1.
    """
    import yaml

    what = "golden acceptance lengths: {model: {thinking_on: {K: mean}}}"
    text = read_text(path, what, 1 << 20)
    try:
        models = list(yaml.safe_load(text).values())
        every = [(name, means) for curves in models for name, means in curves.items()]
        chosen = [means for name, means in every if curve in ("", name)]
        if len(chosen) != 1 or not chosen[0]:
            raise ValueError(f"curve={curve!r}, of {', '.join(str(name) for name, _ in every)}")
        (means,) = chosen
        for k, mean in means.items():
            if type(k) is not int or not is_finite_number(mean) or not 1 <= mean <= k + 1:
                raise ValueError(f"{k}: {mean}")
        return {k: float(means[k]) for k in sorted(means)}
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, RecursionError) as e:
        raise DataError(f"{cut(str(e), 120)} ({path}): expected {what}. Correct it") from e
