"""Arguments of every drafter, schedule, verifier and decoder: refused before a model is loaded."""

import math
import tomllib
from pathlib import Path

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
REFUSED = tomllib.loads(Path(__file__).with_name("ranges.toml").read_text())


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
