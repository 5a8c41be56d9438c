"""Ranks that share a target: their text is one process's, and one that dies ends the others.

In float64, where the order in which a sum is formed changes no token.
"""

import json
import os
from types import SimpleNamespace

import pytest
import torch

import spsbench
from spsbench.errors import DataError, UsageError
from spsbench.hardware.ranks import Ranks, ranks
from spsbench.methods.resolve import resolve
from spsbench.models.loader import load_model, own_device
from spsbench.models.prepare import check_ranks
from spsbench.parallel.process_group import backend_of, join_group
from spsbench.settings.grid import make_request
from spsbench.settings.models import ModelSpec
from tests.cli.forked import Forked
from tests.folders import byte_tokenizer, save
from tests.oracles.models import tiny
from tests.parallel.team import started, team
from tests.processes import variables_of
from tests.waiting import wait_until
from tests.workers.compared import bare

PAIR = {"target": "nano", "dtype": "float64", "offline": True, "threads": 1}
OTHERS = {
    "plain": {"k": 0},
    "a tree": {"drafter": "tree:shape=2x2"},
    "eagle3": {"drafter": "eagle3"},
    "medusa": {"drafter": "medusa"},
    "layers left out": {"drafter": "self:skip=1"},
    "a part of the cache": {"drafter": "self:window=16"},
    "transformers' loop": {"decoder": "hf"},
    "a batch": {"prompts": ["import os", "class A"]},
}
LINE = ("--dtype", "float64", "--engine", "eager", "--threads", "1", "--offline")


def texts(prompts=("def f(",), length=12, **options):
    """A greedy text and a sampled one of each prompt."""
    pair = spsbench.load(**PAIR | options)
    ask = {"max_new_tokens": length, "seed": 3}
    return [
        text.tokens
        for temperature in (0.0, 1.0)
        for text in pair.generate(list(prompts), temperature=temperature, **ask)
    ]


def test_two_ranks_write_the_texts_of_one_process():
    alone = texts(length=6)
    assert team(2, lambda: texts(length=6)) == [alone, alone]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("method", OTHERS)
def test_other_methods_write_the_texts_of_one_process(method):
    options = OTHERS[method]
    alone = texts(**options)
    assert team(2, lambda: texts(**options)) == [alone, alone]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_ranks_of_other_architectures_write_the_texts_of_one_process(size, architecture, tmp_path):
    shape = {"num_key_value_heads": 4, "vocab": 300}
    folders = {
        name: str(save(tmp_path / name, tiny(architecture, noise=noise, **shape), byte_tokenizer()))
        for name, noise in (("target", 0.0), ("draft", 0.3))
    }
    alone = texts(**folders)
    assert team(size, lambda: texts(**folders)) == [alone] * size


def test_ranks_that_draft_otherwise_end_in_a_line():
    said = team(2, lambda: spsbench.load(**PAIR, seed=ranks().rank).generate("x"))
    assert said[1].startswith("rank 1 drafts other tokens than rank 0")


def test_a_command_on_two_ranks_reads_and_prints_on_the_first():
    asked = ("generate", *LINE, "--seed", "3", "--no-stats", "--max-new-tokens", "8")
    text, _ = Forked(*asked, env=os.environ, stdin=b"def f(").communicate()
    both = started(*asked, stdin=b"def f(")
    assert [rank.communicate()[0] for rank in both] == [text or None, b""]
    assert [rank.returncode for rank in both] == [0, 0]


@pytest.mark.slow
@pytest.mark.cluster
def test_a_bench_whose_rank_is_killed_goes_on_to_the_records_of_one_process(tmp_path):
    asked = ("bench", "latency", "--limit", "3", "-k", "4", "--max-new-tokens", "8", *LINE)
    Forked(*asked, "-o", str(tmp_path / "alone"), env=os.environ).communicate()
    shared = (*asked, "--resume", "-o", str(tmp_path / "shared"))
    log = tmp_path / "shared" / "records-00-of-01.jsonl"
    killed = started(*shared)
    assert wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") >= 2)
    killed[1].kill()
    _, err = killed[0].communicate()
    assert killed[0].returncode == 69
    assert err.count(b"error: a rank has ended") == 1
    resumed = started(*shared)
    for rank in resumed:
        rank.communicate()
    assert [rank.returncode for rank in resumed] == [0, 0]
    one, two = (
        sorted(str({**json.loads(line), "cell": ""}) for line in bare(tmp_path / name))
        for name in ("alone", "shared")
    )
    assert len(one) == 6
    assert two == one


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_ends_the_other(rank):
    both = started("generate", "x", *LINE, "--max-new-tokens", "900", "--ignore-eos")
    os.read(both[0]._out, 1)  # the loop runs
    both[rank].kill()
    other = both[1 - rank]
    assert wait_until(lambda: other.poll() is not None)
    assert other.returncode == 69


def test_a_rank_that_stands_still_is_noticed_by_the_timeout():
    def work():
        join_group(5.0)
        return texts() if ranks().rank == 0 else None  # rank 1 waits for its end

    assert team(2, work)[0].startswith("a rank has not answered for 5 s")


@pytest.mark.needs_fast
def test_what_cannot_be_shared_is_refused(tmp_path, monkeypatch):
    two = make_request().but(target=ModelSpec("nano", parallel="tp:2"))
    with pytest.raises(UsageError) as caught:
        check_ranks(two.models)
    assert "torchrun --nproc-per-node 2" in str(caught.value)
    with pytest.raises(UsageError):
        check_ranks([ModelSpec("nano", weights="random", parallel="tp:2")])
    for by_clock in ("utility", "payoff:costs=here"):
        with pytest.raises(UsageError):
            resolve(two.but(schedule=make_request(schedule=by_clock).schedule))
    resolve(two.but(schedule=make_request(schedule="utility:draft=0.1").schedule))
    for architecture, parallel in (("gpt2", "tp:2"), ("llama", "tp:3")):
        tiny(architecture).save_pretrained(tmp_path / architecture)
        with pytest.raises(DataError):
            load_model(tmp_path / architecture, ModelSpec("", parallel=parallel))
    for name, value in variables_of(0, 2, 1).items():
        monkeypatch.setenv(name, value)
    cell = make_request()
    assert (cell.target.parallel, cell.ranks, cell.draft.parallel) == ("tp:2", 2, None)
    for models in ([ModelSpec("nano", parallel="tp:4")], [ModelSpec("nano")]):
        with pytest.raises(UsageError):
            check_ranks(models)
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(UsageError):
        join_group()


def test_each_rank_takes_the_accelerator_of_its_number(monkeypatch):
    """On a machine with two that is made up: rank 3 of 4 is the second of the second machine."""
    touched: list[int] = []
    two = {"is_available": lambda: True, "device_count": lambda: 2}
    cuda = SimpleNamespace(**two, set_device=touched.append)
    monkeypatch.setattr(torch, "cuda", cuda)
    assert backend_of(Ranks(rank=3, size=4, local=1)) == "cpu:gloo,cuda:nccl"
    for name, value in {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert own_device("auto") == "cuda:1"
    assert touched == [1], "a look at another one would take memory of it"
    for refused in (lambda: backend_of(Ranks(2, 3, 2)), lambda: own_device("cpu")):
        with pytest.raises(UsageError):
            refused()
    cuda.is_available = lambda: False
    assert backend_of(Ranks(rank=5, size=8, local=5)) == "gloo"
