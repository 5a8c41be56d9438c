"""Cases of the enumeration over sessions with real caches."""

from functools import cache

from spsbench.audit.exact.cases import Case
from spsbench.engines.eager import EagerLM
from tests.oracles.models import laws, tiny
from tests.oracles.written_rules import RULES


def law_of(target):
    """The model's law after a prefix, from passes without a cache."""

    @cache
    def law(prefix):
        return tuple(laws(target, list(prefix))[-1].softmax(-1).tolist())

    return law


def over_caches(name, verifier, architecture, kind=EagerLM, draft_kind=EagerLM, **fields):
    """A case over real models of three tokens, with a session of its own for each path."""
    target = tiny(architecture, vocab=3, context=16)
    draft = tiny(architecture, vocab=3, context=16, noise=0.3)
    return Case(
        verifier,
        RULES[name](),
        law_of(target),
        law_of(draft),
        3,
        lm=lambda case, text, is_target: kind(target) if is_target else draft_kind(draft),
        **fields,
    )
