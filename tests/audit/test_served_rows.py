"""`sps verify rows URL`: rows of servers that score blocks as single tokens, or do not."""

import math
from dataclasses import replace

import numpy as np
import pytest

from spsbench.audit.pass_report import Difference, PassReport
from spsbench.audit.served_rows import flips, gap_of, verify_served_rows
from spsbench.cli.verify.passes import table
from spsbench.errors import DataError, UnavailableError
from spsbench.settings.commands import ServedRows
from tests.serving import stub
from tests.serving.stub import SIZE, TARGET, Engine, Stub, of_table, serving

NOISE = np.random.default_rng(5).normal(size=(64, SIZE))


def with_noise(scale):
    """Score so that the rows of a block after its first differ by noise."""
    plain = of_table(TARGET)

    def score(prompt, tokens):
        rows = plain(prompt, tokens).copy()
        rows[1:] += scale * NOISE[1 : len(rows)]
        return rows

    return score


def engine(scale=0.0, k=0):
    return Engine(target=with_noise(scale), k=k)


def alone(stub):
    with serving(stub) as url:
        return verify_served_rows(url)


def beside(stub, plain, **options):
    with serving(stub) as url, serving(plain) as baseline:
        return verify_served_rows(url, ServedRows(baseline=baseline, **options))


def kinds(report):
    return {one.way: one.kind for one in report.comparisons}


@pytest.mark.parametrize("schema", ["vllm", "sglang"])
def test_one_server_whose_prompts_have_the_rows_of_its_texts_holds(schema):
    report = alone(Stub(engine(), schema))
    assert kinds(report) == {"server, as a prompt": Difference.NONE}
    (one,) = report.comparisons
    assert (one.size, one.flips, one.gap, one.module) == (24, 0, 0.0, "")
    assert one.tokens > 100
    assert report.held
    assert report.valid
    assert report.line == "held: servers: same bits"
    assert schema in report.model


@pytest.mark.parametrize("schema", ["vllm", "sglang"])
def test_two_servers_are_compared_in_blocks_and_as_prompts(schema):
    report = beside(Stub(engine(k=3), schema), Stub(engine(), schema))
    assert set(kinds(report)) == {
        "server, its own text",
        "server, as a prompt",
        "baseline, as a prompt",
    }
    assert set(kinds(report).values()) == {Difference.NONE}
    assert report.comparisons[0].size == 4


def test_noise_within_rounding_is_told_from_another_law():
    rounding = beside(Stub(engine(1e-5, k=3)), Stub(engine()))
    assert kinds(rounding)["server, its own text"] is Difference.ROUNDING
    assert kinds(rounding)["baseline, as a prompt"] is Difference.NONE
    assert rounding.held
    half = beside(Stub(engine(0.01, k=3)), Stub(engine()))
    assert kinds(half)["server, its own text"] is Difference.ROUNDING
    other = beside(Stub(engine(0.01, k=3)), Stub(engine()), rounding=1e-3)
    assert kinds(other)["server, its own text"] is Difference.TWO_LAWS
    assert kinds(other)["baseline, as a prompt"] is Difference.NONE
    assert not other.held
    assert other.line == "bias: servers: two laws"


def test_a_prompt_whose_rows_belong_to_the_token_before_is_found():
    class Shifted(Engine):
        def prompt_logits(self, prompt):
            rows = super().prompt_logits(prompt)
            return [rows[0], *rows[:-1]]

    report = alone(Stub(Shifted(k=0)))
    (one,) = report.comparisons
    assert one.kind is Difference.TWO_LAWS
    assert one.flips >= one.tokens / 2
    assert not report.held


def test_a_server_without_prompt_logprobs_needs_a_baseline():
    unknown = Stub(engine(k=3), "openai")
    with pytest.raises(DataError, match="expected vLLM or SGLang, or a plain server"):
        alone(unknown)
    report = beside(unknown, Stub(engine(), "openai"))
    assert kinds(report) == {"server, its own text": Difference.NONE}
    assert report.comparisons[0].size == 0  # it counts no drafts
    assert "│     ? │" in table(report)


def test_a_server_that_states_nothing_is_refused():
    with pytest.raises(DataError, match=r"no log-probabilities .*Start it with them"):
        alone(Stub(engine(), logprobs=False))
    with pytest.raises(UnavailableError, match="no server"):
        verify_served_rows("http://127.0.0.1:9", ServedRows(retries=0))


def test_log_probabilities_behind_a_temperature_of_0_are_refused(monkeypatch):
    def one_hot(logits, ids, top):
        return [[(0.0, i), *((-math.inf, j) for j in range(3) if j != i)] for i in ids]

    monkeypatch.setattr(stub, "rows_of", one_hot)
    with pytest.raises(DataError, match="one token alone"):
        alone(Stub(engine()))


def test_rows_that_are_all_alike_prove_nothing():
    report = alone(Stub(Engine(target=np.tile(TARGET[0], (SIZE, 1)), k=0)))
    assert not report.valid
    assert report.line.startswith("not valid: rows of neighbouring tokens")


def test_a_gap_is_that_of_shared_tokens_or_of_the_last_that_a_row_lists():
    one, other = [("a", -0.1), ("b", -3.0)], [("a", -0.3), ("c", -2.0)]
    assert gap_of([(one, one)], 2) == 0.0
    assert gap_of([(one, other)], 2) == pytest.approx(1.0)  # c is at most as likely as b in one
    assert gap_of([(one, [("c", -0.5), ("d", -1.5)])], 2) == pytest.approx(2.5)
    assert gap_of([(one, other)], 3) == pytest.approx(0.2)  # rows that are not full bound nothing
    masked = [("a", -0.1), ("b", -math.inf)]
    assert gap_of([(masked, masked)], 2) == 0.0
    assert gap_of([(masked, one)], 2) == pytest.approx(997.0)
    assert gap_of([], 2) == 0.0


def test_a_tie_is_no_other_likeliest_token():
    assert not flips([("a", -1.0), ("b", -1.0)], [("b", -1.0), ("a", -1.0)])
    assert flips([("a", -1.0)], [("b", -0.9), ("a", -1.1)])
    assert not flips([], [("a", -1.0)])


def test_what_rounding_explains_is_five_times_that_in_company_or_what_is_given():
    class InCompany(Engine):
        """States other numbers where another text is under way."""

        def round(self, made, fed, temperature, rng, n, request, cut):
            with self.met:
                self.met.wait_for(lambda: len(self.slots) > 1, timeout=0.001)
                others = len(self.slots) > 1
            super().round(made, fed, temperature, rng, n, request, cut)
            if others:
                made.logits[-1] = made.logits[-1] + 0.01 * NOISE[0]

    report = alone(Stub(InCompany(k=0)))
    assert 0.01 < report.rounding < 0.1
    assert report.explained == pytest.approx(max(5 * report.rounding, 0.1))
    plain = alone(Stub(engine()))
    assert (plain.rounding, plain.explained) == (0.0, 0.1)


def test_a_control_that_rounding_explains_is_not_valid():
    report = PassReport("x", (), moved=0.4, rounding=0.1, explained=0.5)
    assert not report.valid
    assert replace(report, moved=0.6).valid
