"""Plans from logs through the command: a run as a log, the same run as a file, and refusals."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import spsbench
from spsbench.errors import DataError, MismatchError
from spsbench.metrics.costs import PLAIN
from spsbench.metrics.costs_file import dumps
from spsbench.metrics.rates import alpha_for
from spsbench.models.folder import local_folder
from spsbench.planning.forecast.predictions import predict
from spsbench.planning.forecast.rounds import Acceptances, room_of, rounds
from spsbench.planning.logs.entries import Request
from spsbench.planning.logs.plan_log import plan_log
from spsbench.planning.logs.texts import target_chances
from spsbench.planning.logs.tokens import log_tokenizer
from spsbench.settings.cell import WarpSettings
from spsbench.settings.execution import Access
from spsbench.store.traces import read_traces
from spsbench.tables import read_table
from tests.oracles.forecasts import costs, drafts
from tests.oracles.servers import PROMPTS
from tests.oracles.stub import Engine, Stub, serving

pytest_plugins = ()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A traced run of the bundled pair: four samples, temperature 1."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    spsbench.bench("xsum:data=mini", out=folder, limit=2, k=2, max_new_tokens=16, record="trace")
    return folder


def as_lines(run, tmp_path):
    """The plain texts of a run as a log of ids and log-probabilities."""
    from spsbench.planning.logs.from_models import run_requests

    path = tmp_path / "log.jsonl"
    with path.open("w") as file:
        for request in run_requests(run, Access()):
            line = {
                "id": request.id,
                "prompt_token_ids": list(request.prompt),
                "token_ids": list(request.answer),
                "logprobs": np.log(request.probabilities).tolist(),
                "temperature": request.temperature,
            }
            file.write(json.dumps(line) + "\n")
    return path


def taus(answer):
    return {
        (row["drafter"], row["rule"], row["k"]): row["tau"]["mean"]
        for row in answer.values()["rows"]
    }


def test_a_run_as_a_log_is_predicted_as_its_traces_are(run, tmp_path):
    """A draft model that reads the texts anew: the same rounds, drafts and speed-ups."""
    traces = read_traces([run])
    ((name, draft),) = traces.drafts.items()
    table = costs(arms={PLAIN: drafts(0.0), name: drafts(2.0)})
    path = tmp_path / "costs.json"
    path.write_text(dumps(table))
    of_log = plan_log(run, draft=["nano-draft"], k="1..4", costs=path).plan.rows
    as_log = plan_log(as_lines(run, tmp_path), draft=["nano-draft"], k="1..4")
    served, plain = taus(as_log), traces.of(name)
    assert as_log.plan.written == sum(len(text.q) for text, _ in plain)
    assert as_log.plan.of_servers == as_log.plan.requests == len(plain)
    for candidate, row in of_log.items():
        traced = candidate._replace(drafting=name)
        (of_trace,) = predict([traced], draft, traces.of(name), table)
        for figure in ("tau", "speedup", "ms"):
            mine, other = (getattr(each, figure).mean for each in (row.prediction, of_trace))
            assert mine == pytest.approx(other, rel=1e-5), (candidate, figure)
        for figure in ("drafted", "work"):
            mine, other = (getattr(each, figure) for each in (row.prediction, of_trace))
            assert mine == pytest.approx(other, rel=1e-5), (candidate, figure)
        expected = tokens = 0.0  # of a server, whose pass over the prompt gives the first token
        for text, trace in traces.of(name):
            acceptances = Acceptances.sampled(
                trace.p[1:], text.q[1:], candidate.verifier, candidate.k
            )
            tokens += len(text.q) - 1
            expected += rounds(acceptances, candidate.k, room_of(len(text.q) - 1)).weights.sum()
        key = "nano-draft", candidate.verifier, candidate.k
        assert served[key] == pytest.approx(tokens / expected, rel=1e-5)


def test_a_run_under_a_penalty_is_predicted_as_its_traces_are(tmp_path):
    """A draft model drafts under the penalty if that is an option, else without, as is said."""
    folder, by = tmp_path / "run", {"repetition_penalty": 1.5}
    how = {"limit": 2, "k": 2, "max_new_tokens": 16, "record": "trace"}
    spsbench.bench("xsum:data=mini", out=folder, **how, **by)
    traces = read_traces([folder])
    ((name, draft),) = traces.drafts.items()
    table = costs(arms={PLAIN: drafts(0.0), name: drafts(2.0)})
    of_log, free = (plan_log(folder, draft=["nano-draft"], k="2", **how) for how in (by, {}))
    for candidate, row in of_log.plan.rows.items():
        traced = candidate._replace(drafting=name)
        (of_trace,) = predict([traced], draft, traces.of(name), table)
        assert row.prediction.tau.mean == pytest.approx(of_trace.tau.mean, rel=1e-5)
        assert free.plan.rows[candidate].prediction.tau.mean != row.prediction.tau.mean
    assert free.plan.under == {"repetition_penalty": 2} == of_log.plan.under
    assert any("repetition_penalty" in line for line in free.remarks())
    assert not any("repetition_penalty" in line for line in of_log.remarks())


@pytest.mark.parametrize("out", ["run", "results/run"])
def test_a_run_is_a_log_from_any_folder(tmp_path, monkeypatch, out):
    """Its model and its prompts are relative to the folder in which it was started."""
    from spsbench.planning.logs.from_models import run_requests

    start, elsewhere = tmp_path / "start", tmp_path / "elsewhere"
    shutil.copytree(local_folder("nano"), start / "model")
    for folder, text in ((start, "def f(x):\n"), (elsewhere, "another\n")):
        (folder / "texts").mkdir(parents=True)
        (folder / "texts" / "p.txt").write_text(text)
    monkeypatch.chdir(start)
    options = {"target": "./model", "method": "ars", "max_new_tokens": 4}
    spsbench.bench("texts/p.txt", out=out, **options)
    expected = [*run_requests(Path(out), Access())]
    monkeypatch.chdir(tmp_path)
    assert [*run_requests(Path("start", out), Access())] == expected
    monkeypatch.chdir(elsewhere)
    with pytest.raises(MismatchError):
        [*run_requests(start / out, Access())]


def test_what_the_command_prints(tmp_path, sps):
    text = [1, 2, 3, 4] * 12
    lines = [
        {"id": "secret/1", "prompt_token_ids": text[:8], "token_ids": text, "group": "code"},
        {"id": "b", "prompt_token_ids": [9], "token_ids": [*range(40)], "group": "chat"},
        {"id": "c", "prompt": "no ids", "completion": "none"},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"torn')
    ran = sps("plan", "--log", str(path), "-k", "4", "--row-ratio", "0.01")
    assert ran.code == 0
    assert "2 requests, 88 tokens" in ran.out
    assert "1 left out: texts without token ids, and no tokenizer" in ran.out
    assert "1 left out: no JSON (the last line, cut off)." in ran.out
    assert '"prompt_lookup_max": 4' in ran.out or '"method": "suffix"' in ran.out
    assert "predicted" in ran.out
    assert "secret" not in ran.out
    ran = sps("plan", "--log", str(path), "-k", "4", "--json", "--drafter", "ngram")
    (row,) = json.loads(ran.out)["rows"]
    rounds = -(-47 // 5) + 39  # all of one text is right, nothing of the other
    assert row["tau"]["mean"] == pytest.approx(86 / rounds)
    assert row["groups"]["chat"] == 1.0
    ran = sps("plan", "--log", str(path), "-k", "4", "--format", "html")
    assert ran.code == 0
    assert "Plan from logs" in ran.out
    ran = sps("plan", "--alpha", "0.8", "--draft-ratio", "0.05", "-k", "1..3")
    assert "2.44" in ran.out
    ran = sps("plan", "--alpha", "0.5,1,0", "--draft-ratio", "0.25", "-k", "1..2", "--json")
    values = json.loads(ran.out)
    assert values["expected_tokens"] == [[1.5, 1.75], [2, 3], [1, 1]]
    assert values["speedup"] == [[1.5 / 1.25, 1.75 / 1.5], [2 / 1.25, 3 / 1.5], [1 / 1.25, 1 / 1.5]]
    assert values["work"] == [[2.25 / 1.5, 3.5 / 1.75], [2.25 / 2, 3.5 / 3], [2.25, 3.5]]
    assert values["best_k"] == [1, 2, None]


def test_formulas_give_the_figures_that_others_have_published(sps):
    """35 and 32 figures that were cut off after three digits, and three of efficiencies."""

    def computed(ratio, k, alphas):
        words = ("--draft-ratio", repr(ratio), "-k", k, "--json", "--alpha", ",".join(alphas))
        return json.loads(sps("plan", *words).out)

    tables = read_table(__file__, "published.toml")
    compared = [(computed(0.05, "3..9", tables["tokens"])["expected_tokens"], tables["tokens"])]
    for ratio, table in tables["speedup"].items():
        compared.append((computed(float(ratio), "3..6", table)["speedup"], table))
    for ours, published in compared:
        excess = np.asarray(ours) - np.asarray([*published.values()])
        assert excess.min() > -1e-9
        assert excess.max() < 0.001 + 1e-9
    for row in tables["efficiency"]:
        alpha = repr(alpha_for(5 * row["efficiency"], 4))
        ((speedup,),) = computed(row["draft"] / row["target"], "4", [alpha])["speedup"]
        assert round(speedup, 2) == row["speedup"]


def test_earlier_answers_are_looked_up_where_they_are_shared(tmp_path):
    text = [*range(20, 60)]
    lines = [
        {"prompt_token_ids": [1], "token_ids": text},
        {"prompt_token_ids": [2], "token_ids": text},
    ]
    path = tmp_path / "log"
    path.write_text("\n".join(map(json.dumps, lines)))
    tau = taus(plan_log(path, drafter=["suffix:shared=true", "suffix"], k="4"))
    assert tau["suffix", "any exact", 4] == 1.0
    assert tau["suffix:shared=true", "any exact", 4] > 1.2


@pytest.mark.parametrize(
    ("method", "temperature", "is_log"),
    [("sps", 0.0, True), ("sps", 1.0, False), ("ars", 0.0, True), ("ars", 1.0, True)],
)
def test_a_run_of_a_server_is_a_log_where_its_rule_is_known(bench, method, temperature, is_log):
    """Greedy texts are the target's, whatever drafts; sampled ones where the run says plain."""
    tokenizer = log_tokenizer("nano", Access()).tokenizer
    engine = Engine(k=2 if method == "sps" else 0)
    with serving(Stub(engine, printed=lambda token: tokenizer.decode([token]))) as url:
        asked = {"method": method, "temperature": temperature, "target": "nano"}
        folder = bench(f"openai:url={url}", **asked).folder
        unread = bench(f"openai:url={url}", method=method, temperature=0.0, out=folder / "b").folder
    with pytest.raises(DataError):  # no tokenizer
        plan_log(unread, drafter=["ngram"], k="2")
    if not is_log:
        with pytest.raises(DataError):
            plan_log(folder, drafter=["ngram"], k="2")
        return
    answer = plan_log(folder, drafter=["ngram"], k="2")
    assert answer.plan.requests == answer.plan.of_servers == PROMPTS
    assert answer.plan.without_prompt == 0


