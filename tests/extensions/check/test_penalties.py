"""A check under penalties: requests carry them, bets follow their law, faults are named."""

import pytest

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.errors import DataError
from spsbench.serving.engines import processor_fields
from spsbench.settings.processors import Processors
from tests.extensions.check.stubs import of_stub, weights
from tests.oracles.stub import Engine, Stub

PENALTY = 1.5
SCORED = weights(processors=Processors(repetition=PENALTY))


def checked(penalises="text", scored=SCORED, seed=0, **more):
    stub = Stub(Engine(penalises=penalises))
    return stub, of_stub(stub, scored, repetition_penalty=PENALTY, seed=seed, **more)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 60))]
)
def test_an_honest_server_holds(seed):
    stub, found = checked(seed=1000 * seed)
    assert found.law.verdict is AuditVerdict.HELD, found.law.line
    assert found.greedy.verdict is AuditVerdict.HELD, found.greedy.line
    assert any(body.get("repetition_penalty") == PENALTY for body in stub.asked)


@pytest.mark.parametrize(
    ("fault", "named"),
    [("", "without any of them"), ("answer", "with a repetition penalty of the answer alone")],
)
def test_a_server_that_ignores_the_penalty_or_the_prompt_is_found_and_named(fault, named):
    _, found = checked(fault)
    assert found.greedy.verdict is found.verdict is AuditVerdict.BIAS
    assert [note for note in found.notes if note.endswith(named)]
    assert fault or found.law.verdict is AuditVerdict.BIAS, found.law.line


def test_without_weights_nothing_is_decided():
    _, found = checked(scored=None)
    assert (found.law, found.greedy, found.verdict) == (None, None, AuditVerdict.UNKNOWN)
    assert [note for note in found.notes if "cannot be decided" in note]


@pytest.mark.parametrize(
    ("kind", "options", "fields"),
    [
        ("vllm", {"repetition_penalty": "1.1", "min_new_tokens": 3},
         {"repetition_penalty": 1.1, "min_tokens": 3}),
        ("vllm", {"repetition_penalty": "1.1:answer"}, None),
        ("sglang", {"repetition_penalty": "1.1:answer"}, {"repetition_penalty": 1.1}),
        ("sglang", {"repetition_penalty": "1.1"}, None),
        ("llama-server", {"repetition_penalty": "1.1"},
         {"repeat_penalty": 1.1, "repeat_last_n": -1}),
        ("llama-server", {"presence_penalty": 0.5}, None),
        ("openai", {"logit_bias": ((5, -2.0),)}, {"logit_bias": {"5": -2.0}}),
        ("openai", {"logit_bias": ((5, -200.0),)}, None),
        ("vllm", {"no_repeat_ngram": 3}, None),
    ],
)  # fmt: skip
def test_an_engine_is_sent_what_it_means_alike_and_the_rest_is_refused(kind, options, fields):
    if fields is not None:
        assert processor_fields(kind, options, "server") == fields
    else:
        with pytest.raises(DataError):
            processor_fields(kind, options, "server")
