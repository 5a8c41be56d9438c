"""Tasks of prompts: what a long prompt is told, and the versions that results on disk name."""

from pathlib import Path

import pytest

from spsbench.errors import DataError
from spsbench.tasks.gsm8k import Gsm8k
from spsbench.tasks.humaneval import HumanEval
from spsbench.tasks.jsonl import Jsonl
from tests.tasks.rows import always, written

PROBLEMS = Path(__file__).with_name("gsm8k.jsonl")
ROW = {"id": "a", "turns": ["b", "c"], "json_schema": {"type": "object"}}
VERSIONS = {
    "gsm8k": ("two-shot-1-2ccd5cad", "ask-1-132fb856"),
    "humaneval": ("raw-codex-1-f3c6de8f", "ask-1-d5fcb49c"),
    "jsonl": ("raw-1-b376c2a7", "ask-1-0c1d5ce9"),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_prompts_keep_their_versions_and_are_never_cut(name, tmp_path):
    tasks = (Gsm8k(str(PROBLEMS)), HumanEval(), Jsonl(written(tmp_path, ROW)))
    task = next(task for task in tasks if task.name == name)
    assert (task.prompt_version, task.instruct().prompt_version) == VERSIONS[name]
    first = next(task.samples(always))
    with pytest.raises(DataError) as refused:
        next(task.samples(lambda sample: sample.prompt != first.prompt))
    assert repr(first.id) in str(refused.value)
