"""The page of `benchmarks/gpu.py`: a table of times for each pair, and the goals beside them."""

from typing import Any

SHARE = 0.7  # of the limit that copying sets, by auto-regressive sampling
VERIFY = 1.15  # a pass of K + 1 tokens over a pass of one
WAITS = 1  # a round
GAIN = 3  # over transformers' assisted generation, a round


def page(results: dict[str, Any]) -> str:
    """Markdown."""
    speed = results["copy_bytes_per_second"] / 1e9
    lines = [
        f"### {results['device']}, {results['dtype']}, K = {results['k']}, random weights",
        "",
        f"torch {results['torch']}, transformers {results['transformers']}, spsbench "
        f"{results['spsbench']}. Copying moves {speed:.0f} GB/s, reads and writes counted; the "
        "limit is the weights that a token reads at that speed. Median (least to most), in ms.",
        "",
        f"Made by `python {' '.join(results['command'])}`.",
    ]
    for name, found in results["pairs"].items():
        lines += ["", f"#### {name}", "", *times(found), "", *goals(found, results["k"])]
        lines += [
            f"\n{part} runs as `eager`: {why}" for part, why in found["reasons"].items() if why
        ]
    return "\n".join(lines) + "\n"


def times(found: dict[str, Any]) -> list[str]:
    """Passes, then rounds."""
    rows = ["| what | ms | tokens a round | waits a round |", "| --- | --- | --- | --- |"]
    rows += [f"| limit of the target | {found['limit_ms']:.3f} | | |"]
    rows += [f"| pass, {name} | {ms(spent)} | | |" for name, spent in found["steps_ms"].items()]
    for name, spent in found["round_ms"].items():
        waits = found["waits_a_round"][name]
        told = "n/a" if waits is None else f"{waits:.2f}"
        rows.append(
            f"| round, {name} | {ms(spent)} | {found['tokens_a_round'][name]:.2f} | {told} |"
        )
    return rows


def goals(found: dict[str, Any], k: int) -> list[str]:
    """What was aimed at, and whether it was reached."""
    share, verify = found["ars_share_of_limit"], found[f"v({k})"]
    waits, gain = found["waits_a_round"]["SpS static"], found["transformers_over_ours_at_equal_tau"]
    rows = [
        ("ArS, share of the limit", f"{share:.2f}", f"at least {SHARE}", share >= SHARE),
        (f"v({k})", f"{verify:.2f}", f"at most {VERIFY}", verify <= VERIFY),
        ("SpS over transformers', a round", f"{gain:.2f}", f"at least {GAIN}", gain >= GAIN),
    ]
    if waits is not None:
        rows.append(("waits a round", f"{waits:.2f}", f"at most {WAITS}", waits <= WAITS))
    head = ["| ratio | measured | goal | |", "| --- | --- | --- | --- |"]
    verdicts = {True: "reached", False: "**missed**"}
    return head + [f"| {a} | {b} | {c} | {verdicts[reached]} |" for a, b, c, reached in rows]


def ms(spent: dict[str, float]) -> str:
    """A spread in milliseconds."""
    return f"{spent['median']:.3f} ({spent['min']:.3f} to {spent['max']:.3f})"
