"""The distance of a quantised target to its full self, against plain passes by transformers."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from spsbench.benchmark.jobs import Job, run_job
from spsbench.benchmark.target_probs import distance
from spsbench.engines.quantization.layers import dequantise, quantise
from spsbench.methods.resolve import resolve
from spsbench.models.cache import ModelCache
from spsbench.settings.execution import Access
from spsbench.settings.grid import make_request
from spsbench.settings.models import BUNDLED
from spsbench.settings.records import Record
from spsbench.settings.task import Sample

PROMPT, TEXT = [5, 6, 7], [8, 9, 10, 11]


def cell(weights, temperature):
    return resolve(
        make_request(
            target="nano-draft",
            k=0,
            weights=weights,
            temperature=temperature,
            max_new_tokens=4,
            engine="eager",
        )
    )


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_it_is_the_sum_of_total_variations(temperature):
    laws = []
    for weights in None, "int4":
        model = AutoModelForCausalLM.from_pretrained(BUNDLED["nano-draft"], dtype=torch.float32)
        if weights is not None:
            quantise(model, weights)
            dequantise(model)
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([PROMPT + TEXT[:-1]])).logits[0, -4:]
        greedy = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
        laws.append(logits.softmax(-1) if temperature else greedy)
    expected = float((laws[0] - laws[1]).abs().sum() / 2)
    model_cache = ModelCache(Access(offline=True))
    found = distance(cell("int4", temperature), PROMPT, TEXT, model_cache.load)
    assert found == pytest.approx(expected, abs=1e-4)
    assert found > 0.1 or not temperature
    assert distance(cell("checkpoint", temperature), PROMPT, TEXT, model_cache.load) is None


def test_a_generation_has_it_in_its_record():
    model_cache, own = ModelCache(Access(offline=True)), cell("int8", 1.0)
    job = Job(own, Sample("a", "the cat"), 0)
    record = run_job(job, model_cache.load(own), compare=model_cache.load)
    assert record.distance is not None
    assert 0 < record.distance < len(record.tokens)
    assert Record.from_json(record.to_json()).distance == record.distance
    assert "distance" not in run_job(job, model_cache.load(own)).to_json()
