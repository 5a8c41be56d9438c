"""`sps bench`: a task under several methods, into a run that survives anything."""

from pathlib import Path
from typing import Annotated, Any

import typer

from spsbench.cli import options as o
from spsbench.cli.notes import note, say
from spsbench.config import K_MAX
from spsbench.errors import UsageError
from spsbench.options import Options, options, read_tables
from spsbench.ranges import repeated

WHAT, SIZE, RUN = "What is run", "How much", "The run"

Many = list[str] | None


def bench(
    task: Annotated[
        str | None,
        typer.Argument(help="xsum, humaneval, jsonl:path=FILE or latency; or give --config."),
    ] = None,
    config: Annotated[
        Path | None, o.option(WHAT, "--config", help="An experiment in TOML; flags win over it.")
    ] = None,
    data: Annotated[str | None, o.option(WHAT, "--data", help="auto, hub, mini or a path.")] = None,
    k: Annotated[
        str | None, o.option(WHAT, "--k", "-k", help="4, 1..8, 1..9..2, 2,4,6", show_default="4")
    ] = None,
    method: Annotated[
        str | None, o.option(WHAT, "--method", help="ars,sps", show_default="ars,sps")
    ] = None,
    setting: Annotated[
        str | None, o.option(WHAT, "--setting", help="nucleus,greedy as in the paper.")
    ] = None,
    temperature: Annotated[
        float | None, o.option(WHAT, "--temperature", help="0 = greedy.")
    ] = None,
    top_p: Annotated[float | None, o.option(WHAT, "--top-p", help="1 = off.")] = None,
    target: Annotated[Many, o.option(WHAT, "--target", help="Repeatable, like the next.")] = None,
    draft: Annotated[Many, o.option(WHAT, "--draft", help="Draft models.")] = None,
    drafter: Annotated[Many, o.option(WHAT, "--drafter", help="NAME[:key=value,...]")] = None,
    verifier: Annotated[Many, o.option(WHAT, "--verifier", help="NAME[:key=value,...]")] = None,
    schedule: Annotated[Many, o.option(WHAT, "--schedule", help="NAME[:key=value,...]")] = None,
    engine: Annotated[Many, o.option(WHAT, "--engine", help="NAME[:key=value,...]")] = None,
    decoder: Annotated[
        Many, o.option(WHAT, "--decoder", help="native, or hf: transformers' own generate.")
    ] = None,
    record: Annotated[
        str | None,
        o.option(RUN, "--record", help="counts, or laws: p and q too.", show_default="counts"),
    ] = None,
    max_new_tokens: Annotated[
        int | None, o.option(SIZE, "--max-new-tokens", "-n", help="Instead of the task's.")
    ] = None,
    ignore_end: Annotated[
        bool, o.option(SIZE, "--ignore-end", help="Texts of full length: timing only.")
    ] = False,
    limit: Annotated[int | None, o.option(SIZE, "--limit", help="Prompts of the task.")] = None,
    samples: Annotated[int | None, o.option(SIZE, "--samples", help="Texts a prompt.")] = None,
    repeats: Annotated[int | None, o.option(SIZE, "--repeats", help="Timings of each.")] = None,
    warmup: Annotated[int, o.option(SIZE, "--warmup", help="Prompts run before timing.")] = 1,
    seed: Annotated[int, o.option(SIZE, "--seed", help="Of all noise and orders.")] = 0,
    out: Annotated[
        Path | None, o.option(RUN, "--out", "-o", help="Folder.", show_default="results/...")
    ] = None,
    resume: Annotated[bool, o.option(RUN, "--resume", help="Go on with a run.")] = False,
    resume_anyway: Annotated[
        bool, o.option(RUN, "--resume-anyway", help="Even under another configuration.")
    ] = False,
    overwrite: Annotated[
        bool, o.option(RUN, "--overwrite", help="Move the old run aside.")
    ] = False,
    shard: Annotated[str, o.option(RUN, "--shard", help="i/n: a slice of the samples.")] = "0/1",
    score: Annotated[
        bool | None,
        o.option(
            RUN,
            "--score/--no-score",
            help="Execute HumanEval programs in a sandbox at the end.",
            show_default="if one holds",
        ),
    ] = None,
    dry_run: Annotated[
        bool, o.option(RUN, "--dry-run", help="Show the cells and an estimate, and end.")
    ] = False,
    revision: Annotated[
        str | None, o.option(o.MODELS, "--revision", help="Hub revision of the targets.")
    ] = None,
    draft_revision: Annotated[
        str | None, o.option(o.MODELS, "--draft-revision", help="Hub revision of the drafts.")
    ] = None,
    random_weights: Annotated[
        bool, o.option(o.MODELS, "--random-weights", help="Shapes only: timing, no meaning.")
    ] = False,
    device: Annotated[str | None, o.option(o.MACHINE, "--device", help="cpu, cuda, mps")] = None,
    dtype: Annotated[str | None, o.option(o.MACHINE, "--dtype", help="auto, float32, ...")] = None,
    threads: o.Threads = None,
    offline: o.Offline = False,
    debug: o.Debug = False,
) -> None:
    """Run TASK under auto-regressive and speculative sampling, and report speed and quality."""
    flags: dict[str, Any] = {
        "task": task,
        "data": data,
        "k": k,
        "method": method.split(",") if method else None,
        "setting": setting.split(",") if setting else None,
        "temperature": temperature,
        "top_p": top_p,
        "target": target,
        "draft": draft,
        "drafter": drafter,
        "verifier": verifier,
        "schedule": schedule,
        "engine": engine,
        "decoder": decoder,
        "record": record,
        "max_new_tokens": max_new_tokens,
        "ignore_end": ignore_end or None,
        "limit": limit,
        "samples": samples,
        "repeats": repeats,
        "revision": revision,
        "draft_revision": draft_revision,
        "random_weights": random_weights or None,
        "device": device,
        "dtype": dtype,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    title, tables = asked(config, given)
    slice_ = shard_of(shard)
    if overwrite and (resume or resume_anyway):
        raise UsageError("--resume with --overwrite: expected one of them. Leave one out")

    from spsbench.cli.machine import prepare_tables

    prepare_tables(tables, offline=offline)

    from spsbench.experiment import plan

    experiment = plan(tables, seed=seed, warmup=warmup, threads=threads, title=title)
    for table in tables:
        for number in repeated(table.k, low=0, high=K_MAX):
            note(f"K={number} is named more than once in {table.k!r}: it is run once")
    say(f"K: {', '.join(dict.fromkeys(str(c.k) for c in experiment.cells if c.k)) or 'none'}")

    from spsbench.cli.benching import Place, carry_out

    place = Place(
        out=out,
        name=config.stem if config else experiment.parts[0].spec.name,
        shard=slice_,
        resume=resume,
        resume_anyway=resume_anyway,
        overwrite=overwrite,
        score=score,
        dry_run=dry_run,
        offline=offline,
    )
    raise typer.Exit(carry_out(experiment, place))


def asked(config: Path | None, flags: dict[str, Any]) -> tuple[str, list[Options]]:
    """A title, and one table of options a part: the file's top level, its part, then the flags."""
    if config is None:
        if "task" not in flags:
            raise UsageError("no task: expected xsum, humaneval, jsonl, latency, or --config FILE")
        return "", [options(flags, "flags")]
    top, parts = read_tables(config)
    title = top.pop("title", "")
    if not isinstance(title, str):
        raise UsageError(f"{config}: title is {title!r}: expected text")
    merged = [top | part | flags for part in parts]
    if not all("task" in table for table in merged):
        raise UsageError(f"{config}: no task: expected one in each part, or at the top")
    changed = ", ".join(f"{name}={value}" for name, value in flags.items())
    if title and changed:  # a title that names sizes must not outlive them
        title = f"{title} (but {changed})"
    return title, [options(table, str(config)) for table in merged]


def shard_of(text: str) -> tuple[int, int]:
    """`i/n`, counted from 0."""
    number, slash, total = text.partition("/")
    digits = number.isdecimal() and total.isdecimal()
    if not slash or not digits or not int(number) < int(total):
        raise UsageError(f"--shard {text}: expected i/n with i from 0 to n - 1, such as 0/4")
    return int(number), int(total)
