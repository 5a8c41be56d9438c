"""Parquet for notebooks: one file with a row a generation and a row a round, typed by `kind`."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any

from spsbench.metrics.rates import generation_metrics
from spsbench.reports.reporter import Report, Table
from spsbench.settings.cell import Cell
from spsbench.settings.labels import Names, method, setting
from spsbench.settings.records import Record

BATCH = 20_000  # rows held in memory, approximately

SUMMED = ("drafted", "accepted", "emitted", "seconds", "draft_seconds", "target_seconds")
COLUMNS = {
    "text": "kind run cell task setting method options sample group text finish error",
    "count": "k repeat prompt_tokens rounds round drafted tested accepted emitted depth passes",
    "real": "prefill_seconds overlap seconds draft_seconds target_seconds",
    "truth": "prompt_cut",
    "texts": "flags",
    "ids": "tokens path siblings offered",
}


def parquet(report: Report) -> bytes:
    """Return a Parquet file of a row a generation and a row a round; other kinds' columns are null.

    Unpaired surrogates in text are escaped. Times are in seconds.
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow.parquet import ParquetWriter  # type: ignore[import-untyped]

    kinds = {"text": pa.string(), "count": pa.int64(), "real": pa.float64(), "truth": pa.bool_()}
    kinds |= {"texts": pa.list_(pa.string()), "ids": pa.list_(pa.int32())}
    schema = pa.schema(
        [(name, kinds[kind]) for kind, names in COLUMNS.items() for name in names.split()]
    )
    file = BytesIO()
    with ParquetWriter(file, schema, compression="zstd") as writer:
        batch: list[dict[str, Any]] = []
        for row in _rows(report):
            batch.append(row)
            if len(batch) >= BATCH:
                writer.write_table(pa.Table.from_pylist(batch, schema))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, schema))
    return file.getvalue()


def _rows(report: Report) -> Iterator[dict[str, Any]]:
    """Yield a row for each record, failed ones too, then its rounds from 0; `kind` tells which."""
    names = Names(row.cell for table in report.tables for row in table.rows)
    for table in report.tables:
        cells = {row.cell.id: row.cell for row in table.rows}
        for record in table.records():
            shared = _shared_columns(table, cells[record.cell], record, names)
            yield {**shared, "kind": "generation", **_generation(record)}
            for number, r in enumerate(record.rounds):
                tree = {} if r.tree is None else r.tree._asdict()
                values = {**r._asdict(), **tree, "depth": r.depth}
                yield {**shared, "kind": "round", "round": number, **values}


def _shared_columns(table: Table, cell: Cell, record: Record, names: Names) -> dict[str, Any]:
    """Return run, cell, task, setting, method and options as texts, k, sample, repeat and group."""
    return {
        "run": _unicode(table.title.run),
        "cell": cell.id,
        "task": _unicode(str(cell.task or "")),
        "setting": setting(cell),
        "method": _unicode(method(cell)),
        "options": _unicode(names.option_text(cell)),
        "k": cell.k,
        "sample": _unicode(record.sample),
        "repeat": record.repeat,
        "group": None if record.group is None else _unicode(record.group),
    }


def _generation(record: Record) -> dict[str, Any]:
    """Return a generation's own columns; those of `SUMMED` are None where an engine lacks one."""
    return {
        "prompt_tokens": record.prompt_tokens,
        "prompt_cut": record.prompt_cut,
        "tokens": record.tokens,
        "text": _unicode(record.text),
        "finish": record.finish,
        "error": None if record.error is None else _unicode(record.error),
        "flags": list(record.flags),
        "prefill_seconds": record.prefill_seconds,
        "rounds": generation_metrics(record.rounds, record.prefill_seconds).rounds,
        **{name: _sum(record, name) for name in SUMMED},
    }


def _sum(record: Record, name: str) -> float | None:
    """Return the sum of a column of the rounds; None where an engine does not tell one of them."""
    values = [getattr(r, name) for r in record.rounds]
    return None if min(values, default=0) < 0 else sum(values)


def _unicode(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
