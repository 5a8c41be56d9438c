import json
import shutil

import pytest
from msgspec.structs import replace

from spsbench.errors import DataError, MismatchError, MissingError, SpsError
from spsbench.reports.run_tables import report_on
from spsbench.reports.text import json as json_report
from spsbench.settings.records import SCHEMA
from spsbench.store.manifest import Manifest, differences, refuse_differences
from tests.golden.make import GOLDEN
from tests.store import made


def test_what_is_saved_is_loaded(tmp_path):
    manifest = replace(made.manifest(), segments=({"shard": "00-of-01", "first": 0},))
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path) == manifest
    assert manifest.created.endswith("+00:00")
    assert manifest.schema == SCHEMA


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_not_written(tmp_path, number):
    with pytest.raises(ValueError):
        made.manifest(temperature=number).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", '{"schema": 1', "[]", '{"schema": "1"}', f'{{"schema": {SCHEMA}}}', "[" * 100_000, "NaN"],
)
def test_a_broken_one_is_refused_and_none_is_no_run(tmp_path, text):
    with pytest.raises(MissingError):
        Manifest.load(tmp_path)
    made.manifest().save(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace("0.95", "NaN") if text == "NaN" else text)
    with pytest.raises(DataError):
        Manifest.load(tmp_path)


@pytest.mark.parametrize("schema", [0, SCHEMA - 1, SCHEMA + 1])
def test_another_schema_is_refused_with_its_version(tmp_path, schema):
    replace(made.manifest(), schema=schema, tool="9.9").save(tmp_path)
    with pytest.raises(DataError):
        Manifest.load(tmp_path)


def test_a_changed_field_is_named(tmp_path):
    with pytest.raises(MismatchError) as raised:
        refuse_differences(made.manifest(seed=1), made.manifest(), tmp_path)
    assert str(raised.value).endswith("Differing:\n  seed: 1, there 0")


def test_differences_tell_kinds_and_absence_apart():
    assert differences({"a": 1, "b": [1]}, {"a": 1, "b": (1,)}) == []
    assert differences({"a": 1, "b": None}, {"a": True, "c": 0}) == [
        "a: 1, there true",
        "b: null, there absent",
        "c: absent, there 0",
    ]


def test_a_part_that_its_task_cannot_be_made_of_is_refused(tmp_path):
    with pytest.raises(DataError):
        Manifest.load(GOLDEN / str(SCHEMA)).parts(tmp_path)


def values_in(value, place=()):
    """The place of each value in JSON; of a list that of the first one."""
    yield place
    names = value if isinstance(value, dict) else [0] if isinstance(value, list) and value else []
    for name in names:
        yield from values_in(value[name], (*place, name))


def test_no_type_in_a_manifest_is_an_internal_error(tmp_path):
    """Each value of a run in place of which another type stands: a report, or an error's line."""
    folder = shutil.copytree(GOLDEN / str(SCHEMA), tmp_path / "run")
    text = (folder / "manifest.json").read_text()
    whole = json.loads(text)
    whole["cells"] = dict(list(whole["cells"].items())[:1])
    places = [p for p in values_in(whole) if p]
    refused = 0
    for place in places:
        for wrong in ([5], "x", {}, -1, "00-of-01\n"):
            changed = json.loads(text)
            *above, name = place
            inside = changed
            for each in above:
                inside = inside[each]
            inside[name] = wrong
            (folder / "manifest.json").write_text(json.dumps(changed))
            try:
                json_report(report_on([folder]))
            except SpsError:
                refused += 1
    assert refused > len(places)
