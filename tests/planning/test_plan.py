"""Plans from beginning to end: over tiny models, and from files alone."""

import json
import shlex
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spsbench.errors import DataError, MismatchError, MissingError, UsageError
from spsbench.methods.resolve import resolve
from spsbench.planning.candidates import candidate_cells
from spsbench.planning.forecast.recommendation import Decision
from spsbench.planning.plan import open_plan, plan
from spsbench.planning.report import apply_command
from spsbench.reports.html import html
from spsbench.reports.text import json as as_json
from spsbench.reports.text import report_markdown
from spsbench.settings.cell import Cell
from spsbench.settings.grid import make_request
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from spsbench.store.records import records
from spsbench.store.traces import TraceWriter, read_traces
from tests.folders import random_model, save

PROMPTS = ["the cat sat on the mat and the", "a dog ran to the", "one two three one two"] * 4
OWN = {"target": "smollm2"}
SMALL = {
    "max_new_tokens": 12,
    "ignore_eos": True,
    "engine": "eager",
    "k": "1,3",
    "limit": 9,
    "held_back": 3,
    "cost_seconds": 0.2,
    "chat": "off",
    "temperature": 0.7,
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    save(folder / "target", random_model())
    save(folder / "draft", random_model(noise=0.1))
    rows = (json.dumps({"id": str(i), "prompt": text}) for i, text in enumerate(PROMPTS))
    (folder / "prompts.jsonl").write_text("\n".join(rows))
    return {
        "target": str(folder / "target"),
        "draft": str(folder / "draft"),
        "prompts": str(folder / "prompts.jsonl"),
    }


@pytest.fixture(scope="module")
def made(pair, tmp_path_factory):
    """One plan that all tests look at."""
    out = tmp_path_factory.mktemp("plans") / "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spsbench.planning.measure.SIZES", (1, 2, 5))
        patch.setattr("spsbench.planning.measure.REQUESTED", (1, 4))
        return plan(out=out, drafter=["model", "ngram"], confirm=1, **pair, **SMALL)


def test_a_plan_predicts_and_measures(made):
    names = {f.method for f in made.forecasts.all}
    assert len(names) == 6  # K of 1 and 3: model by sps and block, ngram by match
    assert len(made.measured) == 1
    assert set(made.measured) <= names
    best = next(iter(made.measured))
    assert made.answer.best == best
    assert made.command.startswith("sps generate --target")
    assert "--temperature 0.7" in made.command
    for form in (as_json, report_markdown):
        assert str(made.answer) in form(made.report).replace("\\", "")
    values = json.loads(as_json(made.report))
    assert (values["verdict"], values["answer"]) == (made.answer.verdict.value, str(made.answer))
    assert (values["candidate"], values["command"]) == (str(best), made.command)
    panels = made.report.tables[0].figure.panels
    assert [panel.y for panel in panels] == ["tau", "over ArS"]


def test_a_head_that_is_rarely_accepted_is_said_to_be_looked_at(made):
    """As if what was measured had been a head: the search is named below its control alone."""
    (name, figures), *_ = made.measured.items()
    head = resolve(make_request(drafter="eagle3", k=3))
    for tau, named in ((1.1, True), (2.0, False)):
        measured = figures._replace(tau=figures.tau._replace(mean=tau))
        planned = replace(made, measured={name: measured})
        vars(planned)["cells"] = {**made.cells, name: head}
        text = report_markdown(planned.report)
        assert ("sps verify head" in text) == named
        assert "nano-eagle3" in text or not named


