"""Parts of a check for agents: honest servers of several shapes hold, planted faults are named."""

import numpy as np
import pytest

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.extensions.check import page
from spsbench.extensions.check.logprobs import how_apart
from tests.extensions.check.stubs import of_stub, weights
from tests.oracles.agents import FAULTS, SHAPES, agent
from tests.oracles.stub import Engine, Stub


def checked(part, shape="vllm", fault=None):
    stub = Stub(Engine(), schema=shape.split()[0])
    stub.trouble = agent(stub, shape, fault)
    return of_stub(stub, parts=(part,))


@pytest.mark.parametrize("shape", SHAPES)
def test_honest_servers_hold(shape):
    for part in ("tools", "stream"):
        result = checked(part, shape)
        assert result.modes[part].verdict is AuditVerdict.HELD, page.notes(result)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault):
    part, words = FAULTS[fault]
    result = checked(part, fault=fault)
    assert result.verdict is AuditVerdict.BIAS
    assert any(words in note for note in page.notes(result)), page.notes(result)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lp, accepted: lp, "equal"),
        (lambda lp, accepted: lp - 1.5, "off by a constant of -1.5 nats"),
        (lambda lp, accepted: 0.0 if accepted else lp, "off at accepted tokens alone"),
        (lambda lp, accepted: -9999.0 if accepted else lp, "missing at"),
        (lambda lp, accepted: 2 * lp, "off at"),
    ],
)
def test_stated_log_probabilities_are_compared_with_the_weights(change, line):
    rng = np.random.default_rng(0)
    scored = np.log(rng.dirichlet(np.ones(8), 400).max(1))
    accepted = rng.random(400) < 0.6
    stated = np.array([change(*pair) for pair in zip(scored, accepted, strict=True)])
    assert (how_apart(stated, scored, accepted) or "equal").startswith(line)


def test_a_server_that_states_0_for_accepted_tokens_is_named():
    def edit(choice):
        if listed := choice.get("logprobs"):
            own = listed["token_logprobs"]
            listed["token_logprobs"] = [0.0 if i % 2 else lp for i, lp in enumerate(own)]

    honest = of_stub(Stub(Engine()), weights(), parts=("logprobs",))
    spoiled = of_stub(Stub(Engine(), edit=edit), weights(), parts=("logprobs",))
    assert honest.verdict is AuditVerdict.HELD, page.notes(honest)
    assert spoiled.verdict is AuditVerdict.BIAS
    assert any("stated as 0.0" in note for note in page.notes(spoiled))
