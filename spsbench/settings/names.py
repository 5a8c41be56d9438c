"""What a cell is called in tables: its method and its setting, in a few words."""

from spsbench.registry import BUILT_IN
from spsbench.settings.cell import Cell


def method(cell: Cell) -> str:
    """The sampling method of a row: how it drafts and verifies."""
    if cell.k == 0:
        return "ArS"
    how = "" if cell.method.drafter.name == "model" else f" {cell.method.drafter}"
    usual = cell.method.verifier.name in ("sps", "auto", "match")
    rule = "" if usual else f" {cell.method.verifier}{' (lossy)' * lossy(cell)}"
    depth = f" {cell.method.schedule}" if cell.k is None else f" K={cell.k}"
    return f"SpS{how}{rule}{depth}"


def lossy(cell: Cell) -> bool:
    """Whether its rule is one of ours that changes the target's law."""
    verifier = cell.method.verifier.name
    return any(
        (each.kind, each.name, each.guarantee) == ("verifiers", verifier, "lossy")
        for each in BUILT_IN
    )


def drafting(cell: Cell) -> str:
    """What drafts: `ngram`, `model nano-draft`; with its dtype where that is not the target's."""
    drafter, model = cell.method.drafter, cell.models.draft
    if model is None:
        return str(drafter)
    name = str(model) if model.dtype == cell.models.target.dtype else f"{model} {model.dtype}"
    return f"{drafter} {name} (random)" if model.random else f"{drafter} {name}"


def setting(cell: Cell) -> str:
    """The warp of a row, and whether it was asked in the model's chat template."""
    asked = "chat template, own system message" if cell.work.system else "chat template"
    return f"{warp(cell)}, {asked}" if cell.work.chat else warp(cell)


def warp(cell: Cell) -> str:
    """The warp of a row, as the paper's Table 1 names it."""
    if cell.sampling.temperature == 0:
        return "greedy"
    parts = [f"top-p {cell.sampling.top_p:g}"] if cell.sampling.top_p < 1 else []
    parts += [f"top-k {cell.sampling.top_k}"] if cell.sampling.top_k else []
    parts += [f"T {cell.sampling.temperature:g}"] if cell.sampling.temperature != 1 else []
    return ", ".join(parts) or "T 1"
