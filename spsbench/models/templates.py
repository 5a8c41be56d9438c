"""Whether a model has a chat template: of a local one its files tell, without any library."""

from collections.abc import Callable
from pathlib import Path

from spsbench.models.folder import expanded, locate, named
from spsbench.models.gguf.header import named_gguf, read_header
from spsbench.models.jsonfile import read_object
from spsbench.settings.models import ModelSpec
from spsbench.settings.telling import quiet

_LIMIT = 200 << 20  # bytes of a tokenizer's configuration
_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")


def has_template(ref: ModelSpec, *, offline: bool, allow_pickle: bool) -> bool:
    """Whether the tokenizer of a model brings a chat template.

    Of a model at the hub, the small files that would tell are fetched or found in the cache.

    Raises:
        SpsError: a local model that cannot be used.
    """
    if ref.random:
        return False
    path = expanded(ref.id)
    if named_gguf(ref.id) and path.is_file():
        return bool(read_header(path).values.get("tokenizer.chat_template"))
    if named(ref.id) or path.is_dir():
        folder = locate(
            ref,
            offline=True,
            trust_remote_code=ref.trust_remote_code,
            allow_pickle=allow_pickle,
            say=quiet,
        )
        return any(_tells(folder / name) for name in _FILES)
    return any(_tells(found) for found in _at_hub(ref, offline))


def asker(*, offline: bool, allow_pickle: bool) -> Callable[[ModelSpec], bool]:
    """`has_template` that remembers."""
    known: dict[ModelSpec, bool] = {}

    def ask(ref: ModelSpec) -> bool:
        if ref not in known:
            known[ref] = has_template(ref, offline=offline, allow_pickle=allow_pickle)
        return known[ref]

    return ask


def _tells(path: Path) -> bool:
    if not path.is_file():
        return False
    return path.suffix == ".jinja" or bool(read_object(path, _LIMIT).get("chat_template"))


def _at_hub(ref: ModelSpec, offline: bool) -> list[Path]:
    from huggingface_hub import hf_hub_download

    found = []
    for name in _FILES:
        try:
            found.append(
                Path(hf_hub_download(ref.id, name, revision=ref.revision, local_files_only=offline))
            )
        except Exception:  # what is missing there raises kinds of several packages
            continue
    return found