def test_it_is_drawn_again_without_models(made, monkeypatch, tmp_path):
    monkeypatch.setattr("spsbench.models.cache.ModelCache.load", None)
    same = open_plan(made.folder)
    assert str(same.answer) == str(made.answer)
    assert as_json(same.report) == as_json(made.report)
    free = open_plan(made.folder, draft_cost=0.001)
    assert free.forecasts.best.speedup.mean > same.forecasts.best.speedup.mean
    assert not free.measured  # what is as if cannot have been measured
    assert "Nothing was measured: the costs are as if" in str(free.report.tables[0].remarks)
    with pytest.raises(UsageError):
        open_plan(made.folder, temperature=1.0)
    with pytest.raises(UsageError, match="`held_back`, `limit` with the plan"):
        open_plan(made.folder, limit=8, held_back=3)
    with pytest.raises(MissingError):
        open_plan(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(DataError):
        open_plan(tmp_path)


def test_it_goes_on_where_it_stopped(made, pair, tmp_path):
    asked = {**pair, **SMALL, "drafter": ["model"], "out": tmp_path / "two"}
    asked["costs"] = made.folder / "costs.json"
    seen = []

    def stop():
        seen.append(1)
        return len(seen) > 6

    assert plan(stop=stop, command="sps plan --resume", **asked) is None
    with pytest.raises(DataError):
        open_plan(tmp_path / "two")
    with pytest.raises(MismatchError):
        plan(**asked)
    with pytest.raises(MismatchError):
        plan(resume=True, **{**asked, "temperature": 0.9})
    bar = []
    done = plan(resume=True, watch=lambda progress: bar.append(progress.done), **asked)
    assert bar == sorted(bar)
    first = {f.method: f.tau for f in made.forecasts.all}
    for each in done.forecasts.all:  # the same texts, whatever stopped them
        assert each.tau == first[each.method]
    more = plan(resume=True, **{**asked, "drafter": ["model", "ngram"]})
    assert len(more.forecasts.all) > len(done.forecasts.all)


def test_a_plan_that_was_stopped_in_its_real_rounds_says_so(made, pair, tmp_path):
    """It neither says that nothing was measured, nor decides by half of the rounds."""
    folder = tmp_path / "stopped"
    shutil.copytree(made.folder, folder)
    asked = {**pair, **SMALL, "drafter": ["model", "ngram"], "confirm": 3, "out": folder}
    before = set(folder.glob("confirm-*"))

    def stop():
        logs = [p for p in folder.glob("confirm-*/records-*") if p.parent not in before]
        return any(path.read_bytes().count(b"\n") >= 4 for path in logs)

    command = "sps plan --confirm 3 --resume"
    assert plan(resume=True, stop=stop, command=command, **asked) is None
    (log,) = (p for p in folder.glob("confirm-*/records-*") if p.parent not in before)
    count = sum(1 for _ in records(log.parent))
    told = f"Incomplete: {count} of 12 generations of the real rounds are made. Go on with: "
    shown = open_plan(folder)
    assert shown.answer.verdict is Decision.UNDECIDED
    remarks = shown.report.tables[0].remarks
    assert told + command in remarks[1]
    assert not any("Nothing was measured" in line for line in remarks)
    assert json.loads(as_json(shown.report))["incomplete"] == told + command
    assert told in html(shown.report)
    assert "incomplete" not in json.loads(as_json(made.report))


def recorded(folder):
    runs = (path.parent for path in folder.glob("*/manifest.json"))
    return {run.name: sorted(record.key for record in records(run)) for run in runs}


def test_the_lost_end_of_a_finished_plan_is_missed_and_made_again(made, pair, tmp_path):
    cut = tmp_path / "cut"
    shutil.copytree(made.folder, cut)
    whole = recorded(cut)
    (path,) = cut.glob("confirm-*/records-*")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))
    with pytest.raises(DataError):
        open_plan(cut)
    with pytest.raises(DataError):
        plan(trace=[str(cut)], costs=cut / "costs.json")
    plan(out=cut, resume=True, **pair, **SMALL, drafter=["model", "ngram"], confirm=1)
    assert recorded(cut) == whole


@pytest.mark.needs_fast
def test_files_alone(made, pair):
    trace, costs = made.folder / "texts", made.folder / "costs.json"
    given = {"trace": [str(trace)], "costs": costs, "k": "1,3", "held_back": 3}
    found = plan(**given)
    first = {f.method: f.speedup for f in made.forecasts.all}
    assert {f.method: f.speedup for f in found.forecasts.all} == first
    assert found.answer.verdict in Decision
    only = plan(drafter=["ngram"], **given)
    assert {str(f.method.drafting) for f in only.forecasts.all} == {"ngram"}
    with pytest.raises(MismatchError):
        plan(temperature=1.0, **given)
    with pytest.raises(MismatchError):
        plan(target="nano", **given)
    with pytest.raises(MissingError):
        plan(**{**given, "costs": made.folder / "nothing.json"})
    with pytest.raises(UsageError):
        plan("xsum", **given)


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    ("head", "words"),
    [({}, []), ({"chat": True, "system": "Be brief."}, ["--chat", "--system", "Be brief."])],
    ids=["plain", "chat"],
)
def test_a_trace_of_a_chat_is_pasted_with_its_template(head, words, made, tmp_path):
    """Other prompts than those that were planned would follow without it."""
    traces, file = read_traces([made.folder / "texts"]), tmp_path / "trace.jsonl"
    assert traces.head.chat is False
    with TraceWriter(file, replace(traces.head, **head)) as writer:
        for draft in traces.drafts.values():
            writer.declare(draft)
            for text, along in traces.of(draft.name):
                writer.add_text(text)
                writer.add(text.key, draft.name, along)
    given = {"trace": [str(file)], "costs": made.folder / "costs.json", "k": "1,3"}
    pasted = shlex.split(plan(**given, **({"chat": "on"} if head else {})).command)
    assert [w for w in pasted if w in ("--chat", "--system", "Be brief.")] == words
    assert "--temperature" in pasted
    for other in ({"chat": "off" if head else "on"}, {"system": "Go on."}):
        with pytest.raises(MismatchError):
            plan(**given, **other)


