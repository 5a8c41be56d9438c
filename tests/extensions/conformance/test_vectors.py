"""Test vectors: planted defects fail them, and rules that are not ours read them."""

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch

from spsbench.loop.types import Draft, Drawn
from spsbench.registry import VECTORS, at
from spsbench.spec import Spec
from tests.oracles.defects import DEFECTS, RULES, on_a_device

WRITER = Path(__file__).parents[3] / "recipes" / "vectors" / "verify.c"
OF_RULES = [  # the others are of drafters, caches, noise and texts
    defect
    for defect in DEFECTS
    if "verifier" in defect.planted
    or any("methods.verifiers" in name and "model.sample" not in name for name in defect.planted)
]


SLOW = {"traversal", "recursive", "spectr"}  # to write


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Return the vectors of a rule, which are written once."""
    folder = tmp_path_factory.mktemp("vectors")

    @cache
    def read(rule):
        at(VECTORS)(folder / f"{rule}.json", [Spec(rule)])
        assert (folder / f"{rule}.json").stat().st_size < 400_000
        return json.loads((folder / f"{rule}.json").read_text())["vectors"]

    return read


class Given:
    """The uniforms of a vector, of which a rule may request less than ours does."""

    def __init__(self, vector):
        self.numbers = dict(vector["uniforms"])

    def uniform(self, purpose, n):
        return torch.tensor(self.numbers[purpose.name.lower()][:n], dtype=torch.float64)


def verdict_of(rule, vector):
    q, p = (v and torch.tensor(v, dtype=torch.float64) for v in (vector["q"], vector["p"]))
    p = q[:0] if p == [] else p
    chain = vector["parents"] == list(range(-1, len(vector["parents"]) - 1))
    parents = None if chain else torch.tensor(vector["parents"])
    tokens = torch.tensor(vector["draft"], dtype=torch.int64)
    path, token, _ = rule(Draft(tokens, p, parents, Drawn(vector["drawn"])), q, Given(vector))
    kept = tokens[path[path >= 0]].tolist()
    return {"accepted": len(kept), "tokens": [*kept, int(token)]}


def wrong(vectors, rule):
    """How many verdicts differ, or need uniforms that a vector has not."""
    count = 0
    for vector in vectors:
        try:
            count += not verdict_of(rule, vector).items() <= vector.items()
        except KeyError:
            count += 1
        except TypeError:  # a defect of rules with p alone
            assert vector["p"] is None
    return count


def rows(names, values, ids=str):
    marks = {True: [pytest.mark.slow], False: []}
    rules = zip(names, values, strict=True)
    return [pytest.param(r, v, id=ids(v), marks=marks[r in SLOW]) for r, v in rules]


@pytest.mark.parametrize(("name", "rule"), rows(RULES, RULES.values(), lambda r: type(r).__name__))
def test_our_rule_passes_its_vectors_which_float32_holds(name, rule, vectors):
    mine = vectors(name)
    assert len(mine) > 70
    assert wrong(mine, rule) == 0
    for vector in mine:
        assert [[float.fromhex(x) for x in row] for row in vector["hex"]["q"]] == vector["q"]
        assert torch.tensor(vector["q"], dtype=torch.float32).tolist() == vector["q"]
        assert all(sum(row) == 1 for row in vector["q"] + (vector["p"] or []))


NAMES = [next(word for word in RULES if word in defect.seen_by) for defect in OF_RULES]


@pytest.mark.parametrize(("name", "defect"), rows(NAMES, OF_RULES, lambda defect: defect.name))
def test_a_planted_defect_of_a_rule_fails_them(name, defect, vectors):
    def walk(parts):
        return wrong(vectors(name), parts.get("verifier", RULES[name]))

    assert vectors(name)  # written without the defect
    with defect.plant() as parts:
        assert (on_a_device(name, walk) if "on a device" in defect.seen_by else walk)(parts) > 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("rule", ["sps", "match"])
def test_a_c_program_reads_the_lines_and_a_wrong_verdict_fails(rule, tmp_path):
    command = ["cc", "-std=c99", "-Wall", "-Werror", "-o", tmp_path / "verify", WRITER]
    subprocess.run(command, check=True)
    for name in "v.txt", "again.txt":
        at(VECTORS)(tmp_path / name, [Spec(rule)])
    text = (tmp_path / "v.txt").read_text()
    assert text == (tmp_path / "again.txt").read_text()
    head, planted, rest = text.partition(f"vector {rule} iid 3")
    for lines, code in (
        (text, 0),
        (head + planted + rest.replace("accepted 0", "accepted 1", 1), 1),
    ):
        ran = subprocess.run([tmp_path / "verify"], input=lines, text=True, capture_output=True)
        assert ran.returncode == code, ran.stdout


def test_the_rule_of_transformers_accepts_the_same_but_tokens_without_probability(
    vectors, monkeypatch
):
    rule = pytest.importorskip("transformers.generation.utils")._speculative_sampling
    apart = []
    for vector in vectors("sps"):
        if not (n := len(vector["draft"])):
            continue
        p, q = (torch.tensor([vector[name]], dtype=torch.float64).log() for name in "pq")
        draft, u = torch.tensor([vector["draft"]]), Given(vector).numbers["accept"]
        monkeypatch.setattr(torch, "rand_like", lambda x, u=u: torch.tensor(u, dtype=x.dtype))
        tokens, accepted = rule(draft, p, n, q)
        a, expected = int(accepted), vector["accepted"]
        left = (q[0, expected].exp() - (p[0, expected].exp() if expected < n else 0)).clamp(min=0)
        if a != expected:
            apart.append((u[expected], vector["q"][expected][vector["draft"][expected]]))
        else:  # the last token can only be one that is left
            assert tokens[0, :-1].tolist() == vector["draft"][:a]
            assert left[tokens[0, -1]] > 1e-12 or left.sum() < 1e-12
    assert set(apart) == {(0.0, 0.0)}  # `u <= q / p` keeps it at u = 0: once in 2^24 draws
