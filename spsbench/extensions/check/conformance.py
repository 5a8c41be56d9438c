"""Conformance of an engine: audits of a matrix's rows, and the table of its page.

Each row starts its server and checks it; the next row keeps a server with the same command. The
folder of a run holds NAME.jsonl.gz (the
answers), NAME.json (the result), NAME.log (what the server printed) and `table.md`. Rows that have
a result are not run again. A row that cannot be run says why, and the others go on.
"""

import json
import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from spsbench.audit.statistical.audit import AuditVerdict
from spsbench.errors import DataError, SpsError, UnavailableError, WriteError, first_line
from spsbench.extensions.check.journal import COMPRESSED, compress
from spsbench.extensions.check.library import check, load_weights
from spsbench.extensions.check.matrix import PORT, Matrix, Row
from spsbench.extensions.check.page import as_json, printable
from spsbench.extensions.check.plan import MODES
from spsbench.extensions.check.served import Key, Servers
from spsbench.extensions.check.texts import CheckProgress
from spsbench.messages import ignore
from spsbench.settings.options import flag_of
from spsbench.store.atomic import replace_file

log = logging.getLogger(__name__)

TELLING = ("vllm", "sglang")  # engines that count their drafts for each request
HEADINGS = (
    *("row", "method, options", "K", "model, dtype", "mode", "reference", "tokens"),
    *("claim or e-value", "controls", "acceptance", "verdict", "twin", "upstream", "evidence"),
)
NOT_RUN = "not run"
WORDS_OF_MODES = {
    "mixed": "greedy beside sampled",
    "stop": "stop strings",
    "cache": "long prompts, asked again",
    "seeds": "seeds",
}


@dataclass
class MatrixProgress:
    """The row that runs, and the progress of its check."""

    total: int
    done: int = 0
    name: str = ""
    check: CheckProgress | None = None  # None: its server starts

    def __str__(self) -> str:
        part = "its server starts" if self.check is None else str(self.check)
        return f"row {self.done + 1} of {self.total}, {self.name}: {part}"


@dataclass
class RowResult:
    """The outcome of one row."""

    row: Row
    result: dict[str, Any] | None = None  # as `page.as_json`
    why: str = ""  # of a row without a result
    remarks: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Return the verdict in a few words; that of a plain server is not of speculation."""
        if self.result is None:
            return f"{NOT_RUN}: {self.why}"
        verdict = str(self.result.get("verdict"))
        if self.row.speculates and self.result.get("drafts") == 0:
            return f"plain server where speculation is claimed ({verdict})"
        return verdict

    @property
    def biased(self) -> bool:
        """Return whether a bias was found."""
        return self.result is not None and self.result.get("verdict") == AuditVerdict.BIAS

    @property
    def held(self) -> bool:
        """Return whether the row is about what it claims, and held."""
        return self.result is not None and self.verdict == AuditVerdict.HELD


def run_matrix(
    matrix: Matrix, folder: Path, *, watch: Callable[[MatrixProgress], None] = ignore
) -> list[RowResult]:
    """Run the rows that have no result in `folder` yet, and write its table.

    Raises:
        WriteError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError.of(error, folder) from error
    load = cache(load_weights)
    results: list[RowResult] = []
    progress = MatrixProgress(len(matrix.rows))

    def watch_check(check_progress: CheckProgress) -> None:
        progress.check = check_progress
        watch(progress)

    with Servers() as servers:
        for number, row in enumerate(matrix.rows, 1):
            log.info(f"row {number} of {len(matrix.rows)}: {row.name}")
            progress.done, progress.name, progress.check = number - 1, row.name, None
            watch(progress)
            results.append(run_row(matrix, row, folder, servers, load=load, watch=watch_check))
            log.info(f"row {row.name}: {printable(results[-1].verdict)}")
            replace_file(folder / "table.md", markdown(matrix, results).encode())
    return results


