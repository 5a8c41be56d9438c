"""`--format html`: the generation as a page, to be read token by token and round by round."""

from pathlib import Path
from typing import Any

from spsbench.api.pair import Pair
from spsbench.api.prompts import ids_of
from spsbench.cli.generate.advice import advice
from spsbench.cli.notes import say
from spsbench.cli.safe import write
from spsbench.reports.html import trace_page
from spsbench.reports.page.traces import trace
from spsbench.settings.labels import method, setting
from spsbench.store.atomic import replace_file


def write_page(
    pair: Pair,
    prompt: str,
    out: Path | None,
    *,
    compared: bool,
    chat: bool,
    system: str | None,
    truncate: bool,
) -> None:
    """Generate from `prompt`, beside ArS if `compared`, and write the page.

    Raises:
        SpsError: as generating does; a file that cannot be written.
    """
    how: dict[str, Any] = {"chat": chat, "system": system, "truncate": truncate}
    lines: list[str] = []
    if compared:
        comparison = pair.compare(prompt, **how)
        arms = [comparison.sps, comparison.ars]
        lines += comparison.lines()
        lines += advice(comparison.sps, comparison)
    else:
        arms = [pair.generate(prompt, **how).arm]
        lines += advice(arms[0], None)
    ids = ids_of(pair.loaded, prompt, chat=chat, system=system)
    traces = [
        trace(
            each.record,
            name=method(each.cell),
            group="",
            tokenizer=pair.loaded.tokenizer,
            prompt=ids,
            prompt_text=prompt,
        )
        for each in arms
    ]
    cell = arms[0].cell
    about = {
        "models": ", ".join(str(model) for model in cell.models.all),
        "method": str(cell.method),
        "setting": setting(cell),
        **{f"{name} engine": engine for name, engine in pair.engines().items()},
    }
    made = trace_page("A text, token by token", traces, about, lines)
    if out is None:
        write(made)
        return
    replace_file(out, made.encode("utf-8"))
    say(f"wrote {out}")
