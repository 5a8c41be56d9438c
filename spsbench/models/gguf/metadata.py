"""The config of a GGUF file, with all that its metadata and tensors say of the computation.

transformers reads some keys of each architecture and drops the others without a word. Here a key
is read by transformers, read here, known to change nothing, or refused by its name; so is a tensor.
What llama.cpp's loader reads beside tensors are keys that begin with the architecture's name
(ggml-org/llama.cpp, src/llama-model.cpp); all other keys describe the file or its tokenizer.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from spsbench.errors import DataError
from spsbench.models.gguf.header import Header
from spsbench.tables import read_table

KEYS = read_table(__file__, "keys.toml")
FIELDS: Mapping[str, list[str]] = {key: names.split() for key, names in KEYS["fields"].items()}
NEUTRAL: Mapping[str, list[object]] = KEYS["neutral"]
KNOWN = frozenset(" ".join(KEYS["known"].values()).split())
FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors by which the frequencies of rotary positions are divided."""

NAMES: Mapping[str, str] = KEYS["architectures"]


def full_config(config: Any, head: Header, factors: Mapping[str, Tensor], file: Path) -> Any:
    """Return a new config of a file: transformers' own with the keys that it does not read.

    `config` is transformers' own, and stays as it is; `factors` are those tensors of `FACTORS` that
    the file has, by name. DataError, naming `file`: a key that is neither read nor neutral, a width
    of heads other than the config's, or a rotary scaling that is not known.
    """
    from transformers.modeling_gguf_pytorch_utils import GGUF_TO_TRANSFORMERS_MAPPING as READ

    name, keys = head.architecture, head.keys
    by_transformers = READ["config"].get(NAMES.get(name, name), {})
    values = config.to_dict()
    for key, value in keys.items():
        field = next((field for field in FIELDS.get(key, ()) if field in values), None)
        if isinstance(value, list) and value and value == value[:1] * len(value):
            value = value[0]
        if by_transformers.get(key) is not None or key in KNOWN:
            continue
        if field is not None and not isinstance(value, list):
            values[field] = value
        elif key == "rope.scaling.attn_factor" and factors:
            continue
        elif value not in NEUTRAL.get(key, ()):
            _refuse(f"{name}.{key}", value, file)
    if scale := _attention_scale(name, keys):
        values["query_pre_attn_scalar"] = scale
    _check_widths(values, head, file)
    if isinstance(rope := values.get("rope_parameters"), dict):
        whole = rope.get("full_attention", rope)
        whole.update(_rope(whole, values, head, factors, file))
        if "original_max_position_embeddings" in values and whole.get("rope_type") == "longrope":
            values["original_max_position_embeddings"] = whole["original_max_position_embeddings"]
    return type(config).from_dict(values)


