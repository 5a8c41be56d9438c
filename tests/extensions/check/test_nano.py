"""`sps check` against the stub over the bundled models: a real model's laws and a real draft's."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.extensions.check.bets import Mode
from spsbench.extensions.check.weights import load_weights
from tests.extensions.check.stubs import SEEN, of_stub
from tests.oracles.stub import DEFECTS, Engine, Stub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def models():
    return load_weights("nano"), load_weights("nano-draft")


def over_nano(models, defect=None, **more):
    """A stub over nano and its draft model; one thread scores for all of the server."""
    target, draft = models
    one = ThreadPoolExecutor(1)  # torch keeps workers for each thread that calls it

    def guarded(model):
        return lambda prompt, tokens: one.submit(model.score, prompt, tokens).result()

    engine = Engine(guarded(target), guarded(draft), defect, size=len(target.texts), wait=1)
    return Stub(engine, encode=target.encode, **more)


def check(stub, *scored, **more):
    given = {"parts": ("law",), "length": 24, "bias": 0.05, "timeout": 900.0}
    return of_stub(stub, *scored, **given | more)


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_of_a_real_model_is_found_by_its_weights(models, defect):
    """That of no residual follows the draft model, which is near nano: its weights show it."""
    draft = models[1] if defect == "no residual" else None
    found = check(over_nano(models, defect), models[0], draft)
    assert found.law.mode is Mode.WEIGHTS
    assert found.verdict is AuditVerdict.BIAS, found.law.line


# Swapped laws of two models this near are found by logprobs alone in some runs only.
@pytest.mark.parametrize("defect", sorted({*SEEN} - {"no residual", "draft laws swapped"}))
def test_one_logprob_a_token_is_enough_where_a_defect_can_be_seen(models, defect):
    found = check(over_nano(models, defect, most=1))
    assert found.law.mode is Mode.STATED
    assert found.verdict is AuditVerdict.BIAS, found.law.line


def test_an_honest_server_of_a_real_model_holds(models):
    found = check(over_nano(models), *models, bias=0.1, parts=("law", "greedy"))
    assert found.verdict is AuditVerdict.HELD, found.law.line
    assert found.acceptance.kept[0] > 0.5 * found.acceptance.rounds
