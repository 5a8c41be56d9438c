"""Other projects' figures of rounds small enough to count by hand."""

import pytest

from spsbench.figures.terms import TERMS, counts
from spsbench.settings.records import RoundRecord


def r(drafted: int, accepted: int, emitted: int) -> RoundRecord:
    return RoundRecord(drafted, min(accepted + 1, drafted), accepted, emitted, None, 1.0, 0.5, 0.4)


# K = 3: one full acceptance, one rejection at the second, a round without a draft, one cut at 1
GENERATIONS = [[r(3, 3, 4), r(3, 1, 2)], [r(0, 0, 1), r(2, 2, 1)], []]


def test_the_counts() -> None:
    c = counts(GENERATIONS, 3)
    assert (c.generations, c.tokens, c.rounds, c.drafting_rounds) == (2, 8, 4, 3)
    assert (c.drafted, c.accepted, c.accepted_at) == (8, 6, (3, 2, 1))


def test_every_projects_figures_by_hand() -> None:
    c = counts(GENERATIONS, 3)
    at = "per-position acceptance rate "
    expected = {
        "vLLM": {
            "mean acceptance length": 1 + 6 / 3,
            "draft acceptance rate": 6 / 8,
            at + "0": 3 / 3,
            at + "1": 2 / 3,
            at + "2": 1 / 3,
        },
        "vLLM (asynchronous or V2)": {
            "mean acceptance length": 1 + 6 / 4,
            "draft acceptance rate": 6 / 12,
            at + "0": 3 / 4,
            at + "1": 2 / 4,
            at + "2": 1 / 4,
        },
        "SGLang": {"spec_accept_length": 8 / 4, "spec_accept_rate": 6 / 12},
        "TensorRT-LLM": {"acceptance_length": 8 / 4, "acceptance_rate": (8 - 4) / 12},
        "transformers": {"n_matches": 6 / 4},
        "llama.cpp": {"draft_n": 8, "draft_n_accepted": 6},
        "Spec-Bench": {"#mean accepted tokens": 8 / 4},
        "SpecForge": {"average acceptance length": (6 / 2 + 2 / 2) / 2},
    }
    assert {name: term(c) for name, term in TERMS.items()} == {
        name: pytest.approx(figures) for name, figures in expected.items()
    }


def test_nothing_drafted_and_nothing_at_all() -> None:
    plain = counts([[r(0, 0, 1)]], 0)
    assert TERMS["vLLM"](plain) == {"mean acceptance length": None, "draft acceptance rate": None}
    assert TERMS["SGLang"](plain) == {"spec_accept_length": 1, "spec_accept_rate": None}
    for term in TERMS.values():
        assert all(value in (None, 0) for value in term(counts([], 4)).values())
