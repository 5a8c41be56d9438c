"""The engine of a cell that names none, with and without the extension of the usual one."""

from dataclasses import replace

import pytest

from spsbench import registry
from spsbench.errors import UsageError
from spsbench.plugins import make
from spsbench.settings import cell_from_options
from spsbench.settings.cell_from_options import TARGET, USUAL_ENGINE
from spsbench.settings.grid import make_cell
from spsbench.spec import Spec


def test_a_cell_without_the_extension_runs_in_eager_and_a_line_says_so(monkeypatch, said):
    eager = Spec("eager")
    monkeypatch.setattr(cell_from_options, "DEFAULT_ENGINE", eager)
    monkeypatch.setitem(TARGET, "engine", replace(TARGET["engine"], default=eager))
    cell = make_cell(target="nano")
    assert (cell.target.engine, cell.draft.engine) == (eager, eager)
    assert said == ["note: engine fast is not installed: eager runs, slower"]
    assert cell.id == make_cell(target="nano", engine="eager").id
    assert make_cell(target="nano", engine="fast").target.engine == USUAL_ENGINE


def test_an_engine_of_an_absent_extension_is_refused_and_not_listed(monkeypatch):
    monkeypatch.setattr(registry, "is_installed", lambda path: not path.startswith(".extensions."))
    assert "fast" not in {entry.name for entry in registry.entries("engines")}
    assert "fast" not in registry.built_in("engines")
    with pytest.raises(UsageError):
        make("engines", Spec("fast"))
