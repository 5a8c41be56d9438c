"""Whether a model has a chat template: of a local one its files tell, without any library."""

from collections.abc import Callable, Sequence
from pathlib import Path

from spsbench.models.folder import expanded, locate, named
from spsbench.models.gguf.header import named_gguf, read_header
from spsbench.models.jsonfile import read_object
from spsbench.settings.models import ModelSpec

_LIMIT = 200 << 20  # bytes of a tokenizer's configuration
_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")


def has_template(ref: ModelSpec, *, offline: bool, allow_pickle: bool) -> bool:
    """Whether the tokenizer of a model brings a chat template.

    Of a model at the hub, the small files that would tell are fetched or found in the cache.

    Raises:
        SpsError: a local model that cannot be used.
    """
    path = expanded(ref.id)
    if not ref.random and named_gguf(ref.id) and path.is_file():
        return bool(read_header(path).values.get("tokenizer.chat_template"))
    return any(map(_tells, files_of(ref, _FILES, offline=offline, allow_pickle=allow_pickle)))


def files_of(
    ref: ModelSpec, names: Sequence[str], *, offline: bool, allow_pickle: bool
) -> list[Path]:
    """Those of some small files that a model has; none of a GGUF file and of random weights.

    Of a model at the hub they are fetched or found in the cache.

    Raises:
        SpsError: a local model that cannot be used.
    """
    path = expanded(ref.id)
    if ref.random or (named_gguf(ref.id) and path.is_file()):
        return []
    if named(ref.id) or path.is_dir():
        folder = locate(
            ref,
            offline=True,
            trust_remote_code=ref.trust_remote_code,
            allow_pickle=allow_pickle,
        )
        return [folder / name for name in names if (folder / name).is_file()]
    return _at_hub(ref, names, offline)


def asker(*, offline: bool, allow_pickle: bool) -> Callable[[ModelSpec], bool]:
    """`has_template` that remembers."""
    known: dict[ModelSpec, bool] = {}

    def ask(ref: ModelSpec) -> bool:
        if ref not in known:
            known[ref] = has_template(ref, offline=offline, allow_pickle=allow_pickle)
        return known[ref]

    return ask


def _tells(path: Path) -> bool:
    return path.suffix == ".jinja" or bool(read_object(path, _LIMIT).get("chat_template"))


def _at_hub(ref: ModelSpec, names: Sequence[str], offline: bool) -> list[Path]:
    from huggingface_hub import hf_hub_download

    found = []
    for name in names:
        try:
            found.append(
                Path(hf_hub_download(ref.id, name, revision=ref.revision, local_files_only=offline))
            )
        except Exception:  # what is missing there raises kinds of several packages
            continue
    return found
