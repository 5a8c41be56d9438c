"""Heads of P-EAGLE as vllm-project/speculators writes them: EAGLE-3's, and `mask_hidden`.

Source: speculators `peagle/core.py`; `mask_hidden` [1, 1, n * H] stands for hidden states that are
not known, before `fc` and its norms, and the token `mask_token_id` for tokens that are not. vLLM
calls that `pard_token`. As many depths are drafted as `proposal_methods` says it was trained for.
"""

from collections.abc import Mapping
from dataclasses import replace

from spsbench.errors import DataError
from spsbench.models.heads.checkpoint import Checkpoint
from spsbench.models.heads.description import Description
from spsbench.models.heads.formats import eagle3
from spsbench.models.heads.formats.format import Format
from spsbench.models.heads.formats.speculators import shape_of, verifier
from spsbench.models.heads.shapes import ParallelEagleShape, whole

HIDDEN = "mask_hidden"
DEPTHS = 8  # of speculators' trainer, where nothing is said


def knows(files: Checkpoint) -> bool:
    """It says so itself."""
    return files.config.get("speculators_model_type") == "peagle"


def describe(files: Checkpoint, layers: int | None) -> Description:
    """The network of EAGLE-3 under `inner`, and the mask.

    Raises:
        DataError: a mask that is no token.
    """
    config, where = files.config, files.config_path
    inner = shape_of(files, layers, PEAGLE.family)
    mask = config.get("mask_token_id", config.get("pard_token"))
    if type(mask) is not int or not 0 <= mask < inner.vocab:
        raise DataError(
            f"mask_token_id is {mask!r} ({where}): expected a token below {inner.vocab}. Check "
            "--draft"
        )
    found = eagle3.described(files, inner, PEAGLE.writer, verifier(config))
    front = next((f for f in eagle3.FRONTS if f + HIDDEN in files.headers), "")
    shape = ParallelEagleShape(inner=inner, count=depths(config, where), mask=mask)
    size = (1, 1, len(inner.features) * inner.target_width)
    return replace(
        found,
        family=PEAGLE.family,
        shape=shape,
        names={**found.names, HIDDEN: front + HIDDEN},
        wanted={**found.wanted, HIDDEN: size},
    )


def depths(config: Mapping[str, object], where: str) -> int:
    """Tokens a pass, as the first proposal method says."""
    about = config.get("speculators_config")
    methods = about.get("proposal_methods") if isinstance(about, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    return whole(first if isinstance(first, Mapping) else {}, "speculative_tokens", where, DEPTHS)


PEAGLE = Format("speculators", "peagle", knows, describe)
