"""From a cell and its models to an examiner, and a third opinion on the examiner itself."""

from collections.abc import Sequence

import numpy as np
import torch
import transformers

from spsbench.audit.statistical.evidence import Floats
from spsbench.audit.statistical.examine import Examiner
from spsbench.audit.statistical.forward import PRECISE, Scorer, plain
from spsbench.audit.statistical.suspects import DraftLaw, Likeliest, Proposal, Suspect, Text
from spsbench.loop.site import Drawn, Weights
from spsbench.methods.drafters.slem import StringDrafter
from spsbench.methods.resolve import plan_of
from spsbench.methods.site import LoadedSite
from spsbench.models.cache import Loaded
from spsbench.plugins import make
from spsbench.settings.cell import WARP, Cell, WarpSettings

AGREE = 1e-3  # of logits, and of total variation, in float32
OPINIONS = 4  # texts that are looked at


def examiner_of(cell: Cell, loaded: Loaded) -> Examiner:
    """The examiner of texts of `cell`; one of ArS and SpS alike, so that they are comparable."""
    own = not (cell.models.target.trust_remote_code or cell.models.random)
    return Examiner(
        Scorer(loaded.target, loaded.vocab_size, own=own),
        suspect_of(cell, loaded, own=own),
        cell.sampling.warp,
        frozenset(loaded.eos),
        budget=cell.sampling.max_new_tokens,
        ends=not cell.sampling.ignore_eos,
        seed=cell.sampling.seed % 2**32,
    )


def suspect_of(cell: Cell, loaded: Loaded, *, own: bool) -> Suspect:
    """What a faulty method would pull the text to."""
    if loaded.draft is not None and loaded.draft_tokenizer is None:
        scorer = Scorer(loaded.draft, loaded.vocab_size, own=own)
        return DraftLaw(scorer, cell.sampling.warp)
    if loaded.vocabularies is not None:  # its text says what it would write next
        foreign = LoadedSite(cell, loaded, StringDrafter.plan())
        return Proposal(lambda: StringDrafter.open(foreign))
    plan = plan_of(cell.method.drafter)
    if plan.drawn is Drawn.POINT and plan.weights is Weights.NONE and not plan.target:
        site = LoadedSite(cell, loaded, plan)
        return Proposal(lambda: make("drafters", cell.method.drafter, site))
    return Likeliest()


def trusted(examiner: Examiner, loaded: Loaded, texts: Sequence[Text]) -> bool:
    """Whether transformers, asked for logits and for its own warps, agrees with the examiner."""
    tolerance = AGREE if loaded.target.dtype in PRECISE else 0.5
    for text in texts[:OPINIONS]:
        rows = examiner.scorer.logits(text.prompt, text.tokens)
        if not len(rows):
            continue
        whole = [*text.prompt, *text.tokens[: len(rows) - 1]]
        theirs = plain(loaded.target, whole, len(rows))[:, : rows.shape[1]].numpy()
        if np.abs(theirs - rows).max() > tolerance * max(1.0, float(np.abs(rows).max())):
            return False
        apart = np.abs(warped(rows, examiner) - examiner.laws(rows).law).sum(-1) / 2
        if np.median(apart) > AGREE:  # a tie at the edge may move single rows
            return False
    return True


def warped(logits: Floats, examiner: Examiner) -> Floats:
    """[n, V] laws by transformers' own warpers, named after the options: `TopKLogitsWarper`."""
    scores, usual = torch.from_numpy(np.array(logits, np.float64)), WarpSettings()
    for name in WARP:
        value = getattr(examiner.warp, name)
        if value != getattr(usual, name):
            warper = getattr(transformers, f"{name.title().replace('_', '')}LogitsWarper")
            scores = warper(value)(None, scores)
    law: Floats = scores.softmax(-1).numpy()
    return law