def _attention_scale(name: str, keys: Mapping[str, Any]) -> int | None:
    """Return `query_pre_attn_scalar` of the architecture `name`; None: neither Gemma 2 nor 3.

    `keys`, a `Header`'s, do not say it: a head's width, or of the largest the model's / heads.
    """
    largest = {"gemma2": 46, "gemma3": 62}  # layers
    if name not in largest:
        return None
    if keys.get("block_count") == largest[name]:
        return int(keys["embedding_length"] // keys["attention.head_count"])
    return int(keys.get("attention.key_length", 256))


def _check_widths(values: Mapping[str, Any], head: Header, file: Path) -> None:
    """Raise DataError where stated widths of a head's keys or values are not those of `values`."""
    keys = head.keys
    for key in "attention.key_length", "attention.value_length":
        width = keys.get(key)
        config_widths = [values.get("head_dim"), values.get("global_head_dim")]
        if not any(config_widths) and (heads := keys.get("attention.head_count")):
            config_widths = [keys["embedding_length"] // heads]
        if width is not None and width not in config_widths:
            _refuse(f"{head.architecture}.{key}", width, file)


def _scaling(keys: Mapping[str, Any]) -> tuple[Any, float]:
    """Return how rotary positions are scaled, and by what factor; 1.0 for `none` and `longrope`."""
    kind = keys.get("rope.scaling.type", "linear")
    factor = keys.get("rope.scaling.factor") or keys.get("rope.scale_linear") or 1
    return kind, 1.0 if kind in ("none", "longrope") else float(factor)


def _rope(
    rope: Mapping[str, Any],
    values: Mapping[str, Any],
    head: Header,
    factors: Mapping[str, Tensor],
    file: Path,
) -> dict[str, Any]:
    """Return the rotary parameters of a file, by which those of transformers' config are updated.

    `rope` are the parameters in that config, `values` its other values, `factors` the file's
    tensors of `FACTORS`, mostly none. DataError, naming `file`: a scaling that is not known, or
    factors of another size than the frequencies or together with yarn.
    """
    keys, name = head.keys, head.architecture
    kind, factor = _scaling(keys)
    trained = int(keys.get("rope.scaling.original_context_length") or keys["context_length"])
    parameters: dict[str, Any] = {
        "rope_theta": float(keys.get("rope.freq_base", rope["rope_theta"]))
    }
    width = values.get("head_dim") or keys["embedding_length"] // keys["attention.head_count"]
    rotated = keys.get("rope.dimension_count", width)
    if rotated != int(width * rope.get("partial_rotary_factor", 1)):
        parameters["partial_rotary_factor"] = rotated / width
    if kind not in ("none", "linear", "yarn", "longrope"):
        _refuse(f"{name}.rope.scaling.type", kind, file)
    if factors:
        if kind == "yarn" and factor != 1:
            _refuse(f"{name}.rope.scaling.type", f"yarn and {min(factors)}", file)
        for key, tensor in factors.items():
            if tensor.shape != (rotated // 2,):
                raise DataError(
                    f"{key} of {file.name} has {tensor.numel()} numbers ({file}): expected "
                    f"{rotated // 2}, one for each frequency. Fetch it again"
                )
        divisors = {key: (tensor.double() * factor).tolist() for key, tensor in factors.items()}
        return parameters | _rotary_by_divisors(divisors, trained, parameters["rope_theta"], keys)
    if factor == 1:
        return parameters
    if kind == "linear":
        return parameters | {"rope_type": "linear", "factor": factor}
    betas = {f"beta_{end}": keys.get(f"rope.scaling.yarn_beta_{end}") for end in ("fast", "slow")}
    return parameters | {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": trained,
        **{beta: float(value) for beta, value in betas.items() if value is not None},
    }


def _rotary_by_divisors(
    divisors: Mapping[str, list[float]], trained: int, theta: float, keys: Mapping[str, Any]
) -> dict[str, Any]:
    """Return rotary parameters but `rope_theta` for divided frequencies: `llama3`, else `longrope`.

    `divisors`: tensor of `FACTORS` -> its numbers; `trained`: tokens of the unscaled context.
    """
    both = divisors.get("rope_freqs.weight")
    if both and (named := _llama3(both, theta)):
        return named
    short = both or divisors.get("rope_factors_short.weight")
    long = both or divisors.get("rope_factors_long.weight") or short
    return {
        "rope_type": "longrope",
        "short_factor": short or long,
        "long_factor": long,
        "original_max_position_embeddings": keys["context_length"] if both else trained,
        "factor": 1.0 if both else max(1.0, keys["context_length"] / trained),
        "attention_factor": float(keys.get("rope.scaling.attn_factor") or 1),
    }


def _llama3(divisors: Sequence[float], theta: float) -> dict[str, Any] | None:
    """Return Llama 3.1's rotary parameters if they give these divisors; None: they do not.

    Tried are lengths of training that are powers of two from 32 to 524288; Llama's own is 8192.
    """
    low, high, factor = 1.0, 4.0, max(divisors)
    lengths = [2 * math.pi * theta ** (i / len(divisors)) for i in range(len(divisors))]
    for trained in (8192, *(1 << n for n in range(5, 20))):
        smooth = [(trained / length - low) / (high - low) for length in lengths]
        weights = [min(1.0, max(0.0, part)) for part in smooth]
        expected = [1 / ((1 - part) / factor + part) for part in weights]
        if all(map(partial(math.isclose, rel_tol=1e-5), expected, divisors)):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": trained,
            }
    return None


def check_rope(model: nn.Module, head: Header, factors: Mapping[str, Tensor], file: Path) -> None:
    """Raise DataError where the model's rotary frequencies are not those of the file's numbers.

    A file that names no base of frequencies passes, and so does one of yarn.
    """
    keys = head.keys
    kind, divisor = _scaling(keys)
    if kind == "yarn":
        return  # a curve between two frequencies, which transformers draws as llama.cpp does
    ends = ("rotary_emb.inv_freq", "full_attention_inv_freq")
    for buffer_name, frequencies in model.named_buffers():
        if not buffer_name.endswith(ends) or "rope.freq_base" not in keys:
            continue
        n = int(keys.get("rope.dimension_count") or 2 * len(frequencies))
        expected = float(keys["rope.freq_base"]) ** -(torch.arange(0, n, 2).double() / n) / divisor
        for tensor in [factors[name] for name in FACTORS[:2] if name in factors]:
            expected = expected / tensor.double()
        near = len(expected) == len(frequencies) and torch.allclose(
            frequencies.double().cpu(), expected, rtol=1e-4, atol=1e-9
        )
        if not near:
            raise DataError(
                f"{file.name} turns {n} numbers of a head by {head.architecture}.rope.* otherwise "
                f"than {type(model).__name__} ({file}): expected rotary positions that "
                "transformers knows. Take the model in safetensors"
            )


def check_tensors(model: Any, head: Header, file: Path) -> None:
    """Raise DataError for tensors of a file that no parameter of `model` takes."""
    from transformers import modeling_gguf_pytorch_utils as reader

    processor = reader.TENSOR_PROCESSORS.get(head.architecture, reader.TensorProcessor)
    weights_map = reader.get_gguf_hf_weights_map(model, processor(config=model.config.to_dict()))
    if unread := sorted(head.tensors - weights_map.keys() - set(FACTORS)):
        raise DataError(
            f"{file.name} has {len(unread)} tensors that are not read, such as {unread[0][:80]} "
            f"({file}): expected those of {type(model).__name__}. Take the model in safetensors"
        )


def _refuse(key: str, value: object, file: Path) -> NoReturn:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    raise DataError(
        f"{file.name} sets {key[:80]} to {text[:40]}, which is not read ({file}): expected "
        "keys that are. Take the model in safetensors"
    )
