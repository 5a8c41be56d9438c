"""Audits of passes over several tokens: `sps verify state` and `sps verify rows`."""

import copy
import logging
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from spsbench.audit.pass_report import ENGINE, STOCK, Comparison, PassReport
from spsbench.audit.passes import (
    Open,
    compare,
    ignores_states,
    in_float32,
    moved_by_states,
    over_session,
    over_stock,
)
from spsbench.engines.eager import Eager, UnsupportedModelError
from spsbench.engines.session.recurrent import register
from spsbench.engines.session.states import keeps_states
from spsbench.errors import DataError, SpsError, UsageError
from spsbench.messages import Say, lines_to
from spsbench.models.loader import settle
from spsbench.models.source import source_of
from spsbench.models.third_party import silent
from spsbench.plugins import make
from spsbench.registry import is_there
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.execution import access_of
from spsbench.spec import Spec

ATTENTIONS, ENGINES = ("eager", "sdpa"), ("eager", "fast")
PRECISE = (torch.float32, torch.float64)

log = logging.getLogger(__name__)


def verify_state(model: str, *, say: Say | None = None, **options: Any) -> PassReport:
    """Compare blocks of tokens, and our session, with tokens fed one by one, for states.

    Args:
        model: a bundled name, a folder or a hub id, of a model that keeps states.
        say: receives each message for the user; None: messages go to `logging` only.
        options: of the target (`dtype`, `device`, ...), and of access.

    Raises:
        SpsError: a model that keeps no states, or whose states cannot be taken back.
    """
    with lines_to(say), silent():
        loaded = stock_model(model, options)
        if not keeps_states(loaded.config):
            raise UsageError(
                f"{model} keeps no states: expected a model with recurrent layers. Say sps verify "
                "rows"
            )
        lowered = [] if loaded.dtype in PRECISE else [copy.deepcopy(loaded)]
        precise = loaded if loaded.dtype in PRECISE else loaded.float()
        comparisons = _states_of(precise)
        moved = moved_by_states(precise)
        for low in lowered:
            comparisons += in_float32(_states_of(low), comparisons)
        return PassReport(model, tuple(comparisons), states=True, moved=moved)


def verify_rows(model: str, *, say: Say | None = None, **options: Any) -> PassReport:
    """Compare blocks of tokens with tokens fed alone, in each of our engines and in transformers.

    Args:
        model: a bundled name, a folder or a hub id.
        say: receives each message for the user; None: messages go to `logging` only.
        options: of the target (`dtype`, `device`, ...), and of access.

    Raises:
        SpsError: a model that cannot be loaded.
    """
    with lines_to(say), silent():
        comparisons = _rows_of(model, options)
        if comparisons[0].dtype not in ("float32", "float64"):
            precise = _rows_of(model, {**options, "dtype": "float32"})
            comparisons = [*precise, *in_float32(comparisons, precise)]
        return PassReport(model, tuple(comparisons))


def _rows_of(model: str, options: dict[str, Any]) -> list[Comparison]:
    comparisons: list[Comparison] = []
    for attention in ATTENTIONS:
        try:
            loaded = stock_model(model, {**options, "attention": attention})
        except DataError as error:
            log.info(f"note: {STOCK}, attention {attention}, is left out: {error}")
            continue
        stock = over_stock(loaded)
        comparisons += _compared(loaded, f"{STOCK}, attention {attention}", stock, stock)
    for name in filter(partial(is_there, "engines"), ENGINES):
        loaded, engine = stock_model(model, options), make("engines", Spec(name))
        _prepared(loaded, engine)
        session = over_session(loaded, engine)
        comparisons += _compared(loaded, f"{ENGINE}{name}", session, session)
    return comparisons


def stock_model(model: str, options: dict[str, Any]) -> PreTrainedModel:
    """Return the model as transformers loads it, of the options of a target."""
    access, of_cell = access_of(dict(options))
    cell = make_cell(**{**of_cell, "target": model, "k": 0})
    spec = cell.models.target
    if spec.served:
        raise UsageError(
            "`weights` served: expected weights that are here, to run passes over them"
        )
    if access.threads is not None:
        torch.set_num_threads(access.threads)
    source = source_of(spec, access, seed=cell.sampling.seed)
    loaded = source.model(source.locate(spec))
    settle(loaded)
    return loaded


def _states_of(model: PreTrainedModel) -> list[Comparison]:
    stock = over_stock(model)
    comparisons = _compared(model, f"{STOCK}, blocks", stock, stock)
    _prepared(model, Eager())
    return [*comparisons, *_compared(model, f"{ENGINE}eager", stock, over_session(model))]


def _compared(model: PreTrainedModel, way: str, alone: Open, block: Open) -> list[Comparison]:
    try:
        if keeps_states(model.config):
            return compare(model, way, alone, block, ignores=partial(ignores_states, model))
        return compare(model, way, alone, block)
    except SpsError:
        raise
    except Exception as error:  # foreign code may raise anything
        line = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise DataError(
            f"{type(model).__name__}: a pass fails ({way}: {line}): expected a decoder whose cache "
            "takes tokens back"
        ) from error


def _prepared(model: PreTrainedModel, engine: Any) -> None:
    try:
        register(model)
        engine.prepare(model)
    except UnsupportedModelError as error:
        raise DataError(f"{error}: expected a decoder whose cache takes tokens back") from error