def run_row(
    matrix: Matrix,
    row: Row,
    folder: Path,
    servers: Servers,
    *,
    load: Callable[[str], Any] = load_weights,
    watch: Callable[[CheckProgress], None] = ignore,
) -> RowResult:
    """Check the server of one row; an error becomes the reason why it has no result."""
    outcome = RowResult(row)
    result_path = folder / f"{row.name}.json"
    if row.word("skip"):
        outcome.why = row.word("skip")
        return outcome
    try:
        if result_path.is_file():
            outcome.result = _kept(result_path)
        else:
            outcome.result = _examine(row, folder, servers, load, watch)
            content = json.dumps(outcome.result, indent=1, allow_nan=False)
            replace_file(result_path, f"{content}\n".encode())
    except WriteError:
        raise
    except (SpsError, OSError) as error:
        outcome.why = printable(first_line(error))
        return outcome
    except Exception as error:
        log.exception("a row failed")  # a defect here must not end the other rows
        kind = type(error).__name__
        outcome.why = printable(f"a defect of this program ({kind}: {first_line(error)})")
        return outcome
    told = str(outcome.result.get("engine", ""))
    if matrix.version is not None and matrix.version not in told:
        says = told if any(c.isdigit() for c in told) else f"{told}, without a version"
        outcome.remarks.append(f"the server says {says}, the matrix {matrix.version}")
    of_modes = tuple(f"{mode}:" for mode in MODES)
    notes = outcome.result.get("notes") or ()
    outcome.remarks += [str(note) for note in notes if str(note).startswith(of_modes)]
    if row.speculates and outcome.result.get("drafts") is None:
        outcome.remarks.append("the engine tells nothing of its drafts")
    if row.speculates is False and outcome.result.get("drafts"):
        outcome.remarks.append("the server drafts where the matrix says that it is plain")
    return outcome


def _kept(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"no result ({path}): expected one of this command. Remove it") from error
    if not isinstance(values, dict) or "verdict" not in values:
        raise DataError(f"no result ({path}): expected one of this command. Remove it")
    return values


def _examine(
    row: Row,
    folder: Path,
    servers: Servers,
    load: Callable[[str], Any],
    watch: Callable[[CheckProgress], None],
) -> dict[str, Any]:
    keep = folder / f"{row.name}.jsonl"
    variables = tuple(sorted(row.environment.items()))
    commands = {"plain": row.baseline_serve, "server": row.serve}
    keys: dict[str, Key] = {
        role: (role, command, variables) for role, command in commands.items() if command
    }
    servers.end_others(list(keys.values()))
    logs = {"plain": folder / f"{row.name}.plain.log", "server": folder / f"{row.name}.log"}
    try:
        started = {role: servers.started(key, logs[role], row.start) for role, key in keys.items()}
        url = started["server"].url if row.serve else row.url
        baseline = started["plain"].url if row.baseline_serve else row.baseline
        if url is None:
            raise DataError("no server")
        plan = replace(row.options.plan(url, baseline), served=bool(row.serve))
        try:
            checked = check(plan, keep, resume=keep.is_file(), load=load, watch=watch)
        except UnavailableError as error:
            for served in started.values():
                served.say_end(error)
            raise
    except UnavailableError:
        servers.end_others(())  # the next row begins with a server of its own
        raise
    result = as_json(checked)
    acceptance = checked.acceptance
    telling = checked.engine.startswith(TELLING)
    result["drafts"] = acceptance.rounds if acceptance else (0 if telling else None)
    result["date"] = datetime.now(UTC).date().isoformat()
    result["command"] = command_of(row, plan.url, plan.baseline)
    if keep.is_file():
        compress(keep, keep.with_name(keep.name + COMPRESSED))
    return result


def command_of(row: Row, url: str, baseline: str | None) -> str:
    """Return the commands that repeat a row: its servers, and the check."""
    words = ["sps", "check", url, *((flag_of("baseline"), baseline) if baseline else ())]
    for name, value in row.stated.items():
        values = value if isinstance(value, list | tuple) else [value]
        for single in values:
            words += [flag_of(name)] if single is True else [flag_of(name), str(single)]
    variables = [f"{key}={shlex.quote(value)}" for key, value in row.environment.items()]
    port = url.rpartition(":")[2]
    started = [word.replace(PORT, port) for word in row.serve]
    lines = [" ".join([*variables, shlex.join(started)])] if started else []
    return "\n".join([*lines, shlex.join(words)])


