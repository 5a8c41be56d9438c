"""Every part may be the base of another: with a constructor, fields and `super()` of its own."""

import inspect
from dataclasses import dataclass, is_dataclass

import pytest

from spsbench.loop.drafter_context import Drawn
from spsbench.methods.verifiers.chain_rules import Synthetic
from spsbench.methods.verifiers.sps import Sps
from spsbench.registry import BUILT_IN

KINDS = ("drafters", "verifiers", "schedules", "engines", "decoders")
LIMITLESS = type(
    "LM",
    (),
    {"limit": None, "vocab_size": 3, "drawn": Drawn.POINT, "tree": False, "layers": ()}
    | {"known_ids": None, "chat": "", "address": ""}
    | {"__iter__": lambda self: iter(()), "values": lambda self: ()},
)
PARTS = [entry for entry in BUILT_IN if entry.kind in KINDS and entry.name != "hf"]


@pytest.mark.needs_fast
@pytest.mark.parametrize("entry", PARTS, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_a_part_can_be_extended(entry):
    base = entry.load()
    if inspect.isabstract(base):
        pytest.skip("a family, which opens as a chain or a tree")
    empty = inspect.Parameter.empty
    needs = [p for p in inspect.signature(base).parameters.values() if p.default is empty]

    class Extended(base):
        def __init__(self, extra: int, **given: object) -> None:
            super().__init__(**given)
            self.extra = extra

        def __repr__(self):
            return f"more than {super().__repr__()}"

    made = Extended(3, **{p.name: LIMITLESS() for p in needs})
    assert made.extra == 3
    assert repr(made).startswith("more than ")
    assert not is_dataclass(base) or "__slots__" not in vars(base)


def test_a_rule_can_be_extended_with_fields():
    @dataclass(frozen=True)
    class Scaled(Synthetic):
        scale: float = 2.0

        def refuses(self, *given):
            return super().refuses(*given)

    assert Scaled(0.5, scale=3.0) == Scaled(0.5, scale=3.0)
    assert Sps() == Sps()
    assert hash(Sps()) == hash(Sps())
