"""What the target is asked, in its tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, UsageError
from spsbench.models.tokenizers import encode, encode_chat
from spsbench.settings.commands import Training
from spsbench.tasks.jsonl import Jsonl
from spsbench.training.text.named import task_named
from spsbench.training.text.overlap import Overlap
from spsbench.training.text.paragraphs import paragraphs

SELF = "self"  # among the prompts: questions of the target's own


def in_chat(tokenizer: Any, chat: str) -> bool:
    """Whether the target is asked by its template.

    Raises:
        UsageError: it has none, and it was asked for.
    """
    has = bool(getattr(tokenizer, "chat_template", None))
    if chat == "on" and not has:
        raise UsageError("--chat on: expected a target with a chat template. Leave it out")
    return has and chat != "off"


def asks_itself(asked: Training) -> bool:
    """Whether the target asks what no prompt does."""
    return not asked.prompts or SELF in asked.prompts


def prompts_of(asked: Training, tokenizer: Any, chat: bool, overlap: Overlap) -> list[list[int]]:
    """The prompts of files and tasks, each once, cut to what is allowed, the shortest first.

    Raises:
        DataError: none, or one that is a task's own.
        MissingError: no such file.
    """
    found: dict[tuple[int, ...], None] = {}
    named = [name for name in asked.prompts if name != SELF]
    for name in named:
        before = len(found)
        for where, text in _texts(name):
            if (task := overlap.of(text)) is not None:
                raise DataError(
                    f"{where} is a prompt of the benchmark, {task} (--prompts {name}): expected "
                    "texts that nothing is measured on. Take it out"
                )
            if chat:
                ids = encode_chat(tokenizer, [{"role": "user", "content": text}])
                if len(ids) > asked.prompt_tokens:
                    continue
            else:
                ids = encode(tokenizer, text)[: asked.prompt_tokens]
            found[tuple(ids)] = None
            if len(found) == asked.count:
                break
        if len(found) == before < asked.count:
            raise DataError(
                f"no prompts of {asked.prompt_tokens} tokens or fewer (--prompts {name}): expected "
                "one or more. Name another file, or give more --prompt-tokens"
            )
    return sorted((list(ids) for ids in found), key=len)  # a batch is padded to its longest


def user_mark(tokenizer: Any) -> list[int]:
    """What stands before the words of a user in the target's template."""
    first, second = (
        encode_chat(tokenizer, [{"role": "user", "content": text}]) for text in ("Aa", "9?")
    )
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    return first[:same]


def nothing(tokenizer: Any, eos: frozenset[int]) -> list[int]:
    """The prompt of a model that continues: what stands before a document.

    Raises:
        UsageError: there is no such token.
    """
    first = tokenizer.bos_token_id
    if first is None:
        first = min(eos, default=None)
    if first is None:
        raise UsageError(
            "no --prompts for a target without a token that begins or ends a text: expected "
            "something to continue. Name a file with --prompts"
        )
    return [int(first)]


def _texts(name: str) -> Iterator[tuple[str, str]]:
    """Where each text is, and itself."""
    path = Path(name).expanduser()
    if path.suffix == ".txt":
        for number, part in enumerate(paragraphs(path, "--prompts"), start=1):
            yield f"{path}, paragraph {number}", part
        return
    task = Jsonl(str(path)) if path.is_file() else task_named(name, "--prompts", "prompts")
    for sample in task.samples(lambda prompt: True):
        yield f"{name}: {sample.id}", sample.prompt
