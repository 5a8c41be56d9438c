"""Draft models along logged texts: one pass over a text gives p of every logged token."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from spsbench.errors import UsageError
from spsbench.loop.sampling import Warp
from spsbench.loop.types import LM
from spsbench.metrics.intervals import Floats
from spsbench.models.cache import ModelCache
from spsbench.plugins import make
from spsbench.settings.cell import WarpSettings
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.execution import Access

PIECE = 256  # positions whose laws are in memory at a time


class AlongText(NamedTuple):
    """What a draft model says along a text."""

    p: Floats  # [L] probability of each logged token
    agrees: NDArray[np.bool_]  # [L] whether it is the likeliest token


@dataclass(frozen=True)
class DraftModel:
    """A draft model that reads logged ids, so that its vocabulary must be the target's."""

    name: str
    lm: LM
    vocab_size: int
    tokenizer: Any

    @classmethod
    def load(cls, name: str, options: dict[str, Any], access: Access) -> "DraftModel":
        """Load a model by name, as a plain target.

        Args:
            options: of cells: `dtype`, `device`, `weights`, `engine` ...

        Raises:
            SpsError: no model that can be loaded.
        """
        cell = make_cell(**{**options, "target": name, "draft": None, "drafter": "none", "k": 0})
        loaded = ModelCache(access).load(cell)
        if loaded.target is None:
            raise UsageError(f"draft {name}: expected a model that is loaded here. Name another")
        engine = make("engines", cell.target.engine)
        session = engine.session(loaded.target, vocab_size=loaded.vocab_size)
        return cls(name, session, loaded.vocab_size, loaded.tokenizer)

    def fits(self, prompt: Sequence[int], answer: Sequence[int]) -> str:
        """Return why a text cannot be read; empty if it can."""
        length = len(prompt) + len(answer)
        if max(*prompt[:1], *answer, max(prompt, default=0)) >= self.vocab_size:
            return f"token ids beyond the {self.vocab_size:,} of {self.name}"
        if self.lm.limit is not None and length > self.lm.limit:
            return f"longer than the context of {self.name}"
        if not prompt:
            return f"no prompt, which {self.name} needs"
        return ""

    def along(self, prompt: Sequence[int], answer: Sequence[int], warp: WarpSettings) -> AlongText:
        """Return p of the answer's tokens under a warp, after the prompt."""
        laws_of = Warp(**asdict(warp))
        text = torch.tensor([*prompt, *answer], dtype=torch.int64)
        first = len(prompt)
        self.lm.commit(0)
        if first > 1:
            self.lm.append(text[: first - 1], keep=0)
        p, agrees = [], []
        for begin in range(first, len(text), PIECE):
            end = min(begin + PIECE, len(text))
            logits = self.lm.append(text[begin - 1 : end - 1], keep=end - begin).logits
            tokens = text[begin:end].to(logits.device)
            laws = laws_of(logits)
            p.append(laws.gather(1, tokens[:, None])[:, 0].double().cpu().numpy())
            agrees.append((logits.argmax(-1) == tokens).cpu().numpy())
        return AlongText(np.concatenate(p), np.concatenate(agrees))
