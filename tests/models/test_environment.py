"""What `sps doctor` and records say of the machine."""

import json

import pytest

from spsbench.cli import doctor
from spsbench.hardware import environment
from spsbench.spec import Spec


@pytest.fixture(autouse=True)
def quiet_place(tmp_path, monkeypatch):
    monkeypatch.setattr("spsbench.models.hub.reachable", lambda: False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.chdir(tmp_path)


def test_doctor_says_what_is_wrong(tmp_path, monkeypatch, capsys):
    (tmp_path / "torch.py").touch()
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    monkeypatch.setenv("TMPDIR", "/nothing/here")
    monkeypatch.setattr(doctor, "at_work", lambda seconds: 1.96)
    doctor.doctor(format="json")
    shown = capsys.readouterr().out
    assert "hf_secret" not in shown
    found = json.loads(shown)
    assert all(found[name] for name in ("torch", "transformers", "spsbench"))
    assert found["devices"][0]["name"] == "cpu"
    rates = found["speeds"]["operations"]
    assert min(found["speeds"]["read"], rates["float32"], rates["bfloat16"]) > 0
    assert found["hub"] == {
        "endpoint": "https://huggingface.co",
        "reachable": False,
        "token_set": True,
    }
    for words in (
        "OMP_NUM_THREADS",
        "TMPDIR",
        "torch.py",
        "2.0 threads of other programs run or wait for one of ",
    ):
        assert any(words in warning for warning in found["warnings"])


def test_doctor_on_a_pipe_has_the_rows_of_each_engine(registered, monkeypatch, capsys):
    registered("engines", "told", "tests.models.test_environment:Told")
    registered("engines", "broken", "tests.models.test_environment:Broken")
    doctor.doctor()
    shown = capsys.readouterr().out
    assert "https://huggingface.co cannot be reached, a token is set" in shown
    assert "hf_secret" not in shown
    assert "\x1b" not in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "speed \\x1b[1mgreat" in lines
    assert "engine broken cannot be examined: RuntimeError" in lines
    monkeypatch.setattr(doctor, "DEFAULT_ENGINE", Spec("eager"))
    assert ["engine", "fast is not installed: eager is the default"] in list(doctor.engine_rows())


class Told:
    @staticmethod
    def report():
        yield "speed", "\x1b[1mgreat"


class Broken:
    @staticmethod
    def report():
        raise RuntimeError("no such device")


def test_doctor_shows_what_an_extension_adds_and_skips_an_absent_one(monkeypatch, capsys):
    theirs = {"here": f"{__name__}:theirs", "gone": ".extensions.gone.doctor:examine"}
    monkeypatch.setattr(doctor, "DOCTOR", theirs)
    doctor.doctor(format="json")
    values = json.loads(capsys.readouterr().out)
    assert values["here"] == {"speed": 1}
    assert "gone" not in values
    doctor.doctor()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["here", "1", "of", "[it]"] in lines


def theirs():
    return {"speed": 1}, [("here", "1 of [it]")]


def test_versions_above_what_was_tried():
    (line,) = environment.untried_versions({"torch": (1, 0), "numpy": (99, 0), "none": (1, 0)})
    assert "newer than what was tried" in line


def test_unwritable_cache(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    found = doctor.examine_machine()
    assert any("cannot be written" in warning for warning in found["warnings"])
