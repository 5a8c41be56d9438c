"""From a cell to parts: what is refused before a model is touched, and what is put together."""

from dataclasses import asdict, dataclass

import pytest
import torch

from spsbench.errors import DataError, UsageError
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Drafter, Drawn, Schedule
from spsbench.methods.build import build
from spsbench.methods.decoders.native import NativeDecoder
from spsbench.methods.resolve import resolve, warp
from spsbench.methods.schedules.by_history import Constant
from spsbench.models.cache import Loaded, ModelCache
from spsbench.plugins import arguments
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from tests.folders import byte_tokenizer, random_model, save
from tests.oracles.models import tiny

SAMPLED = Cell(target=ModelSpec("t"), draft=ModelSpec("d"))
LOOKED_UP = Cell(target=ModelSpec("t"), drafter=Spec("ngram"))


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    ("cell", "verifier"),
    [
        (SAMPLED, "sps"),
        (LOOKED_UP, "match"),
        (Cell(target=ModelSpec("t"), drafter=Spec("none")), "sps"),
        (SAMPLED.but(verifier=Spec("block")), "block"),
        (SAMPLED.but(verifier=Spec("match")), "match"),
    ],
)
def test_the_verifier_that_goes_with_the_drafter(cell, verifier):
    resolved = resolve(cell)
    assert resolved.verifier == Spec(verifier)
    assert resolved.but(verifier=cell.verifier) == cell
    assert resolve(resolved) == resolved


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    "changes",
    [
        {"target": ModelSpec("t", engine=Spec("beam"))},
        {"draft": ModelSpec("d", engine=Spec("beam"))},
        {"draft": None},
        {"drafter": Spec("ngram")},
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"draft": None, "drafter": Spec("ngram"), "verifier": Spec("sps")},
        {"draft": None, "drafter": Spec("ngram"), "verifier": Spec("block")},
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused(changes):
    with pytest.raises(UsageError) as refused:
        resolve(SAMPLED.but(**changes))
    assert "\n" not in str(refused.value)


@dataclass
class Part(Schedule):
    whole: int = 1
    real: float = 1.0
    flag: bool = False
    word: str = "a"

    def __post_init__(self):
        if self.whole < 0:
            raise ValueError(f"whole is {self.whole}: expected 0 or more")

    def k(self, history):
        return self.whole

    def go_on(self, p):
        return torch.ones((), dtype=torch.bool)


def test_arguments_are_read_as_the_part_declares_them():
    spec = Spec.parse("part:whole=2,real=3,flag=true,word=b")
    typed = arguments(spec, Part)
    assert typed == {"whole": 2, "real": 3.0, "flag": True, "word": "b"}
    assert type(typed["real"]) is float


@pytest.mark.needs_fast
def test_the_warp_is_that_of_the_cell():
    made = warp(SAMPLED.but(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1))
    assert asdict(made) == asdict(Warp(0.5, 3, 0.9, 0.1))


@pytest.mark.needs_fast
def test_parts_are_put_together_over_the_models():
    target, draft = random_model(), random_model(noise=0.1)
    loaded = Loaded(target, draft, byte_tokenizer(), 280, frozenset(), None)
    cell = resolve(SAMPLED.but(schedule=Spec("constant", (("lookahead", 3),))))
    first, second = build(cell, loaded), build(cell, loaded)
    assert isinstance(first, NativeDecoder)
    assert first.schedule == Constant(3)
    assert first.target.vocab_size == 280
    assert first.drafter.limit == 512
    assert first.target is not second.target


@pytest.mark.needs_fast
def test_models_are_loaded_for_each_other(tmp_path, said):
    target = save(tmp_path / "target", random_model())
    draft = save(tmp_path / "draft", random_model(noise=0.1))
    cell = Cell(target=ModelSpec(str(target)), draft=ModelSpec(str(draft)))
    loaded = ModelCache(Access(offline=True)).load(cell)
    assert loaded.draft is not None
    assert loaded.folder == target
    assert loaded.vocab_size == len(byte_tokenizer())
    assert loaded.eos == {loaded.tokenizer.eos_token_id}
    assert loaded.target.dtype == torch.float32
    assert not loaded.target.training
    assert said == []

    alone = ModelCache(Access(offline=True)).load(cell.but(draft=None))
    assert alone.draft is None


def test_models_of_different_tokens_are_refused(tmp_path):
    other = byte_tokenizer()
    other.add_tokens(["<extra>"])
    vocab = len(other)
    target = save(tmp_path / "target", random_model())
    draft = save(tmp_path / "draft", tiny("llama", vocab=vocab, dtype=torch.float32), other)
    cell = Cell(target=ModelSpec(str(target)), draft=ModelSpec(str(draft)))
    with pytest.raises(DataError):
        ModelCache(Access(offline=True)).load(cell)


class Needy(Drafter):
    """Has an argument without a default."""

    drawn = Drawn.POINT

    def __init__(self, width: int) -> None:
        self.width = width

    def draft(self, context, k, noise, go_on):
        raise NotImplementedError


@pytest.mark.needs_fast
def test_a_drafter_that_cannot_be_made_is_a_line(registered):
    registered("drafters", "needy", "tests.methods.test_build:Needy")
    with pytest.raises(UsageError):
        resolve(LOOKED_UP.but(drafter=Spec("needy")))
    assert resolve(LOOKED_UP.but(drafter=Spec("needy", (("width", 3),))))
