"""Labels of cells in tables: the method and the sampling setting, in a few words.

`Names` labels several cells and adds whatever differs between them, so that no two are called
alike.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

from spsbench.settings.cell import (
    DISTRIBUTION,
    ENGINES_OWN,
    SAMPLING_FIELDS,
    Cell,
    Configuration,
    short_hash,
)
from spsbench.settings.models import ModelSpec
from spsbench.settings.processors import PROCESSORS
from spsbench.spec import Scalar, Spec

OF_SAMPLING = [name for name in SAMPLING_FIELDS if name not in (*DISTRIBUTION, "seed")]
"""Options of sampling that neither the setting nor the seed of a label shows."""
LONG, BEGINNING = 40, 24  # characters of an option in a label

USUAL = (Spec("sps"), Spec("auto"), Spec("match"))
"""Rules that the paper's tables leave out."""


def method(cell: Configuration) -> str:
    """Return a method's label, as `SpS ngram K=4`: usual parts left out; `ArS` at K = 0."""
    if cell.k == 0:
        return "ArS"
    how = "" if cell.drafter in (Spec("model"), ENGINES_OWN) else f" {cell.drafter}"
    target, draft = cell.target, cell.draft
    if draft is not None and draft.id == target.id and draft.weights != target.weights:
        how = f" self:{draft.weights}"  # as it is asked for
    rule = "" if cell.verifier in USUAL else f" {cell.verifier}{' (lossy)' * cell.lossy}"
    depth = f" {cell.schedule}" if cell.k is None else f" K={cell.k}"
    depth = "" if cell.schedule == ENGINES_OWN else depth
    return f"SpS{how}{rule}{depth}"


def setting(cell: Cell) -> str:
    """Return the label of the warp, with the chat template if one is used."""
    template = "chat template, own system message" if cell.system else "chat template"
    return f"{warp_label(cell)}, {template}" if cell.chat else warp_label(cell)


def warp_label(cell: Cell) -> str:
    """Return the changed options of the distribution: `greedy`, `top-p 0.8, T 0.5`; none: `T 1`."""
    greedy, changed = cell.temperature == 0, cell.changed_distribution
    parts, words = ["greedy"] * greedy, {"temperature": "T"}
    for name in reversed(PROCESSORS if greedy else DISTRIBUTION):
        values = changed.get(name, ())
        for value in values if isinstance(values, tuple) else (values,):
            number = f"{value:g}" if isinstance(value, float) else value
            parts.append(f"{words.get(name, name.replace('_', '-'))} {number}")
    return ", ".join(parts) or "T 1"


class Names:
    """Labels that tell the cells of one table apart: usual names, and all that differs.

    Args:
        cells: all cells of the table.
        whole: decoders of other engines with their arguments, paths and URLs among them.
    """

    def __init__(self, cells: Iterable[Cell], *, whole: bool = False) -> None:
        self._cells = list(dict.fromkeys(cells))
        self._decoders = {} if whole else short_decoders(self._cells)
        self.options = self._differing()
        """The options that differ between cells and that no name of `NAMED` tells."""
        tasks = {cell.task for cell in self._cells}
        self._tasks = Counter(task.short for task in tasks if task is not None)
        self._named = {
            name for name, read in NAMED.items() if len({read(c) for c in self._cells} - {""}) > 1
        }

    def setting(self, cell: Cell) -> str:
        """Return the setting of `cell`, with the target and the seed where these differ."""
        return self._joined(cell, "target", "setting", "seed")

    def work(self, cell: Cell) -> str:
        """Return the task and `setting` of `cell`; arguments only where names coincide."""
        task = cell.task
        alike = task is not None and self._tasks[task.short] > 1
        named = "" if task is None else str(task) if alike else task.name.rpartition("/")[2]
        return ", ".join(filter(None, (named, self.setting(cell))))

    def how(self, cell: Cell) -> str:
        """Return the method of `cell`, with the draft, engine and options that differ."""
        return ", ".join(
            filter(None, (self._joined(cell, "method", "draft", "engine"), self.option_text(cell)))
        )

    def full(self, cell: Cell) -> str:
        """Return `work` and `how` of `cell`."""
        return ", ".join(filter(None, (self.work(cell), self.how(cell))))

    def option_text(self, cell: Cell) -> str:
        """Return the values of `options` in `cell`: `decoder hf, dtype bfloat16`."""
        values = unnamed_options(cell)
        values["decoder"] = self._decoders.get(str(cell.decoder), str(cell.decoder))
        named = {name: value for name in self.options if (value := values.get(name))}
        return ", ".join(n if value is True else f"{n} {value}" for n, value in named.items())

    def _joined(self, cell: Cell, *names: str) -> str:
        always = ("setting", "method")
        parts = {name: NAMED[name](cell) for name in names if name in always or name in self._named}
        if parts.get("seed"):
            parts["seed"] = f"seed {parts['seed']}"
        return ", ".join(filter(None, parts.values()))

    def _differing(self) -> tuple[str, ...]:
        """Return options that differ between cells whose names, without the method's, are alike.

        Options come as they appear. Tasks decide some, as the length of texts, and temperatures the
        usual rule: an option that differs together with a name is shown by the name. A rule counts
        only where draft, method and all other options are alike.
        """
        seen: dict[tuple[str, ...], set[str | bool]] = {}
        for cell in self._cells:
            work = tuple(read(cell) for name, read in NAMED.items() if name not in OF_METHOD)
            how = tuple(NAMED[name](cell) for name in OF_METHOD)
            values_by_name = unnamed_options(cell)
            rule = values_by_name.pop("verifier", None)
            for name, value in values_by_name.items():
                seen.setdefault((name, *work), set()).add(value)
            if rule is not None:
                alike = *work, *how, *map(str, values_by_name.values())
                seen.setdefault(("verifier", *alike), set()).add(rule)
        return tuple(dict.fromkeys(key[0] for key, values in seen.items() if len(values) > 1))


