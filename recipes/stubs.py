"""Write the stub of the package from the options that its calls declare: `python recipes/stubs.py`.

An editor then completes the options of each call, with their types, defaults and the names of the
plug-ins; at run time `inspect.signature` has the same table.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import spsbench
from spsbench import errors
from spsbench.benchmark.bench import bench
from spsbench.extensions.transformers.generate import generate_with
from spsbench.pair.load import load
from spsbench.pair.pair import Pair
from spsbench.planning.plan import plan
from spsbench.registry import Kind, built_in
from spsbench.settings.options import OptionSpec
from spsbench.spec import Spec

STUB = Path(spsbench.__file__).with_suffix(".pyi")
CALLS = {
    "LoadOptions": (load, "`spsbench.load` and `spsbench.generate`"),
    "CallOptions": (Pair.generate, "`Pair.generate`, `stream`, `generation` and `compare`"),
    "GenerateWithOptions": (generate_with, "`spsbench.generate_with`"),
    "BenchOptions": (bench, "`spsbench.bench` and `Pair.bench`"),
    "PlanOptions": (plan, "`Pair.plan`"),
    "VerifyOptions": (Pair.verify, "`Pair.verify`"),
}
"""Name of the options of a call -> a function that declares them, and the calls that take them."""
PAIR = ("LoadOptions", "CallOptions", "PlanOptions", "VerifyOptions")  # these share most options
HOMES = {
    "benchmark.bench": ["bench"],
    "errors": ["Exit", *(name for name in vars(errors) if name.endswith("Error"))],
    "extensions.transformers.generate": ["generate_with"],
    "pair.load": ["generate", "load"],
    "pair.pair": ["Pair"],
    "version": ["__version__"],
}
PLUG_INS: dict[str, Kind] = {
    "drafter": "drafters",
    "verifier": "verifiers",
    "schedule": "schedules",
}
PLUG_INS |= {"engine": "engines", "draft_engine": "engines", "decoder": "decoders"}
WIDER = {  # options whose `parse` takes more than their type
    "bad_words": "str | Sequence[str]",
    "chat": 'bool | Literal["auto", "on", "off"]',
    "json_schema": "str | Path",
    "logit_bias": "str | Sequence[str] | Mapping[int, float] | Mapping[str, float]",
    "repetition_penalty": "float | str",
    "threads": 'int | Literal["auto"]',
}
WIDTH = 92


def stub() -> str:
    """Return the text of the stub, as ruff sorts and formats it."""
    text = "\n".join(lines())
    ruff = [sys.executable, "-m", "ruff"]
    for command in ["check", "--fix", "--select", "I"], ["format"]:
        line = [*ruff, *command, "--quiet", "--stdin-filename", str(STUB), "-"]
        text = subprocess.run(line, input=text, capture_output=True, text=True, check=True).stdout
    return text


def lines() -> Iterator[str]:
    """Yield the lines of the stub: imports, names of plug-ins, options of each call."""
    yield '"""The types of the package; written by recipes/stubs.py."""'
    yield "from collections.abc import Iterable, Mapping, Sequence"
    yield "from pathlib import Path"
    yield "from typing import Literal, TypeAlias, TypedDict"
    for home, names in sorted({**HOMES, "spec": ["Spec"]}.items()):
        yield f"from spsbench.{home} import {', '.join(sorted(names))}"
    listed = sorted(name for names in HOMES.values() for name in names)
    yield f"__all__ = [{', '.join(map(repr, listed))}]"
    for kind in sorted(set(PLUG_INS.values())):
        words = built_in(kind).replace(", ", '", "')
        yield f'{_alias(kind)}: TypeAlias = Literal["{words}"] | str | Spec'
    fields = {name: fields_of(call) for name, (call, _) in CALLS.items()}
    shared = set.intersection(*({*fields[name].items()} for name in PAIR))
    yield from _class("PairOptions", "TypedDict", "what makes and uses a pair", dict(shared))
    for name, (_, calls) in CALLS.items():
        base, inherited = ("PairOptions", shared) if name in PAIR else ("TypedDict", set())
        yield from _class(name, base, calls, dict(fields[name].items() - inherited))


def _class(name: str, base: str, calls: str, fields: Mapping[str, str]) -> Iterator[str]:
    """Yield a class of options, sorted by name."""
    yield f"class {name}({base}, total=False):"
    yield f'    """Options of {calls}; None: not given."""'
    yield from (fields[option] for option in sorted(fields))


def fields_of(call: Any) -> dict[str, str]:
    """Return the field of each option that a call declares, with its docstring, as text."""
    return {
        option: "\n".join([f"    {option}: {annotation(setting)} | None", *_docstring(setting)])
        for option, setting in call.options.items()
    }


def annotation(setting: OptionSpec) -> str:
    """Return the type of the values that a call takes for an option, as an annotation."""
    name, kind = setting.name, setting.kind
    if name in PLUG_INS:
        text = _alias(PLUG_INS[name])
    elif name in WIDER:
        text = WIDER[name]
    elif kind is tuple:
        text = "str | Sequence[str]"
    elif kind == tuple[int, ...]:
        text = "int | str | Iterable[int | str]"
    else:
        text = {Spec: "str | Spec", Path: "str | Path"}.get(kind) or str(kind.__name__)
    return f"{text} | Sequence[{text}]" if setting.many else text


def _alias(kind: str) -> str:
    """Return the name of the type that lists the plug-ins of a kind."""
    return kind.removesuffix("s").capitalize()


def _docstring(setting: OptionSpec) -> Iterator[str]:
    """Yield the docstring of an option: its help and its default."""
    option, default = setting.option, setting.default
    words = option.default_text or ("none" if default in (None, (), "") else _plain(default))
    text = f"{option.help.removesuffix('.')}. Default: {words}."
    yield from (f"    {line}" for line in wrap(f'"""{text}"""', WIDTH))


def _plain(default: Any) -> str:
    """Return a default in a word, values of a list separated by commas."""
    values = default if isinstance(default, tuple) else (default,)
    return ",".join(map(str, values))


if __name__ == "__main__":
    STUB.write_text(stub())
