"""Arguments of every drafter, schedule, verifier and decoder: refused before a model is loaded."""

import math

import pytest

from spsbench.errors import SpsError, UsageError
from spsbench.loop.drafter_context import Weights
from spsbench.methods.resolve import plan_of, resolve
from spsbench.plugins import parameters, plug_in
from spsbench.registry import BUILT_IN
from spsbench.settings.cell import ELSEWHERE, ENGINES_OWN, CellRequest
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec

TARGET, DRAFT = (ModelSpec(name, engine=Spec("eager")) for name in ("nano", "nano-draft"))
NEEDED = {"url": "http://127.0.0.1", "path": "/"}
KINDS = ("drafters", "verifiers", "schedules", "decoders")
REFUSED = {
    "drafters": """
        lookahead:w=0 lookahead:n=1 lookahead:g=0
        ngram:n=0 ngram:n=0,min_n=0 ngram:n=2,min_n=3 ngram:n=33 ngram:match=best ngram:source=web
        ngram:n=true ngram:n=1.5
        copy:least=0 recycling:width=0 recycling:nodes=-2
        suffix:factor=-1.0 suffix:least=1.5 suffix:min_n=0 suffix:nodes=-1
        self:8-99999999999 self:window=abc self:window=0 self:window=8,sinks=-1 self:sinks=4
        self:8-11,window=4 self:first=suffix self:window=8,first=model
        self:none self:x self:3- self:5-4 self:1+ self:1.5 self:-2
        topk:width=0 topk:nodes=0 chains:n=0
        tree:shape=0 tree:shape=0x2 tree:shape=x tree:shape=3x tree:shape=-1 tree:shape=9x9x9x9
        tree:siblings=all
        sequoia:siblings=all sequoia:accept=2 sequoia:accept=a/b sequoia:accept=1.5
        sequoia:nodes=0 sequoia:nodes=9999 sequoia:depth=0
        hybrid:first=model,then=suffix hybrid:first=hybrid hybrid:first=suffix:foo=1
        hybrid:first=beam hybrid:first=suffix:n hybrid:least=0
        model:lm=1 beam""",
    "schedules": """
        constant:lookahead=65 constant:lookahead=1.5 heuristic:start=0 heuristic:most=0
        ema:least=1.0 ema:decay=1.0
        goodput:draft=0,row=0,most=65 goodput:draft=-1.0 goodput:alpha=0 goodput:batch=0
        goodput:batch=2
        confidence:t=1.5 confidence:t=nan confidence:t=x confidence:k=3
        entropy:gamma=-0.1 entropy:step=2 disco:t=-1 disco:bias=inf disco:path=none.json
        payoff:costs=file payoff:hold=0 payoff:alpha=1 payoff:row=0.1- payoff:row=a payoff:row=-0.1
        utility:start=9 utility:test=0 utility:hold=0 utility:draft=-1.0 beam""",
    "verifiers": """
        lenient:l=0 lenient:l=1.5 lenient:l=nan ensemble:w=-0.1 typical:epsilon=2 typical:delta=nan
        topk:n=0 topk:n=1.5 synthetic:alpha=-0.1 synthetic:alpha=1.1 sps:x=1 beam""",
    "decoders": "native:likeliest=-1 native:likeliest=5 native:likeliest=x beam",
}


def numbers():
    """Kind, name and argument of every plug-in that takes a number."""
    for entry in BUILT_IN:
        if entry.kind in KINDS:
            for name, each in parameters(plug_in(entry.kind, Spec(entry.name))).items():
                kinds = str(each.annotation)
                if "LM" not in kinds and ("int" in kinds or "float" in kinds):
                    yield entry.kind, entry.name, name


def cell_of(kind, spec):
    maker = plug_in(kind, spec)
    cell = CellRequest(target=TARGET)
    if kind == "decoders":
        needed = [(name, value) for name, value in NEEDED.items() if name in parameters(maker)]
        spec = Spec(spec.name, (*needed, *spec.args))
        cell = cell.but(drafter=ENGINES_OWN) if spec.name in ELSEWHERE else cell
    plan = plan_of(Spec(spec.name)) if kind == "drafters" else None
    if kind == "verifiers" or (plan is not None and plan.weights is not Weights.NONE):
        cell = cell.but(draft=DRAFT)
    return cell.but(**{kind.removesuffix("s"): spec})


@pytest.mark.parametrize(("kind", "name", "argument"), list(numbers()))
def test_a_number_beyond_all_sizes_is_refused_by_its_name(kind, name, argument):
    for value in (10**20, -(10**20), 10**400, math.inf, -math.inf, math.nan):
        with pytest.raises(UsageError) as refused:
            resolve(cell_of(kind, Spec(name, ((argument, value),))))
        assert argument in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in REFUSED.items() for text in texts.split()]
)
def test_a_wrong_argument_is_refused_in_a_line(kind, text):
    with pytest.raises(SpsError) as refused:
        resolve(cell_of(kind, Spec.parse(text)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", REFUSED)
def test_without_its_arguments_each_of_them_is_taken(kind):
    alone = {text.partition(":")[0] for text in REFUSED[kind].split()} - {"beam"}
    for name in alone:
        resolve(cell_of(kind, Spec(name)))
