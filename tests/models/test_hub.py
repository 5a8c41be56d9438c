"""A hub on the loopback: downloads, what is cached, and the ways in which a hub fails."""

import hashlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHILD = """
import json, sys
from spsbench.errors import SpsError
from spsbench.messages import lines_to
from spsbench.models import hub
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
answers = []
for task in json.load(sys.stdin):
    if "free" in task:
        import shutil
        shutil.disk_usage = lambda path: type("Usage", (), {"free": task["free"]})
    said = []
    try:
        with lines_to(said.append):
            trust = task.get("trust", False)
            folder = hub.fetch_snapshot(
                ModelSpec(task["id"], task.get("revision"), trust_remote_code=trust),
                Access(offline=task.get("offline", False),
                       allow_pickle=task.get("allow_pickle", False)))
        answer = {"folder": str(folder)}
    except SpsError as error:
        answer = {"error": type(error).__name__, "line": str(error)}
    answers.append(answer | {"said": said})
print(json.dumps(answers))
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """Three models: one that is whole, one gated, one of pickles."""

    files: ClassVar[dict[str, dict[str, bytes]]] = {}
    asked: ClassVar[list[str]] = []

    def log_message(self, *words):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.asked.append(f"{self.command} {path}")
        for name in self.files:
            if path.startswith((f"/api/models/{name}", f"/{name}/resolve/")):
                break
        else:
            if path == "/api/models":
                self.reply(b"[]")
            else:
                self.refuse(404, "RepoNotFound")
            return
        if name == "org/gated":
            self.refuse(403, "GatedRepo")
        elif "/revision/" in path and path.rpartition("/")[2] not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound")
        elif path.startswith("/api/"):
            siblings = [{"rfilename": n, "size": len(d)} for n, d in self.files[name].items()]
            about = {"id": name, "sha": COMMIT, "siblings": siblings}
            self.reply(json.dumps(about).encode())
        else:
            self.reply(self.files[name][path.rpartition("/")[2]])

    def refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def reply(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture(scope="module")
def address(llama, gpt2):
    extra = {"README.md": b"x", "model.fp16.safetensors": b"x", "own.py": b"x", "flax.msgpack": b""}
    whole = {path.name: path.read_bytes() for path in llama.iterdir()}
    sharded = {path.name: path.read_bytes() for path in gpt2.iterdir()}
    Hub.files = {
        "org/llama": whole | extra,
        "org/sharded": sharded | extra,
        "org/gated": whole,
        "org/pickles": {"config.json": whole["config.json"], "pytorch_model.bin": b"x"},
        "org/medusa": {"config.json": b"{}", "medusa_lm_head.pt": b"x"},
        "org/tgi": {
            "config.json": b"{}",
            "medusa_lm_head.safetensors": b"x",
            "medusa_lm_head.pt": b"x",
        },
        "org/eagle": {"config.json": b"{}", "pytorch_model.bin": b"x", "model.safetensors": b"x"},
        "org/empty": {"README.md": b""},
    }
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(address, home, *tasks):
    kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(("HF_", "HTTP"))}
    environment = kept | {"HF_ENDPOINT": address, "HF_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(tasks),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    answers = json.loads(done.stdout)
    for answer in answers:
        assert "\n" not in answer.get("line", "")
    return answers


def test_download_then_offline(address, llama, tmp_path):
    task = {"id": "org/llama"}
    Hub.asked.clear()
    first, again = fetch(address, tmp_path, task, task)
    folder = Path(first["folder"])
    assert again["folder"] == first["folder"]
    size = sum(path.stat().st_size for path in llama.iterdir())
    assert first["said"] == [f"downloading org/llama: {size / 1000:.3g} KB to {tmp_path / 'hub'}"]
    assert again["said"] == []
    names = {path.name for path in llama.iterdir()}
    assert {path.name for path in folder.iterdir()} == names
    for name in names:
        assert (folder / name).read_bytes() == (llama / name).read_bytes()
        assert Hub.asked.count(f"GET /org/llama/resolve/{COMMIT}/{name}") == 1

    Hub.asked.clear()
    (offline,) = fetch(address, tmp_path, task | {"offline": True})
    assert offline["folder"] == first["folder"]
    assert Hub.asked == []

    (folder / "model.safetensors").unlink()
    (half,) = fetch(address, tmp_path, task | {"offline": True})
    assert half["error"] == "UnavailableError"
    assert half["line"].startswith("org/llama is only half downloaded and offline mode is on")


def test_heads_by_the_names_of_their_writers(address, tmp_path):
    """Downloaded once, and found again without a network; no pickle where there are safetensors."""
    expected = {
        "org/medusa": "medusa_lm_head.pt",
        "org/tgi": "medusa_lm_head.safetensors",
        "org/eagle": "model.safetensors",
        "org/pickles": "pytorch_model.bin",
    }
    tasks = [{"id": name, "allow_pickle": True} for name in expected]
    safe = {"id": "org/tgi", "allow_pickle": False}
    offline = [task | {"offline": True} for task in (*tasks, safe)]
    *found, _, pickled = fetch(address, tmp_path, *tasks, *offline, safe | {"id": "org/medusa"})
    for (name, weights), *answers in zip(
        expected.items(), found, found[len(tasks) :], strict=False
    ):
        for answer in answers:
            there = {path.name for path in Path(answer["folder"]).iterdir()}
            assert there == {"config.json", weights}, name
    assert found[1]["said"][0].startswith("downloading org/tgi")
    assert pickled["error"] == "DataError"
    assert "`allow_pickle`" in pickled["line"]


def test_shards_and_what_a_hub_may_refuse(address, gpt2, tmp_path):
    expected = [
        ({"id": "org/typo"}, "MissingError", "no model 'org/typo'"),
        ({"id": "org/llama", "revision": "v9"}, "MissingError", "no revision 'v9'"),
        ({"id": "org/gated"}, "UnavailableError", "org/gated is gated"),
        ({"id": "org/pickles"}, "DataError", "`allow_pickle`"),
        ({"id": "org/empty"}, "DataError", "no config.json"),
        ({"id": "gpt2", "offline": True}, "UnavailableError", "not cached and offline mode is on"),
        ({"id": "org/llama", "free": 1000}, "OutOfMemoryError", "5 % free"),
    ]
    sharded = {"id": "org/sharded", "trust": True}
    whole, *answers = fetch(address, tmp_path, sharded, *(task for task, *_ in expected))
    names = {path.name for path in Path(whole["folder"]).iterdir()}
    assert names == {path.name for path in gpt2.iterdir()} | {"own.py"}
    for (_, kind, words), answer in zip(expected, answers, strict=True):
        assert answer["error"] == kind, answer
        assert words in answer["line"]


def test_nobody_listens(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    answer, near = fetch(address, tmp_path, {"id": "gpt2-xl"}, {"id": "smolm2"})
    assert answer["error"] == "UnavailableError"
    assert answer["line"] == (
        f"gpt2-xl is not cached and the hub cannot be reached ({address}): expected a cached "
        "model, a local folder or network. Pass a local folder to `target`, or run again online"
    )
    assert near["line"].endswith("or run again online. Did you mean smollm2?")


def test_a_hub_that_never_answers(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as hole:
        address = f"http://user:secret@127.0.0.1:{hole.getsockname()[1]}"
        (answer,) = fetch(address, tmp_path, {"id": "gpt2-xl"})
        hole.setblocking(False)
        hole.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it was asked once
            hole.accept()
    assert answer["error"] == "UnavailableError"
    assert "cannot be reached" in answer["line"]
    assert "secret" not in answer["line"]
