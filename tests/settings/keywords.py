"""The keywords of the library with their types, made of the options.

`python -m tests.settings.keywords` writes `spsbench/settings/keywords.py`, which checkers of types
and editors read;
`test_keywords.py` holds the file equal to the options.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from spsbench.settings.cell_from_options import OF_CELL
from spsbench.settings.commands import LISTS, OF_AUDIT, OF_PLANNING
from spsbench.settings.constraint import KINDS as CONSTRAINTS
from spsbench.settings.execution import OF_ACCESS, OF_OUTPUT, OF_WORKERS
from spsbench.settings.experiment import OF_EXPERIMENT
from spsbench.settings.options import Setting
from spsbench.settings.sweep import LISTED, OF_SWEEP
from spsbench.spec import Spec

FILE = Path(__file__).parents[2] / "spsbench" / "settings" / "keywords.py"
HEAD = '''"""The keywords of the library, for checkers of types and editors: options by name.

Made of the options that the records of this room declare, by `python -m tests.settings.keywords`,
and held equal to them by a test: do not edit. None counts as not given.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from spsbench.spec import Spec

Schema = str | Path | Mapping[str, object] | type
"""A JSON schema: its text or file, a dict, or a class of pydantic."""
'''
FOLDERS = ("target", "draft", "data")  # texts that may name a folder or file
NUMBERS = "int | str | Iterable[int]"
READ = {"json_schema": "Schema", "regex": "str", "grammar": "str | Path"}
AS_GIVEN = {**dict.fromkeys(("k", "batch", "seeds"), NUMBERS), "chat": "bool | str"}


def kind(setting: Setting) -> str:
    """The type of one value."""
    own: Any = setting.kind
    if get_origin(own) is Literal:
        return f"Literal[{', '.join(map(repr, get_args(own)))}]"
    named = {Spec: "str | Spec", Path: "str | Path", tuple: "str | Sequence[str]"}.get(own)
    named = READ.get(setting.name) or named or own.__name__
    if own is str and setting.name in FOLDERS:
        named = "str | Path"
    return f'{named} | Literal["auto"]' if "auto" in (setting.option.metavar or "") else named


def listed(setting: Setting) -> str:
    """The type of one value or several."""
    own = kind(setting)
    return own if setting.kind is tuple else f"{own} | Sequence[{own}]"


def fields(settings: Iterable[Setting], types: Mapping[str, str] = {}) -> dict[str, str]:
    """Name -> type of each."""
    return {each.name: f"{types.get(each.name, kind(each))} | None" for each in settings}


def dicts() -> dict[str, tuple[str, str, dict[str, str]]]:
    """Name -> what it extends, what it is for, and its own fields."""
    several = {name: f"{listed(each)} | None" for name, each in LISTED.items()}
    lists = {name: f"{listed(OF_CELL[name])} | None" for name in LISTS}
    sweep = {n: t for n, t in fields(OF_SWEEP.values(), AS_GIVEN).items() if n != "task"}
    place = fields(OF_OUTPUT.values()) | fields(OF_WORKERS.values())
    cell = fields(OF_CELL.values())
    own = {n: t for n, t in cell.items() if n in (*LISTS, "stop", "k", *CONSTRAINTS)}
    shared = {n: t for n, t in cell.items() if n not in own}
    planning = fields(OF_PLANNING.values(), {"k": "int | str"})
    return {
        "SharedOptions": ("TypedDict", "Options of a call of a pair and of a plan.", shared),
        "CellOptions": ("SharedOptions", "Options of a call of a pair.", own),
        "RunOptions": ("TypedDict", "Options of the folder and the workers of a run.", place),
        "AccessOptions": (
            "TypedDict",
            "Options of the access to models.",
            fields(OF_ACCESS.values()),
        ),
        "LoadOptions": ("CellOptions, AccessOptions", "Options of `spsbench.load`.", {}),
        "VerifyOptions": ("CellOptions", "Options of `Pair.verify`.", fields(OF_AUDIT.values())),
        "BenchOptions": (
            "AccessOptions, RunOptions",
            "Options of `spsbench.bench`: several values of an option of cells are several cells.",
            sweep | several | fields(OF_EXPERIMENT.values()),
        ),
        "PlanOptions": (
            "SharedOptions, AccessOptions, RunOptions",
            "Options of `Pair.plan`: several drafts, drafters, verifiers and schedules are "
            "compared.",
            lists | planning,
        ),
    }


def text() -> str:
    """The file."""
    made = [HEAD]
    for name, (bases, told, own) in dicts().items():
        lines = [f'class {name}({bases}, total=False):\n    """{told}"""\n']
        lines += [f"    {field}: {kind}" for field, kind in own.items()]
        made.append("\n".join(lines))
    return "\n\n".join(part.rstrip("\n") + "\n" for part in made)


if __name__ == "__main__":
    FILE.write_text(text())
