"""Files of questions by category: MT-Bench, Spec-Bench and SPEED-Bench, which share one format.

A row is `{"question_id", "category", "turns"}`, as JSONL or parquet. The category is the group of
`sps report --by group`. A chat model is asked every turn, a base model the first. Answers are not
scored: MT-Bench's are judged by another model, the others' texts are the target's own.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from spsbench.errors import DataError
from spsbench.settings.task import Metric, Sample
from spsbench.tasks.jsonl import Jsonl
from spsbench.tasks.reader import FileRow

REPOSITORY, FILE = "HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl"
MT_BENCH = "writing roleplay reasoning math coding extraction stem humanities"
UNRESOLVED = "FULL BENCHMARK DATA SHOULD BE FETCHED"  # how SPEED-Bench marks texts of others


class Questions(Jsonl):
    """The questions of a benchmark; subclasses name it."""

    data = "data"
    quality: ClassVar[MappingProxyType[str, Metric]] = MappingProxyType({})
    benchmark: ClassVar[str]
    groups: ClassVar[Mapping[str, str]] = MappingProxyType({})  # category -> group, if another
    tokens: ClassVar[int] = 1024

    def __init__(
        self, data: str = "", max_new_tokens: int | None = None, category: str = ""
    ) -> None:
        """Read the questions; ValueError: no data, or no new tokens. SpsError: unusable data.

        Args:
            data: `hub` (of `mtbench`, its default), or a path to JSONL (perhaps gzipped), parquet,
                or a folder that `datasets` loads.
            max_new_tokens: maximum number of tokens to generate; None: `tokens`.
            category: ask the questions of this group alone.
        """
        if (data or "hub") in self.hub:
            from spsbench.models.hub import fetch_file

            data = str(fetch_file(REPOSITORY, FILE))
        if not data:
            raise ValueError(f"no data: expected {self.name}:data=FILE, or `data` FILE")
        super().__init__(data, self.tokens if max_new_tokens is None else max_new_tokens)
        groups = dict.fromkeys(str(sample.group) for sample in self._samples)
        if category and category not in groups:
            raise DataError(
                f"no category {category!r} ({data}): expected one of {', '.join(groups)}"
            )
        if category:
            self._samples = [sample for sample in self._samples if sample.group == category]
        kinds = category or f"{len(groups)} categories"
        self.title = f"{self.benchmark}, {len(self._samples):,} questions of {kinds} ({data})"

    def _read(self, row: FileRow, number: int) -> Sample:
        """Return a row's sample, and keep its later turns in `_later`.

        Its group is that of its category in `groups`, or else the category. Other fields than id,
        turns and category are not read. DataError: no turns or category, or a placeholder as text.
        """
        if not isinstance(row.values.get("turns"), list):
            raise DataError(
                f"no 'turns' ({row.where}): expected 'question_id', 'category' and 'turns', as in "
                f"{self.benchmark}. For other rows name the task jsonl"
            )
        values: dict[str, Any] = {
            key: row.values[key] for key in ("question_id", "turns") if key in row.values
        }
        sample = super()._read(FileRow(row.where, values), number)
        if any(text.startswith(UNRESOLVED) for text in (sample.prompt, *self._later[sample.id])):
            raise DataError(
                f"a placeholder instead of a text ({row.where}): expected resolved data. Run "
                "NVIDIA's prepare_data.py (Model-Optimizer, examples/specdec_bench), and name the "
                "parquet file that it writes"
            )
        category = row.text("category")
        return replace(sample, group=self.groups.get(category, category))


class MtBench(Questions):
    """MT-Bench: 80 questions of two turns in 8 categories (Zheng et al. 2023, arXiv 2306.05685)."""

    name, benchmark, hub = "mtbench", "MT-Bench", ("hub",)


class SpecBench(Questions):
    """Spec-Bench: 480 questions of 6 tasks (Xia et al. 2024, arXiv 2401.07851).

    Its file has MT-Bench's eight categories; its own figures, and the groups here, have one of
    them all.
    """

    name, benchmark = "specbench", "Spec-Bench"
    groups = MappingProxyType(dict.fromkeys(MT_BENCH.split(), "mt_bench"))


class SpeedBench(Questions):
    """SPEED-Bench: 880 questions of 11 categories, or prompts of one length (arXiv 2604.09557)."""

    name, benchmark, tokens = "speedbench", "SPEED-Bench", 4096
