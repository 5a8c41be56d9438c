"""Top-k selection (Stern et al. 2018, arXiv 1811.03115, section 5.1)."""

from dataclasses import dataclass

from torch import Tensor

from spsbench.methods.verifiers.allowing import Allowing


@dataclass(frozen=True)
class TopK(Allowing):
    """Keep x while it is one of the target's `n` likeliest tokens; then draw from q.

    Lossy, and without a bound: the law of a drafted slot is `Allowing.law` with that set. Tokens as
    likely as the n-th are in it, those of no probability never. The rule sees the law after the
    warp: at temperature 0 that holds one token, and this is greedy decoding. To let the second best
    pass as the paper does, ask for a low temperature instead.
    """

    n: int = 2

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n is {self.n}: expected 1 or more")

    def allowed(self, q: Tensor) -> Tensor:
        """The likeliest, if they can come at all."""
        least = q.topk(min(self.n, q.shape[-1])).values[..., -1:]
        return (q >= least) & (q > 0)