def short_decoders(cells: Iterable[Cell]) -> dict[str, str]:
    """Map each decoder whose engine is elsewhere, as text, to a name without paths: `llamacpp`.

    Several of one engine keep their arguments, without folders and addresses where that tells them
    apart: `llamacpp:path=small.gguf`.
    """
    specs = list(dict.fromkeys(cell.decoder for cell in cells if cell.elsewhere))
    bare = {spec: replace(spec, args=tuple(map(_without_folder, spec.args))) for spec in specs}
    names = {spec: (spec.name, str(bare[spec]), str(spec)) for spec in specs}
    counts = Counter(name for several in names.values() for name in {*several})
    return {
        str(spec): next((name for name in several if counts[name] == 1), str(spec))
        for spec, several in names.items()
    }


def _without_folder(pair: tuple[str, Scalar]) -> tuple[str, Scalar]:
    name, value = pair
    return name, value.rstrip("/").rpartition("/")[2] if isinstance(value, str) else value


OF_METHOD = ("draft", "method")
NAMED: dict[str, Callable[[Cell], str]] = {
    "task": lambda cell: str(cell.task or ""),
    "target": lambda cell: cell.target.name,
    "draft": lambda cell: cell.draft.name if cell.draft else "",
    "method": method,
    "setting": setting,
    "engine": lambda cell: str(cell.target.engine),
    "seed": lambda cell: str(cell.seed),
}
"""Columns that identify a cell. Their text comes from users: quote it."""


def unnamed_options(cell: Cell) -> dict[str, str | bool]:
    """Return options of a cell that no name of `NAMED` shows; empty for None, "" and a batch of 1.

    A draft model's, if any, are empty where the target's are the same; `revision`, `parallel` stay.
    `verifier` is there for a rule of `USUAL` alone.
    """
    usual, values = _of_model(cell.target), _of_model(cell.target)
    del values["engine"]
    if cell.draft is not None:
        alone = ("revision", "parallel")
        values |= {
            f"draft_{name}": "" if value == usual[name] and name not in alone else value
            for name, value in _of_model(cell.draft).items()
        }
    if cell.verifier in USUAL and cell.k != 0:
        values["verifier"] = str(cell.verifier)
    return values | {
        "decoder": str(cell.decoder),
        **{name: _in_words(getattr(cell, name)) for name in OF_SAMPLING},
        "system": repr(cell.system) if cell.system else "",
        "prompt_version": cell.prompt_version,
        "batch": "" if cell.batch == 1 else str(cell.batch),
        "continuous": cell.continuous,
    }


def _in_words(value: Any) -> str | bool:
    """Return False for None, bools as they are, tuples quoted, others as text, cut above `LONG`."""
    if isinstance(value, tuple):
        return " ".join(map(repr, value))
    if value is None or isinstance(value, bool):
        return bool(value)
    text = str(value)
    digest = short_hash({"text": text}, 8)
    return text if len(text) <= LONG else f"{text[:BEGINNING]}... ({digest})"


def _of_model(model: ModelSpec) -> dict[str, str | bool]:
    """Return field -> text or bool, without `id` and `adapter`; of weights only `random` or ""."""
    values = {field.name: getattr(model, field.name) for field in fields(ModelSpec)}
    del values["id"], values["adapter"]
    values["weights"] = "random" if model.random else ""
    return {
        name: value if isinstance(value, bool) else str(value or "")
        for name, value in values.items()
    }