def markdown(matrix: Matrix, results: Sequence[RowResult]) -> str:
    """Return the table, the reasons and the commands, as Markdown."""
    dates = sorted({str(r.result["date"]) for r in results if r.result and "date" in r.result})
    engines = sorted({str(r.result["engine"]) for r in results if r.result})
    about = [f"Engines as the servers name them: {', '.join(engines) or 'none was reached'}."]
    about += [f"Run on {' and '.join(dates)}."] if dates else []
    lines = [f"## {cell(matrix.name)}", "", cell(" ".join(about)), ""]
    lines += [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    lines += [f"| {' | '.join(map(cell, cells(outcome)))} |" for outcome in results]
    notes = [f"- {cell(r.row.name)}: {cell(note)}" for r in results for note in r.remarks]
    lines += ["", *notes] if notes else []
    for outcome in results:
        if outcome.result and "command" in outcome.result:
            command = "\n".join(map(printable, str(outcome.result["command"]).splitlines()))
            lines += ["", f"{cell(outcome.row.name)}:", "", "```sh", command, "```"]
    return "\n".join(lines) + "\n"


def cells(outcome: RowResult) -> tuple[str, ...]:
    """Return the cells of a row, in the order of `HEADINGS`."""
    row, result = outcome.row, outcome.result or {}
    law, greedy = result.get("law") or {}, result.get("greedy") or {}
    model = ", ".join(filter(None, (row.word("model"), row.word("dtype"))))
    server = law.get("server") or {}
    claims = []
    if law.get("bias_caught_with_probability_0.99") is not None:
        claims.append(f"bias of {law['bias_caught_with_probability_0.99']:.3f} or more")
    if server.get("e_value_log10") is not None:
        claims.append(f"e = 10^{server['e_value_log10']:.1f}")
    claims += [str(greedy["line"])] if greedy else []
    modes = result.get("modes") or {}
    claims += [f"{part} {mode['line']}" for part, mode in modes.items()]
    claims += [f"seeds: {result['seeds']['line']}"] if result.get("seeds") else []
    claims += [f"{part}: refused" for part in result.get("refused") or ()]
    controls = []
    if planted := law.get("control"):
        controls.append(f"planted bias caught in {planted['caught']} of {planted['repeats']}")
    if base := law.get("baseline"):
        controls.append(f"baseline e = 10^{base['e_value_log10']:.1f}")
    figures = (result.get("acceptance") or {}).get("figures") or {}
    rate = figures.get("draft acceptance, accepted / drafted")
    twin = row.word("twin")
    return (
        row.name,
        row.word("method"),
        "" if row.k is None else str(row.k),
        model or str(result.get("model") or ""),
        row.word("mode") or mode_of(row),
        str(law.get("mode") or ("greedy text" if greedy else "")),
        str(server.get("tokens") or ""),
        "; ".join(claims),
        "; ".join(controls),
        "" if rate is None else f"{rate:.3f}",
        outcome.verdict,
        "no twin could be had" if twin == "none" else twin,
        row.word("upstream"),
        _evidence(outcome),
    )


def _evidence(outcome: RowResult) -> str:
    """Return the name of the kept answers, linked where the matrix names their folder."""
    name = f"{outcome.row.name}.jsonl.gz"
    if outcome.result is None:
        return ""
    return (
        f"[{name}]({outcome.row.word('evidence')}/{name})" if outcome.row.word("evidence") else name
    )


def mode_of(row: Row) -> str:
    """Return the sampling of a row in words."""
    options = row.options
    temperatures = options.temperature or (("1", "0.5") if options.weights else ("1",))
    words: list[str] = []
    if not options.only or "law" in options.only:
        words += [f"T {' and '.join(temperatures)}"]
        words += [f"top-p {options.top_p:g}"] if options.top_p != 1 else []
        words += [f"top-k {options.top_k}"] if options.top_k else []
    words += ["greedy"] if not options.only or "greedy" in options.only else []
    words += [WORDS_OF_MODES[part] for part in options.only if part in WORDS_OF_MODES]
    words += [f"batch {options.together}"] if options.together else []
    return ", ".join(words)


def cell(text: str) -> str:
    """Return a text in one cell of a table: visible, cut, without a bar."""
    return printable(text).replace("|", "\\|")
