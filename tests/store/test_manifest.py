import json
import shutil
from datetime import UTC

import pytest
from msgspec.structs import replace

from spsbench.errors import DataError, MismatchError, MissingError, SpsError
from spsbench.reports.run_tables import report_on
from spsbench.reports.text import json as json_report
from spsbench.store.log import encode_record, iterate
from spsbench.store.manifest import RUN_SCHEMA, Manifest, differences
from tests.golden.make import GOLDEN
from tests.store import made

KEPT = GOLDEN / str(RUN_SCHEMA)


def test_what_is_written_is_loaded_and_never_written_again(tmp_path):
    manifest = made.manifest()
    assert manifest.write_once(tmp_path) is manifest
    assert manifest.created.tzinfo is UTC
    before = (tmp_path / "manifest.json").read_bytes()
    assert replace(manifest, tool="9.9").write_once(tmp_path) == Manifest.load(tmp_path) == manifest
    with pytest.raises(MismatchError) as raised:
        made.manifest(seed=1).write_once(tmp_path)
    assert str(raised.value).endswith("Differing:\n  seed: 1, there 0")
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_numbers_that_are_none_are_not_written(tmp_path):
    with pytest.raises(ValueError):
        made.manifest(temperature=float("nan")).write_once(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": "1"}', '{"schema": 8}', f'{{"schema": {RUN_SCHEMA}}}']
)
def test_a_broken_one_is_refused_and_none_is_no_run(tmp_path, text):
    with pytest.raises(MissingError):
        Manifest.load(tmp_path)
    made.manifest().write_once(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(text)
    with pytest.raises(DataError):
        Manifest.load(tmp_path)


def test_a_changed_one_is_refused_and_one_without_a_checksum_is_read(tmp_path):
    manifest = made.manifest().write_once(tmp_path)
    path = tmp_path / "manifest.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values))
    assert Manifest.load(tmp_path) == manifest
    title = values["experiment"] | {"title": "another"}
    path.write_text(json.dumps(values | {"experiment": title}))
    with pytest.raises(DataError) as caught:
        Manifest.load(tmp_path)
    assert "another checksum" in str(caught.value)
    del values["crc"]
    path.write_text(json.dumps(values))
    assert Manifest.load(tmp_path) == manifest


def test_differences_tell_kinds_and_absence_apart():
    assert differences({"a": 1, "b": [1]}, {"a": 1, "b": (1,)}) == []
    assert differences({"a": 1, "b": None}, {"a": True, "c": 0}) == [
        "a: 1, there true",
        "b: null, there absent",
        "c: absent, there 0",
    ]


def values_in(value, place=()):
    """The place of each value in JSON; of a list that of the first one."""
    yield place
    names = value if isinstance(value, dict) else [0] if isinstance(value, list) and value else []
    for name in names:
        yield from values_in(value[name], (*place, name))


def changes(whole):
    """JSON with another type in the place of each value."""
    for *above, name in filter(None, values_in(whole)):
        for wrong in ([5], "x", {}, -1, "00-of-01\n"):
            changed = inside = json.loads(json.dumps(whole))
            for place in above:
                inside = inside[place]
            inside[name] = wrong
            yield changed


@pytest.mark.parametrize("name", ["manifest.json", "records-00-of-01.jsonl"])
def test_no_type_in_a_manifest_or_a_start_is_an_internal_error(tmp_path, name):
    """Each value of a run in place of which another type stands: a report, or an error's line."""
    folder = shutil.copytree(KEPT, tmp_path / "run")
    path = folder / name
    if name == "manifest.json":
        whole = json.loads(path.read_text())
        whole["cells"] = dict(list(whole["cells"].items())[:1])
        contents = [json.dumps(changed).encode() for changed in changes(whole)]
    else:
        first, *rest = iterate(path)
        lines = [encode_record(number, values) for number, values in enumerate(rest, 1)]
        contents = [b"".join([encode_record(0, changed), *lines]) for changed in changes(first)]
    refused = 0
    for content in contents:
        path.write_bytes(content)
        try:
            json_report(report_on([folder]))
        except SpsError:
            refused += 1
    assert refused > len(contents) / 5
