"""Whether models are asked in their chat templates, how a task is asked then, and with what law."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spsbench.errors import UsageError
from spsbench.settings.models import ModelSpec
from spsbench.settings.table import OF_CELL
from spsbench.settings.task import Task
from spsbench.spec import Spec

log = logging.getLogger(__name__)

OwnSampling = Callable[[ModelSpec], Mapping[str, Any]]
"""The sampling that a model names itself."""


def own_defaults(model: ModelSpec, own: OwnSampling, named: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling that a chat takes from its model: without what is `named` already.

    Args:
        named: options, or lists of them, by name. At temperature 0 no other one matters.
    """
    if named.get("temperature") in (0, (0,)):
        return {}
    return {name: value for name, value in own(model).items() if name not in named}


def describe_defaults(model: ModelSpec, applied: Mapping[str, Any]) -> str:
    """`own_defaults` in a line."""
    words = ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in applied.items())
    flags = " and ".join(OF_CELL[name].flag for name in applied)
    return f"chat: {words} by the generation_config of {model}; {flags} would win"


def in_chat(
    task: Task,
    spec: Spec,
    models: Iterable[ModelSpec],
    *,
    chat: str,
    system: str | None,
    templates: Callable[[ModelSpec], bool],
) -> dict[ModelSpec, Task | None]:
    """The task as each model is asked it in its template; None: it is given the text alone.

    Args:
        chat: `on`, `off`, or `auto`: where task and model both know how.
        system: a message before the prompts, for which there must be a chat.
        templates: whether a model has a chat template.

    Raises:
        UsageError: a chat that is not possible.
    """
    if chat == "on":
        return dict.fromkeys(models, instructed(task, spec))
    asking = None if chat == "off" else instruct(task)
    found = {
        model: asking if asking is not None and templates(model) else None
        for model in dict.fromkeys(models)
    }
    those = [model for model, asked in found.items() if asked is not None]
    for model in those:
        log.info(f"{spec}: asked in the chat template of {model} (--chat off: the text alone)")
    if system is not None and not those:
        raise UsageError("--system without a chat: expected a model with a template and --chat on")
    return found


def instruct(task: Task) -> Task | None:
    """The task as an instruct model is asked it; None where it is not, or does not say."""
    found = getattr(task, "instruct", None)
    made: Task | None = found() if found is not None else None
    return made


def instructed(task: Task, spec: Spec) -> Task:
    """The same, where there must be one.

    Raises:
        UsageError: the task does not know how to ask.
    """
    made = instruct(task)
    if made is None:
        raise UsageError(f"--chat on with {spec}: expected a task that asks. Leave --chat out")
    return made
