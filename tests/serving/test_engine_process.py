"""An engine in a process of its own, over a small package that stands for llama-cpp-python."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spsbench
from spsbench.errors import MissingError, SpsError, UnavailableError
from spsbench.methods.decoders.engine_process import close_engines
from spsbench.store.records import records

ENGINE = """
import os, sys, time
__version__ = "0"
print("a word on the standard output, which is no answer")

class Llama:
    # tokens count up, with every fifth a 0, so that the newest one says what follows
    def __init__(self, path, n_ctx, verbose, draft_model=None, **_):
        assert "broken" not in path, "a file that is no model"
        self.path, self.draft_model, self.metadata = path, draft_model, {}
        self.model = LLAMA_VOCAB_TYPE_NONE if "bare" in path else 1
    def reset(self): pass
    def set_seed(self, seed): pass
    def token_eos(self): return 99
    def token_bos(self): return 98
    def tokenize(self, text, add_bos, special): return list(text)
    def detokenize(self, tokens, **_):
        if self.model == LLAMA_VOCAB_TYPE_NONE:
            os._exit(1)
        return b" ".join(b"%d" % t for t in tokens)
    def generate(self, ids, temp, **warp):
        if "dies" in self.path:
            print("out of memory", file=sys.stderr)
            os._exit(1)
        while "slow" in self.path:
            time.sleep(1)
        made = list(ids)
        draft = []
        while True:
            for i, guess in enumerate([*draft, None]):
                token = 0 if len(made) % 5 == 0 else len(made)
                made.append(token)
                yield token
                if guess != token:
                    break
            if self.draft_model is not None:
                import numpy as np
                draft = self.draft_model(np.array(made)).tolist()

LLAMA_VOCAB_TYPE_NONE = 0
def llama_vocab_type(vocabulary): return vocabulary
def llama_model_get_vocab(model): return model
def llama_vocab_is_eog(vocabulary, token): return token == 13
"""
LOOKUP = """
import numpy as np
class LlamaDraftModel: pass
class LlamaPromptLookupDecoding:
    # guesses by counting on: wrong at every fifth
    def __init__(self, ngram, k): self.k = k
    def __call__(self, ids): return np.arange(len(ids), len(ids) + self.k)
"""
Bench = Callable[..., Any]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    package = tmp_path / "packages" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(ENGINE)
    (package / "llama_speculative.py").write_text(LOOKUP)
    paths = [str(package.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    (tmp_path / "p.jsonl").write_text(json.dumps({"id": "a", "prompt": "ab"}))

    def run(file: str, more: str = "", **asked: Any) -> Any:
        (tmp_path / file).touch()
        given = {"max_new_tokens": 11, "warmup": 0, "k": 3, "temperature": 0.0, **asked}
        decoder = f"llamacpp:path={tmp_path / file}{more}"
        task = f"jsonl:path={tmp_path}/p.jsonl"
        return spsbench.bench(task, decoder=decoder, out=tmp_path / "run", **given)

    yield run
    close_engines()


def test_each_round_is_known(bench: Bench) -> None:
    made = bench("model.gguf", ignore_eos=True)
    by_k = {len(r.rounds): r for r in records(made.folder)}
    plain, drafted = by_k[11], by_k[5]
    assert plain.tokens == drafted.tokens == [2, 3, 4, 0, 6, 7, 8, 9, 0, 11, 12]
    assert plain.text == drafted.text
    assert [r.drafted for r in plain.rounds] == [0] * 11
    # the prefill gives 2; then 3, 4 are kept and the 0 replaces 5; 6, 7, 8 are kept and 9 is new
    assert [(r.drafted, r.accepted, r.emitted) for r in drafted.rounds] == [
        (0, 0, 1),
        (3, 2, 3),
        (3, 3, 4),
        (3, 0, 1),
        (3, 1, 2),  # cut by the budget
    ]
    ars, sps = made.rows()
    assert (ars["method"], sps["method"]) == ("ArS", "SpS K=3")
    assert sps["block_efficiency"] == pytest.approx(11 / 5)
    assert sps["draft_acceptance"] == pytest.approx(6 / 12)
    assert sps["alpha_at.1"] == pytest.approx(3 / 4)


def test_a_text_ends_where_the_model_or_a_stop_string_ends_it(bench: Bench) -> None:
    ends = {r.finish for r in records(bench("model.gguf", max_new_tokens=40).folder)}
    assert ends == {"eos"}
    made = bench("model.gguf", max_new_tokens=40, stop=["8"], overwrite=True)
    for record in records(made.folder):
        assert (record.finish, record.text, record.tokens[-1]) == ("stop", "2 3 4 0 6 7 ", 8)


@pytest.mark.parametrize(
    ("file", "variables", "error"),
    [
        ("broken.gguf", {}, MissingError),  # cannot be loaded
        ("dies.gguf", {}, UnavailableError),
        ("slow.gguf", {}, UnavailableError),
        ("model.gguf", {"PYTHONPATH": ""}, MissingError),  # without the package
        ("model.gguf", {"SPS_ENGINES_PYTHON": "/nowhere/python"}, MissingError),
    ],
)
def test_an_engine_that_is_missing_fails_or_takes_too_long_is_one_line(
    bench: Bench, monkeypatch: Any, file: str, variables: dict[str, str], error: type[SpsError]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error):
        bench(file, ",timeout=2.0" if file == "slow.gguf" else "")


def test_a_file_without_a_tokenizer_gives_tokens_and_no_text(bench: Bench) -> None:
    made = next(iter(records(bench("bare.gguf", method="ars").folder)))
    assert (len(made.tokens), made.text) == (11, "")
