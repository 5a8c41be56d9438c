"""`sps verify`: whether the text of speculative sampling is distributed as the target's own."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from spsbench.cli import options as o
from spsbench.cli.interrupt import at_once
from spsbench.config import check, make_cell, parse
from spsbench.errors import UsageError

AUDIT = "The audit"
DEFAULT_K = 4

Format = Literal["table", "json"]
Form = Annotated[Format, o.option(o.OUTPUT, "--format", "-f", help="Of the report on stdout.")]

verify = typer.Typer(
    no_args_is_help=True,
    help="Prove that nothing was lost, or find the bug. Exits 0 held, 7 bias found, 6 not valid.",
)


@verify.command("rules")
def rules(
    verifier: Annotated[
        list[str] | None, o.option(o.METHOD, "--verifier", help="Only these; repeatable.")
    ] = None,
    format: Form = "table",
    debug: o.Debug = False,
) -> None:
    """Enumerate every verifier with every kind of draft: the exact law over tiny vocabularies."""
    specs = [parse("--verifier", name) for name in verifier or ()]

    from spsbench.cli.enumerating import enumerate_rules

    raise typer.Exit(enumerate_rules(specs, format))


Level = Annotated[
    float, o.option(AUDIT, "--level", help="Chance of a false alarm, of the whole audit.")
]
Plot = Annotated[
    Path | None,
    o.option(o.OUTPUT, "--plot", help="The e-values as PATH.png and PATH.svg, or as one of them."),
]


@verify.command("run")
def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    bias: Annotated[
        float | None,
        o.option(
            AUDIT, "--bias", help="The bias to be caught.", show_default="what the length allows"
        ),
    ] = None,
    level: Level = 1e-3,
    max_tokens: Annotated[
        int | None, o.option(AUDIT, "--max-tokens", help="Of each method.", show_default="all")
    ] = None,
    offline: o.Offline = False,
    threads: o.Threads = None,
    format: Form = "table",
    plot: Plot = None,
    debug: o.Debug = False,
) -> None:
    """Audit the records of a run: every emitted token against the target's law, scored anew."""
    check_audit(bias, level, max_tokens)

    from spsbench.cli.machine import check_environment, check_packages

    check_environment()
    check_packages()

    from spsbench.cli.verifying import verify_run

    code = verify_run(
        folder,
        level=level,
        bias=bias,
        max_tokens=max_tokens,
        offline=offline,
        threads=threads,
        form=format,
        plot=plot,
    )
    raise typer.Exit(code)


def check_audit(bias: float | None, level: float, max_tokens: int | None) -> None:
    """The ranges of what audits share."""
    check(bias is None or 0 < bias < 1, "--bias", bias, "above 0 and below 1")
    check(0 < level <= 0.1, "--level", level, "above 0, at most 0.1")
    check(max_tokens is None or max_tokens > 0, "--max-tokens", max_tokens, "1 or more")


@verify.command("pair")
def pair(
    target: o.Target = "nano",
    draft: o.Draft = None,
    revision: o.Revision = None,
    draft_revision: o.DraftRevision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    allow_pickle: o.AllowPickle = False,
    offline: o.Offline = False,
    k: o.K = None,
    drafter: o.DrafterName = None,
    verifier: o.VerifierName = None,
    schedule: o.ScheduleName = None,
    engine: o.EngineName = "eager",
    decoder: Annotated[
        str, o.option(o.METHOD, "--decoder", help="native, or hf: transformers' own generate.")
    ] = "native",
    temperature: o.Temperature = 1.0,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    seed: o.Seed = 0,
    max_new_tokens: o.MaxNewTokens = 128,
    ignore_eos: o.IgnoreEos = False,
    task: Annotated[
        list[str] | None,
        o.option(
            AUDIT,
            "--task",
            help="Where prompts come from, such as jsonl:path=FILE; repeatable.",
            show_default="humaneval and xsum:data=mini",
        ),
    ] = None,
    prompts: Annotated[int, o.option(AUDIT, "--prompts", help="How many, at most.")] = 40,
    bias: Annotated[float, o.option(AUDIT, "--bias", help="The bias to be caught.")] = 0.02,
    level: Level = 1e-3,
    max_tokens: Annotated[
        int, o.option(AUDIT, "--max-tokens", help="Of SpS; then the audit ends as it is.")
    ] = 200_000,
    workers: Annotated[
        int | None,
        o.option(
            AUDIT, "--workers", help="Processes.", show_default="cores, for small models on a CPU"
        ),
    ] = None,
    device: o.Device = "cpu",
    dtype: o.Dtype = "auto",
    attn_implementation: o.Attention = None,
    threads: o.Threads = None,
    format: Form = "table",
    plot: Plot = None,
    debug: o.Debug = False,
) -> None:
    """Generate with a pair until a bias is found, or none of the asked size is there.

    At temperature 0 each prompt is identical, a rounding tie, or a bug.
    """
    if k is not None and schedule is not None:
        raise UsageError(f"--k {k} with --schedule {schedule}: expected one of the two")
    if k == 0:
        raise UsageError("--k 0: expected K of 1 or more. ArS is what SpS is compared with")
    check_audit(bias, level, max_tokens)
    check(prompts > 0, "--prompts", prompts, "1 or more")
    check(workers is None or workers > 0, "--workers", workers, "1 or more")
    check(max_new_tokens > 0, "--max-new-tokens", max_new_tokens, "1 or more")
    cell = make_cell(
        target=target,
        draft=draft,
        drafter=drafter,
        verifier=verifier,
        schedule=schedule,
        engine=engine,
        k=DEFAULT_K if k is None else k,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        ignore_eos=ignore_eos,
        revision=revision,
        draft_revision=draft_revision,
        device=device,
        dtype=dtype,
        attention=attn_implementation,
        trust_remote_code=trust_remote_code,
    )
    cell = replace(cell, decoder=parse("--decoder", decoder))
    tasks = [parse("--task", name) for name in task or ()]

    with at_once():
        from spsbench.cli.machine import prepare

        prepare(cell, offline=offline, allow_pickle=allow_pickle)

        from spsbench.cli.session import open_session

        session = open_session(cell, offline=offline, allow_pickle=allow_pickle, threads=threads)

    from spsbench.cli.verifying import verify_pair

    code = verify_pair(
        session.cell,
        session.loaded,
        tasks=tasks,
        prompts=prompts,
        bias=bias,
        level=level,
        max_tokens=max_tokens,
        workers=workers,
        offline=offline,
        form=format,
        plot=plot,
    )
    raise typer.Exit(code)
