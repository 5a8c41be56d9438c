"""Other projects' figures of rounds small enough to count by hand."""

import pytest

from spsbench.metrics.terms import TERMS, counts
from spsbench.settings.records import RoundRecord


def r(drafted, accepted, emitted):
    return RoundRecord(drafted, min(accepted + 1, drafted), accepted, emitted, None, 1.0, 0.5, 0.4)


# K = 3: one full acceptance, one rejection at the second, a round without a draft, one cut at 1
GENERATIONS = [[r(3, 3, 4), r(3, 1, 2)], [r(0, 0, 1), r(2, 2, 1)], []]


def test_every_projects_figures_by_hand():
    c = counts(GENERATIONS, 3)
    at = "per-position acceptance rate "
    expected = {
        "vllm": {
            "num_drafts": 3,
            "num_draft_tokens": 8,
            "num_accepted_tokens": 6,
            "mean acceptance length": 1 + 6 / 3,
            "draft acceptance rate": 6 / 8,
            at + "0": 3 / 3,
            at + "1": 2 / 3,
            at + "2": 1 / 3,
        },
        "vllm-async": {
            "num_drafts": 4,
            "num_draft_tokens": 12,
            "num_accepted_tokens": 6,
            "mean acceptance length": 1 + 6 / 4,
            "draft acceptance rate": 6 / 12,
            at + "0": 3 / 4,
            at + "1": 2 / 4,
            at + "2": 1 / 4,
        },
        "sglang": {
            "completion_tokens": 8,
            "spec_verify_ct": 4,
            "spec_accept_length": 8 / 4,
            "spec_accept_rate": 6 / 12,
        },
        "trtllm": {"acceptance_length": 8 / 4, "acceptance_rate": (8 - 4) / 12},
        "transformers": {"n_matches": 6 / 4},
        "llamacpp": {"draft_n": 8, "draft_n_accepted": 6},
        "specbench": {"#mean accepted tokens": 8 / 4},
        "specforge": {"average acceptance length": (6 / 2 + 2 / 2) / 2},
        "speedbench": {
            "Average_AL": (6 / 2 + 2 / 2) / 2,
            "conditional acceptance rate 1": 3 / 4,
            "conditional acceptance rate 2": 2 / 3,
            "conditional acceptance rate 3": 1 / 2,
        },
    }
    assert {name: term.figures(c) for name, term in TERMS.items()} == {
        name: pytest.approx(figures) for name, figures in expected.items()
    }


def test_nothing_drafted_and_nothing_at_all():
    plain = counts([[r(0, 0, 1)]], 0)
    found = TERMS["vllm"].figures(plain)
    assert found["mean acceptance length"] is found["draft acceptance rate"] is None
    assert found["num_drafts"] == 0
    found = TERMS["sglang"].figures(plain)
    assert (found["spec_accept_length"], found["spec_accept_rate"]) == (1, None)
    for term in TERMS.values():
        assert all(value in (None, 0) for value in term.figures(counts([], 4)).values())


def test_a_draft_longer_than_any_before_raises_k():
    c = counts([[r(2, 1, 2)], [r(3, 3, 4)]], 0)
    assert (c.k, c.accepted_at) == (3, [2, 1, 1])