def vllm_counts(prompt, text, length, longest, k):
    """What vLLM counts of prompt lookup (at least 1 token) on the first tokens of an endless text.

    The pass over the prompt emits a token and drafts nothing. Each draft follows the first match of
    the longest end of the text.
    """
    counts = dict.fromkeys(("rounds", "drafts", "drafted", "accepted", "drafted in", "kept"), 0)
    at = 1
    while at < length:
        known, draft = [*prompt, *text[:at]], []
        for n in range(min(longest, len(known) - 1), 0, -1):
            starts = [i for i in range(len(known) - n) if known[i : i + n] == known[-n:]]
            if starts:
                draft = known[starts[0] + n : starts[0] + n + k]
                break
        kept = 0
        while kept < len(draft) and draft[kept] == text[at + kept]:
            kept += 1
        counts["rounds"] += 1
        counts["drafts"] += bool(draft)
        counts["drafted"] += len(draft)
        counts["accepted"] += kept
        counts["drafted in"] += min(len(draft), length - at)
        counts["kept"] += min(kept, length - at)
        at += kept + 1
    return counts


@pytest.mark.parametrize(
    ("longest", "k", "length", "slips"),
    [(4, 2, 96, 0.1), (3, 3, 96, 0.1), (3, 5, 96, 0.1), (3, 5, 96, 0.6), (3, 5, 6, 0.1)],
)
def test_a_log_of_a_server_gives_the_counts_of_vllm(tmp_path, longest, k, length, slips):
    draw, total, lines = random.Random(longest + k + length), Counter(), []
    for _ in range(12):
        text = [draw.randrange(9) for _ in range(12)]
        while len(text) < 120:
            begin = draw.randrange(len(text) - 5)
            text += [draw.randrange(9)] if draw.random() < slips else text[begin : begin + 5]
        prompt, text = text[:10], text[10:]
        lines.append(json.dumps({"prompt_token_ids": prompt, "token_ids": text[:length]}))
        total.update(vllm_counts(prompt, text, length, longest, k))
    path = tmp_path / "log"
    path.write_text("\n".join(lines))
    answer = plan_log(path, drafter=[f"ngram:n={longest},min_n=1,match=first"], k=str(k))
    (found,) = answer.plan.rows.values()
    assert found.rounds.sums.by_depth[0] == total["drafts"]
    assert found.prediction.drafted == pytest.approx(total["drafted"] / total["rounds"])
    (row,) = answer.values()["rows"]
    assert row["tau"]["mean"] == pytest.approx(12 * (length - 1) / total["rounds"])
    assert row["acceptance_length"] == pytest.approx(1 + total["kept"] / total["drafts"])
    assert row["kept"] == pytest.approx(total["kept"] / total["drafted in"])
    assert row["kept"] == pytest.approx(total["accepted"] / total["drafted"], abs=0.06)


