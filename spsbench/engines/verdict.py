"""What the judge has found of a model, kept on the machine: a second load asks it nothing.

Float32, rollbacks and windows cost several passes at every load. Kept are the judge's logits and
what was allowed; a model that is loaded again and changed in the same ways must come as near to
them, in a text that is fed, partly rejected and fed on. A layout that computes something else is so
noticed as it was the first time.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.engines.eager import ordinary
from spsbench.engines.origins import origin_of
from spsbench.engines.packing import tuning_cache
from spsbench.engines.packing.logit_check import PROBED, Bounds
from spsbench.engines.quantization.layers import format_of
from spsbench.engines.session.session import FastLM
from spsbench.hardware.cache_home import keep_newest

SMALL = 2**20  # bytes of weights
MOST = 32  # models whose verdicts are kept
SAMPLED = 64  # numbers of a tensor
FIRST, REJECTED = 5, 3  # tokens before the rollback
EXACT = "exact"


@cache
def sources() -> bytes:
    """A digest of this room: what it does to a model may be another thing tomorrow."""
    parts = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"\0".join(parts)).digest()


def name_of(model: PreTrainedModel) -> str | None:
    """A digest of a stock model, its files, some numbers of each tensor, and the libraries.

    Two models with one name are no danger: their logits differ, and that is looked at. None: the
    model is so small that judging it takes no time.
    """
    if sum(tensor.nbytes for _, tensor in _tensors(model)) < SMALL:
        return None
    found = hashlib.sha256(sources())
    told = {"transformers": transformers.__version__, "dtype": str(model.dtype)}
    told |= {"attention": str(model.config._attn_implementation), "codes": str(format_of(model))}
    found.update(json.dumps(told | model.config.to_dict(), default=str, sort_keys=True).encode())
    for name, tensor in _tensors(model):
        told_of = f"{name} {tuple(tensor.shape)} {tensor.dtype} {origin_of(tensor)}"
        found.update(told_of.encode())
        if tensor.is_contiguous() and tensor.numel():
            flat = tensor.detach().view(-1)
            some = flat[:: max(1, len(flat) // SAMPLED)].contiguous()
            found.update(some.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def recall_bounds(name: str) -> Bounds | None:
    """What was kept for a model; None: nothing, or it is damaged."""
    path = _path(name)
    if path is None:
        return None
    try:
        with safe_open(path, framework="pt") as file:
            told = file.metadata() or {}
            bounds = Bounds(file.get_tensor(EXACT), float(told["allowed"]), float(told["share"]))
        path.touch()  # it is in use: older ones go first
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    return bounds


def keep_bounds(name: str, bounds: Bounds) -> None:
    """Keep what a model was judged by; the oldest of too many are removed."""
    path = _path(name)
    if path is None:
        return
    draft = path.with_suffix(".new")
    told = {"allowed": repr(bounds.allowed), "share": repr(bounds.share)}
    with suppress(OSError, SafetensorError):  # it will be judged again
        save_file({EXACT: bounds.exact.contiguous()}, draft, metadata=told)
        draft.replace(path)
        keep_newest(path.parent.glob("judged-*.safetensors"), MOST)


def forget(name: str) -> None:
    """Let the model be judged again the next time."""
    path = _path(name)
    if path is not None:
        path.unlink(missing_ok=True)


def _path(name: str) -> Path | None:
    machine = tuning_cache.place()
    if machine is None:
        return None
    return machine.with_name(f"judged-{machine.stem}-{name}.safetensors")


def as_kept(model: PreTrainedModel, bounds: Bounds, *, briefly: bool = False) -> int | None:
    """What a token takes in the cache, if sessions of `model` come near enough; None: they do not.

    They read the judge's text, with a rollback on the way, or `briefly` its beginning in one pass.
    """
    lm = FastLM(model)
    ids = ordinary(model.config.get_text_config().vocab_size, PROBED)
    if briefly:
        ids, bounds = ids[:FIRST], replace(bounds, exact=bounds.exact[:FIRST])
    try:
        logits = lm.append(ids, keep=FIRST).logits if briefly else _with_rollback(lm, ids)
        near = bounds.near(logits if logits.dtype == torch.float64 else logits.float())
    except Exception:  # whatever was exchanged does not fit this model
        return None
    return lm.token_bytes if near else None


def _with_rollback(lm: FastLM, ids: Tensor) -> Tensor:
    first = lm.append(torch.cat([ids[:FIRST], ids[-REJECTED:]]), keep=FIRST + REJECTED)
    lm.commit(FIRST)
    second = lm.append(ids[FIRST:], keep=len(ids) - FIRST)
    return torch.cat([first.logits[:FIRST], second.logits])
