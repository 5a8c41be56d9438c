"""Test vectors: planted defects fail them, and rules that are not ours read them."""

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from spsbench.loop.types import Draft, Drawn
from spsbench.registry import VECTORS, attribute_at
from spsbench.spec import Spec
from tests.oracles.defects import DEFECTS, RULES, on_a_device

READER = Path(__file__).parents[3] / "recipes" / "vectors" / "verify.c"
SLOW = {"match", "traversal", "recursive", "spectr"}  # to write
OF_RULES = [  # the others are of drafters, caches, noise and texts
    defect
    for defect in DEFECTS
    if "verifier" in defect.planted or any("methods.verifiers" in n for n in defect.planted)
]


def rows(named):
    """Cases of (rule, value), slow ones marked."""
    return [
        pytest.param(rule, value, id=name, marks=[pytest.mark.slow] * (rule in SLOW))
        for rule, value, name in named
    ]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Return the vectors of a rule, which are written once."""
    folder = tmp_path_factory.mktemp("vectors")

    @cache
    def read(rule):
        attribute_at(VECTORS)(folder / f"{rule}.json", [Spec(rule)])
        assert (folder / f"{rule}.json").stat().st_size < 500_000  # two million for all rules
        return json.loads((folder / f"{rule}.json").read_text())["vectors"]

    return read


class Given:
    """The uniforms of a vector."""

    def __init__(self, vector):
        self.numbers = dict(vector["uniforms"])

    def uniform(self, purpose, n):
        return torch.tensor(self.numbers[purpose.name.lower()][:n], dtype=torch.float64)


def passes(rule, vector):
    q, p = (v and torch.tensor(v, dtype=torch.float64) for v in (vector["q"], vector["p"]))
    p, parents = q[:0] if p == [] else p, torch.tensor(vector["parents"])
    parents = None if parents.tolist() == list(range(-1, len(parents) - 1)) else parents
    tokens = torch.tensor(vector["draft"], dtype=torch.int64)
    try:
        path, last, _ = rule(Draft(tokens, p, parents, Drawn(vector["drawn"])), q, Given(vector))
    except KeyError:  # it needs uniforms that the exact rule does not
        return False
    except (TypeError, IndexError):  # a defect of drafts with p, and of one token or more, alone
        return p is None or not vector["draft"]
    kept = tokens[path[path >= 0]].tolist()
    return (len(kept), [*kept, int(last)]) == (vector["accepted"], vector["tokens"])


@pytest.mark.parametrize(("name", "rule"), rows((n, r, n) for n, r in RULES.items()))
def test_our_rule_passes_its_vectors_which_float32_holds(name, rule, vectors):
    assert len(vectors(name)) > 70
    for vector in vectors(name):
        assert passes(rule, vector)
        assert [[float.fromhex(x) for x in row] for row in vector["hex"]["q"]] == vector["q"]
        assert torch.tensor(vector["q"], dtype=torch.float32).tolist() == vector["q"]
        assert all(sum(row) == 1 for row in vector["q"] + (vector["p"] or []))


@pytest.mark.parametrize(
    ("name", "defect"),
    rows((next(w for w in RULES if w in d.seen_by), d, d.name) for d in OF_RULES),
)
def test_a_planted_defect_of_a_rule_fails_them(name, defect, vectors):
    def all_pass(parts):
        return all(passes(parts.get("verifier", RULES[name]), v) for v in mine)

    mine = vectors(name)  # written without the defect
    walk = on_a_device(name, all_pass) if "on a device" in defect.seen_by else all_pass
    with defect.plant() as parts:
        assert not walk(parts)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("rule", ["sps", pytest.param("match", marks=pytest.mark.slow)])
def test_a_c_program_reads_the_lines_and_a_wrong_verdict_fails(rule, tmp_path):
    program, files = tmp_path / "verify", (tmp_path / "v.txt", tmp_path / "again.txt")
    subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", "-o", program, READER], check=True)
    for file in files:
        attribute_at(VECTORS)(file, [Spec(rule)])
    text = files[0].read_text()
    assert text == files[1].read_text()
    for lines, code in ((text, 0), (text.replace("accepted 0\n", "accepted 1\n", 1), 1)):
        ran = subprocess.run([program], input=lines, text=True, capture_output=True)
        assert ran.returncode == code, ran.stdout


def by_transformers():
    rule = pytest.importorskip("transformers.generation.utils")._speculative_sampling

    def verify(q, p, draft):
        ids, accepted = rule(torch.tensor([draft]), p.log()[None], len(draft), q.log()[None])
        return ids[0].tolist(), int(accepted)

    return verify


def by_vllm():
    """Its `rejection_sample` over the kernels of its CPU build."""
    platforms = pytest.importorskip("vllm.platforms", reason="vLLM is not installed")
    sampler = pytest.importorskip("vllm.v1.sample.rejection_sampler")
    if not platforms.current_platform.is_cpu():
        pytest.skip("this vLLM is built for another device than the CPU")
    platforms.current_platform.import_kernels()
    platforms.current_platform.register_triton_kernel_overrides()
    every = {"all_greedy": False, "all_random": True, "generators": {}}
    sampling = SimpleNamespace(temperature=torch.ones(1), **every)

    def verify(q, p, draft):
        n, q, p = len(draft), q.float(), p.float()
        ids, ends, bonus = (torch.tensor(x).int() for x in (draft, [n], [[0]]))
        rows = sampler.rejection_sample(ids, [n], n, ends, p, q[:-1].log(), bonus, sampling)
        accepted = int((rows >= 0).sum()) - 1
        return rows[0, : accepted + 1].tolist(), accepted

    return verify


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")  # from what vLLM imports
@pytest.mark.parametrize("foreign", [by_transformers, by_vllm])
def test_a_rule_that_is_not_ours_accepts_the_same_but_tokens_without_probability(
    foreign, vectors, monkeypatch
):
    verify, apart, drawn_from = foreign(), set(), list[int]()
    for vector in filter(lambda v: v["draft"], vectors("sps")):
        q, p = (torch.tensor(vector[name], dtype=torch.float64) for name in "qp")
        draft, u, due = vector["draft"], Given(vector).numbers["accept"], vector["accepted"]
        for name in ("rand", "rand_like"):
            numbers = torch.tensor(u, dtype=torch.float64)
            monkeypatch.setattr(torch, name, lambda *_, numbers=numbers, **__: numbers.clone())
        tokens, a = verify(q, p, draft)
        if a != due:
            at = min(a, due)  # where the verdicts differ
            apart.add((u[at], vector["q"][at][draft[at]]))
            continue
        left = (q[a] - (p[a] if a < len(u) else 0)).clamp(min=0)
        assert tokens[:-1] == draft[:a]
        if left.sum() > 1e-12 and a < len(u) <= 3 and (left > 0.02).sum() > 1:
            drawn = [verify(q, p, draft)[0][-1] for _ in range(2000)]
            shares = torch.bincount(torch.tensor(drawn), minlength=len(left)) / len(drawn)
            assert (shares - left / left.sum()).abs().max() < 0.06  # five standard deviations
            drawn_from.append(a)
    assert drawn_from
    assert apart == {(0.0, 0.0)}  # `u <= q / p` keeps it at u = 0