def test_without_costs_k_is_chosen_by_an_assumption_that_is_named(tmp_path):
    path = tmp_path / "log"
    draw = random.Random(1)
    rows = [[draw.randrange(4) for _ in range(60)] for _ in range(9)]
    path.write_text("\n".join(json.dumps({"token_ids": row}) for row in rows))
    answer = plan_log(path, drafter=["ngram:n=2,min_n=1"], temperature=0.0)
    assert answer.plan.warp.temperature == 0
    (best,) = answer.rows
    k = best.prediction.method.k
    assert k < max(answer.plan.ks)
    assert "0.05" in answer.sentence()
    assert f'"num_speculative_tokens": {k}' in answer.pasted()[0]


@pytest.mark.parametrize(
    ("warp", "known"), [({}, True), ({"temperature": 0.5}, False), ({"top_p": 0.9}, False)]
)
def test_log_probabilities_are_the_distribution_only_without_temperature_and_cuts(warp, known):
    request = Request(id="a", prompt=[1], answer=[2, 3], logprobs=[-1.0, -2.0])
    q, why = target_chances(request, [2, 3], WarpSettings(**warp))
    assert (q is not None) is known
    assert bool(why) is not known
    if known:
        assert np.log(q) == pytest.approx([-1.0, -2.0])
