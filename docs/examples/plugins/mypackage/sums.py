"""A task: sums to complete."""

from collections.abc import Iterator, Sequence

from spsbench.metrics.parity import average
from spsbench.settings.task import Fits, Sample, Task


class Sums(Task):
    """A number and itself, to be added."""

    name = "sums"
    prompt_version = "1"
    max_new_tokens = 8
    stop = ("\n",)
    metrics = ("right",)

    def __init__(self, count: int = 20) -> None:
        self._count = count
        self.title = f"{count} sums"

    def samples(self, fits: Fits) -> Iterator[Sample]:
        for i in range(self._count):
            yield Sample(f"sum-{i}", f"{i} + {i} =", reference=str(i + i))

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        return {"right": float(completion.strip() == sample.reference)}

    @staticmethod
    def combine(scores: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
        return average(scores)
