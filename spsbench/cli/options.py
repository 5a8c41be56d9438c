"""Options on the command line: shared ones from the records, and those of single commands."""

import inspect
from collections.abc import Callable, Container, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from spsbench.cli.terminal import with_flags
from spsbench.errors import UsageError
from spsbench.plugins import plug_in
from spsbench.settings.options import OptionSpec, flag_of, options_of
from spsbench.spec import Spec
from spsbench.store.atomic import check_replaceable

PROMPT, OUTPUT = "Prompt", "Output"
FEW = 14  # options of records that a help shows in full
OFTEN = """
    target draft drafter verifier k temperature max_new_tokens seed threads
    only task prompts data limit batch out resume log bias workers baseline
    minutes steps loss kind layers
"""
"""Options of records that the help of a long command shows; `--help-all` shows the others."""
ON_SCREEN = {Spec: str, tuple: list[str]}  # how a kind is typed in on the command line


def option(group: str, *names: str, help: str, **more: Any) -> Any:
    """Return an option in one of the groups of `--help`."""
    return typer.Option(*names, help=help, rich_help_panel=group, **more)


def take_options(
    *records: Any, without: Container[str] = (), often: Iterable[str] = ()
) -> Callable[..., Any]:
    """Return a decorator that gives a command the options of records, by name if they were set.

    `records` are as for `settings.options.parse`; their options come before the command's own.
    `without` names options that the command does not have; its own parameter hides one of the same
    name. Of more than `FEW`, --help shows those of `OFTEN` and `often` alone.
    """
    listed = {*OFTEN.split(), *often}

    def dress(command: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of `command`: flags of `records` for its `**`, without None and []."""
        parameters = inspect.signature(command).parameters.values()
        own_parameters = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        own_names = {p.name for p in own_parameters}
        settings_by_name = {
            name: setting
            for name, setting in options_of(*records).items()
            if name not in own_names and name not in without
        }
        long = len(settings_by_name) > FEW
        flags = [
            _parameter(s, seldom=long and s.name not in listed) for s in settings_by_name.values()
        ]
        first = [p for p in own_parameters if _is_argument(p)]
        others = [p for p in own_parameters if not _is_argument(p)]

        @wraps(command)
        def run(**values: Any) -> Any:
            given_values = {
                n: v
                for n, v in values.items()
                if n not in settings_by_name or v not in (None, [], ())
            }
            return command(**given_values)

        signature = inspect.Signature(
            [p.replace(kind=p.KEYWORD_ONLY) for p in (*first, *flags, *others)]
        )
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return run

    return dress


def _is_argument(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is a positional argument."""
    declared = get_args(parameter.annotation)[1:]
    return any(isinstance(mark, typer.models.ArgumentInfo) for mark in declared)


def _parameter(setting: OptionSpec, seldom: bool) -> inspect.Parameter:
    """Return a flag, default None, with --no- for `bool | None`; `seldom`: --help-all shows it."""
    kind = ON_SCREEN.get(setting.kind, str if setting.option.parse else setting.kind)
    if setting.many and get_origin(kind) is not list and kind is not bool:
        kind = list[kind]  # type: ignore[valid-type]
    default = setting.option.default_text
    if default is None and setting.default not in (None, False, (), ""):
        default = str(setting.default)
    flags = (f"-{f}" if len(f) == 1 else f"--{f}" for f in setting.option.flags)
    switch, flag = setting.kind is bool and setting.default is None, flag_of(setting.name)
    declared = option(
        setting.option.group,
        f"{flag}/--no-{flag[2:]}" if switch else flag,
        *flags,
        help=with_flags(setting.option.help),
        show_default=default or False,
        metavar=setting.option.metavar,
        hidden=seldom,
    )
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, declared],
    )


format_option = partial(option, OUTPUT, "--format", "-f")
out_option = partial(option, OUTPUT, "--out", "-o")
TextFormat = Annotated[
    Literal["text", "json", "html"],
    format_option(help="Output format: text, json (one object) or html (a page to step through)."),
]
LineFormat = Annotated[Literal["text", "json"], format_option(help="Output format.")]
PageFile = Annotated[
    Path | None, out_option(help="With --format html: file for the page, instead of stdout.")
]
TableFormat = Annotated[Literal["table", "json"], format_option(help="Output format.")]
AuditFormat = Annotated[
    Literal["table", "json", "html"],
    format_option(help="Output format; html goes to the file --out."),
]
ReportFormat = Annotated[
    str,
    format_option(
        metavar="NAME",
        help="Output format: table, md, csv, json, latex, html, parquet, or another of "
        "sps list reporters.",
    ),
]
Chart = Annotated[
    bool,
    option(
        OUTPUT,
        "--chart/--no-chart",
        help="Draw a chart of the speed-ups below the table, on a terminal.",
        hidden=True,
    ),
]
Plot = Annotated[
    Path | None,
    option(
        OUTPUT,
        "--plot",
        help="Plot the e-values to PATH.png and PATH.svg, or to one of them.",
        hidden=True,
    ),
]


def check_page(format: str, out: Path | None) -> None:
    """Raise UsageError for `out` without `format` html, SpsError where `out` cannot be replaced."""
    if out is not None and format != "html":
        raise UsageError(f"--out {out} without --format html: expected both or none")
    if out is not None:
        check_replaceable(out)


def report_format(name: str) -> str:
    """Return the reporter that --format names, with its arguments; UsageError: none such."""
    try:
        spec = Spec.parse(name)
    except ValueError as error:
        raise UsageError(f"--format {error}") from error
    plug_in("reporters", spec)
    return str(spec)