MODEL, NGRAM, SPS = Spec("model"), Spec("ngram"), Spec("sps")


def test_candidates_that_cannot_be_are_left_out(said):
    asked = {"drafter": [MODEL, NGRAM], "verifier": [SPS]}
    cells = candidate_cells(asked, (2,))
    assert [str(cell.drafter) for cell in cells] == ["model"]
    assert any("left out" in line for line in said)
    with pytest.raises(UsageError):
        candidate_cells({"verifier": [Spec("synthetic")]}, (2,))
    assert {cell.k for cell in candidate_cells({}, (1, 2, 3))} == {1, 2, 3}


def test_a_target_that_has_a_drafter_of_its_own_is_planned_with_it_and_its_parts():
    made = {(str(c.drafter), c.k, str(c.draft)) for c in candidate_cells(OWN, (2,))}
    assert made == {
        ("hybrid:first=suffix,then=eagle3", None, "smollm2-eagle3 int8"),
        ("eagle3", 2, "smollm2-eagle3 int8"),
        ("suffix", 2, "None"),
        ("ngram", 2, "None"),
    }
    named = candidate_cells({**OWN, "drafter": [Spec("suffix")]}, (2,))
    assert [(str(c.drafter), c.k) for c in named] == [("suffix", 2)]


def test_self_int4_is_a_candidate_beside_others():
    asked = {"target": "nano", "drafter": [Spec.parse("self:int4"), NGRAM]}
    made = {(str(c.drafter), str(c.draft)) for c in candidate_cells(asked, (2,))}
    assert made == {("model", "nano int4"), ("ngram", "None")}
    both = candidate_cells({**asked, "draft": ["nano-draft"]}, (2,))
    assert {str(c.draft) for c in both} == {"nano int4", "nano-draft", "None"}


def test_a_head_drafts_by_its_own_drafter_alone():
    def drafting(asked):
        cells = candidate_cells({"target": "t", **asked}, (2,), heads={"head": "eagle3"})
        models = [(cell.drafter, cell.draft) for cell in cells]
        return {(str(drafter), draft and draft.id) for drafter, draft in models}

    by_text = {("ngram", None), ("suffix", None)}
    assert drafting({"draft": ["head"]}) == {("eagle3", "head"), *by_text}
    both = {("eagle3", "head"), ("model", "small"), *by_text}
    assert drafting({"draft": ["head", "small"]}) == both
    assert drafting({"draft": ["head"], "drafter": [NGRAM]}) == {
        ("eagle3", "head"),
        ("ngram", None),
    }
    one = Spec.parse("eagle3:nodes=8,width=2")
    assert drafting({"draft": ["head"], "drafter": [one]}) == {(str(one), "head")}
    with pytest.raises(UsageError):
        candidate_cells({"draft": ["small"], "drafter": [one]}, (2,))
    found = candidate_cells({"drafter": [Spec("eagle3"), MODEL]}, (2,))  # of the bundled target
    assert {cell.draft and cell.draft.id for cell in found} == {"nano-eagle3", "nano-draft"}


def test_the_command_has_what_is_not_usual():
    cell = Cell(
        target=ModelSpec("my model", dtype="bfloat16"),
        draft=ModelSpec("small", "abc", dtype="bfloat16", engine=Spec("eager")),
        verifier=Spec("block"),
        schedule=Spec("ema"),
        temperature=0.7,
        top_p=0.9,
    )
    speculate, undecided, do_not = (
        SimpleNamespace(verdict=verdict)
        for verdict in (Decision.SPECULATE, Decision.UNDECIDED, Decision.DO_NOT)
    )
    assert apply_command(cell, speculate) == (
        "sps generate --target 'my model' --dtype bfloat16 --draft small --draft-revision abc "
        "--draft-engine eager "
        "--verifier block --schedule ema --temperature 0.7 --top-p 0.9 PROMPT"
    )
    rule = cell.but(draft=None, drafter=Spec("ngram"), schedule=Spec.parse("constant:lookahead=3"))
    assert "--drafter ngram --verifier block --k 3" in apply_command(rule, speculate)
    assert "--k 0 " in apply_command(rule, do_not)
    asked = rule.but(chat=True, system="Be brief.")
    assert apply_command(asked, speculate).endswith("--chat --system 'Be brief.' PROMPT")
    assert apply_command(asked, undecided).endswith("--compare PROMPT")
    quantised = cell.but(draft=ModelSpec("my model", dtype="bfloat16", weights="int4"))
    assert "--draft 'my model' --draft-weights int4" in apply_command(quantised, speculate)
    assert "--temperature" not in apply_command(rule.but(temperature=1.0, top_p=1.0), speculate)
