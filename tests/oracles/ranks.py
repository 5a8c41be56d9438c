"""Texts of ranks that share a model, beside those of one process."""

from dataclasses import replace

import torch

from spsbench.engines.eager import Eager, check_rollback
from spsbench.loop.decode import decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Limits
from spsbench.methods.drafters.frontier import Frontier
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.drafters.shaped import Tree
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.models.loader import load_model, load_shared
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from tests.oracles.models import tiny
from tests.parallel.team import team

HOW = ModelSpec("", dtype="float64")
GREEDY, SAMPLED = Warp(temperature=0.0), Warp(temperature=1.0)
PROMPT = [1, 2, 3]
USUAL = (Eager(),)


def made(folder, architecture, **more):
    """A checkpoint, and a draft model for it."""
    shape = {"num_key_value_heads": 4, **more}
    tiny(architecture, **shape).save_pretrained(folder)
    return folder, tiny(architecture, noise=0.3, **shape)


def texts(target, draft, engines=USUAL):
    """Of chains and trees, greedy and sampled."""
    found = []
    for engine in engines:
        for warp in (GREEDY, SAMPLED):
            chain = ModelDrafter(Eager().session(draft))
            tree = Tree().over(Frontier(Eager().session(draft)))
            for drafter, verifier in ((chain, Sps()), (tree, Match())):
                parts = {"drafter": drafter, "verifier": verifier, "schedule": Constant(3)}
                rounds = decode(
                    PROMPT,
                    target=engine.session(target),
                    warp=warp,
                    noise=PhiloxStream(5),
                    limits=Limits(16),
                    **parts,
                )
                found.append([token for done in rounds for token in done.tokens])
    return found


def whole(model):
    """What audits ask: a pass without a cache, and the parts that drafters use."""
    ids = torch.tensor([[1, 2, 3, 4]])
    rows = model(input_ids=ids, use_cache=False, logits_to_keep=2).logits[0]
    hidden = model.get_input_embeddings()(ids)[0]
    return torch.cat([rows, model.get_output_embeddings()(hidden)])


def check(size, folder, architecture, engines=USUAL, **more):
    folder, draft = made(folder, architecture, **more)
    alone = load_model(folder, HOW)

    def work():
        model = load_shared(folder, replace(HOW, parallel=f"tp:{size}"), Access())
        with torch.inference_mode():
            check_rollback(model)
            share = model.model.layers[0].mlp.up_proj.weight.to_local().shape[0]
            return texts(model, draft, engines), whole(model).tolist(), share

    (found, rows, share), codes = team(size, work)
    assert codes == [0] * size
    assert found == texts(alone, draft, engines)
    with torch.inference_mode():
        assert torch.allclose(
            torch.tensor(rows, dtype=torch.float64), whole(alone), rtol=0, atol=1e-12
        )
    assert share == alone.model.layers[0].mlp.up_proj.weight.shape[0] // size
