"""The optimiser: Muon for the stacked matrices, Adam for the embedding and the norms."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# Keller Jordan's quintic; five steps bring all singular values near 1.
QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5
MOMENTUM = 0.95
BETAS = (0.9, 0.95)
ADAM_EPS = 1e-10


def orthogonalise(matrix: Tensor) -> Tensor:
    """Nearly the orthogonal factor of each matrix [..., M, N], in float32.

    `torch.optim.Muon` does this in bfloat16, one matrix at a time, which a CPU without bfloat16
    instructions has to emulate.
    """
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    x = x.flatten(0, -3) / (x.flatten(0, -3).norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = QUINTIC
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.view(*matrix.shape[:-2], *x.shape[-2:])
    return x.mT if tall else x


class Optimiser:
    """Updates named parameters in place; `state` holds all that a checkpoint needs."""

    def __init__(self, parameters: Mapping[str, Tensor], *, decay: float) -> None:
        """Parameters of three or more dimensions are stacks of matrices, the others Adam's."""
        self.parameters = parameters
        self.decay = decay
        self.state: dict[str, Tensor] = {"step": torch.zeros((), dtype=torch.int64)}
        for name, parameter in parameters.items():
            self.state[f"{name}.mean"] = torch.zeros_like(parameter)
            if parameter.ndim < 3:
                self.state[f"{name}.square"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update with learning rate `rate` from the gradients, which it clears.

        Muon's update is scaled to the root mean square that Adam's would have, 0.2 (Liu et al.
        2025, Muon is scalable for LLM training, section 2.2), so one rate serves both.

        Raises:
            ValueError: a parameter has no gradient.
        """
        self.state["step"] += 1
        count = int(self.state["step"])
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                raise ValueError(f"parameter {name} has no gradient")
            gradient, mean = parameter.grad, self.state[f"{name}.mean"]
            if parameter.ndim >= 3:
                mean.lerp_(gradient, 1 - MOMENTUM)
                update = orthogonalise(gradient.lerp(mean, MOMENTUM))
                scale = 0.2 * max(parameter.shape[-2:]) ** 0.5
                parameter.mul_(1 - rate * self.decay).add_(update, alpha=-rate * scale)
            else:
                square = self.state[f"{name}.square"]
                mean.lerp_(gradient, 1 - BETAS[0])
                square.lerp_(gradient.square(), 1 - BETAS[1])
                spread = (square / (1 - BETAS[1] ** count)).sqrt_().add_(ADAM_EPS)
                parameter.addcdiv_(mean, spread, value=-rate / (1 - BETAS[0] ** count))
            parameter.grad = None
