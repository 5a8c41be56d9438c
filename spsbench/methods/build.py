"""From a cell to a decoder: the one place where names become parts."""

from typing import Any, NamedTuple

from spsbench.loop.decoder import Decoder
from spsbench.loop.timing import Stopwatch, TimedDrafter, TimedLM
from spsbench.loop.types import LM, Drafter, Engine, Schedule, Verifier
from spsbench.methods.resolve import plan_of
from spsbench.methods.site import LoadedSite
from spsbench.models.cache import Loaded
from spsbench.plugins import make
from spsbench.settings.cell import Cell


class Built(NamedTuple):
    """A decoder and the stopwatches around its draft and its target."""

    decoder: Decoder
    draft: Stopwatch
    target: Stopwatch


class LoadedStand:
    """`loop.decoder.Stand` for the models of a cell: fresh sessions over shared weights."""

    def __init__(self, cell: Cell, loaded: Loaded) -> None:
        place = loaded.target.device  # a cell's device may be "auto"
        self.cell, self._loaded = cell, loaded
        self.draft_watch, self.target_watch = Stopwatch(place), Stopwatch(place)
        self.target_model: Any = loaded.target
        self.draft_model: Any | None = loaded.draft
        self.tokenizer: Any = loaded.tokenizer
        self.draft_tokenizer: Any | None = loaded.draft_tokenizer
        self.vocab_size = loaded.vocab_size

    def drafter(self) -> Drafter:
        """The drafter, opened over what its plan names."""
        spec = self.cell.method.drafter
        site = LoadedSite(self.cell, self._loaded, plan_of(spec))
        drafter: Drafter = make("drafters", spec, site)
        return TimedDrafter(drafter, self.draft_watch)

    def target(self, layers: tuple[int, ...]) -> LM:
        """A session with the target."""
        engine: Engine = make("engines", self.cell.models.target.engine)
        session = engine.session(self._loaded.target, vocab_size=self.vocab_size, layers=layers)
        return TimedLM(session, self.target_watch)

    def verifier(self) -> Verifier:
        """The rule of the cell."""
        verifier: Verifier = make("verifiers", self.cell.method.verifier)
        return verifier

    def schedule(self) -> Schedule:
        """The schedule of the cell."""
        schedule: Schedule = make("schedules", self.cell.method.schedule)
        return schedule


def build(cell: Cell, loaded: Loaded) -> Built:
    """A decoder with fresh sessions over the loaded models, under stopwatches."""
    stand = LoadedStand(cell, loaded)
    decoder: Decoder = make("decoders", cell.method.decoder, stand)
    return Built(decoder, stand.draft_watch, stand.target_watch)
