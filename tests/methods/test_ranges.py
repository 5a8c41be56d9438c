"""Numbers that become sizes are bounded, and refused before a model is loaded."""

import math

import pytest

from spsbench.errors import UsageError
from spsbench.loop.drafter_context import Weights
from spsbench.methods.resolve import plan_of, resolve
from spsbench.plugins import parameters, plug_in
from spsbench.registry import BUILT_IN
from spsbench.settings.cell import ENGINES_OWN, Cell
from spsbench.settings.models import Models, ModelSpec
from spsbench.spec import Spec

TARGET, DRAFT = ModelSpec(id="nano"), ModelSpec(id="nano-draft")
NEEDED = {"url": "http://127.0.0.1", "path": "/"}
KINDS = ("drafters", "verifiers", "schedules", "decoders")


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
    cell = Cell(models=Models(target=TARGET))
    if kind == "decoders":
        needed = [(name, value) for name, value in NEEDED.items() if name in parameters(maker)]
        spec = Spec(spec.name, (*needed, *spec.args))
        cell = cell.but(drafter=ENGINES_OWN) if not maker.loads else cell
    plan = plan_of(Spec(spec.name)) if kind == "drafters" else None
    if kind == "verifiers" or (plan is not None and plan.weights is not Weights.NONE):
        cell = cell.but(draft=DRAFT)
    return cell.but(**{kind.removesuffix("s"): spec})


@pytest.mark.parametrize(("kind", "name", "argument"), list(numbers()))
def test_a_number_beyond_all_sizes_is_refused_by_its_name(kind, name, argument):
    for value in (10**20, -(10**20), 10**400, math.inf, -math.inf, math.nan):
        with pytest.raises(UsageError, match=argument) as caught:
            resolve(cell_of(kind, Spec(name, ((argument, value),))))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "lookahead:w=0",
        "lookahead:n=1",
        "lookahead:g=0",
        "ngram:n=0",
        "ngram:n=2,min_n=3",
        "copy:least=0",
        "recycling:width=0",
        "self:8-99999999999",
        "self:window=abc",
        "topk:width=0",
        "chains:n=0",
        "sequoia:accept=2",
    ],
)
def test_arguments_of_drafters_are_refused_before_a_model_is_loaded(text):
    with pytest.raises(UsageError):
        resolve(cell_of("drafters", Spec.parse(text)))


@pytest.mark.parametrize(
    "text", ["native:likeliest=-1", "native:likeliest=5", "native:likeliest=x"]
)
def test_arguments_of_the_native_decoder_are_refused_before_a_model_is_loaded(text):
    with pytest.raises(UsageError, match="likeliest"):
        resolve(cell_of("decoders", Spec.parse(text)))
