"""Audit servers one after another: `python recipes/audit/audit.py TABLE.toml FOLDER`.

A `[[row]]` has `name`, and `url` or `serve`, a command line in which `{port}` is replaced; its
other keys, and those of `[defaults]`, are options of `sps check`, or WORDS for the reader;
`variants` are tables of keys, each a row with the others. FOLDER gets the answers, the result and
the server's output of each row, and `table.md`; rows with a result are not run again. SPS names the
command (sps), PORT the port (8017). Exits 7 if a row is biased, 0 if all held, else 6.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

WORDS = {
    *("name", "method", "k", "speculates", "twin"),
    *("skip", "serve", "environment", "url", "start", "variants"),
}
NO_SERVER, PAUSE, PORT = 69, 3.0, os.environ.get("PORT", "8017")
DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM")  # of util-linux


def check(row: dict[str, Any], folder: Path) -> str:
    """Audit one row and write its result; return the verdict, or why there is none."""
    answers, result = folder / f"{row['name']}.jsonl", folder / f"{row['name']}.json"
    if "skip" in row or result.is_file():
        return str(row.get("skip") or json.loads(result.read_text())["verdict"])
    words = row.get("serve") or ()
    words = shlex.split(words) if isinstance(words, str) else words
    server = None
    if words:
        command = [*DIES_WITH_PARENT, *(str(word).replace("{port}", PORT) for word in words)]
        environment = {**os.environ, **row.get("environment", {})}
        with (folder / f"{row['name']}.log").open("wb") as log:
            server = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
    line = [*shlex.split(os.environ.get("SPS", "sps")), "check", "--json"]
    line.append(row.get("url") or f"http://127.0.0.1:{PORT}")
    for name, value in row.items():
        if name not in WORDS:
            flag = f"--{name.replace('_', '-')}"
            for one in value if isinstance(value, list) else [value]:
                line += [flag] if one is True else [flag, str(one)]
    until = time.monotonic() + float(row.get("start", 900))
    try:
        while True:
            keep = "--resume" if answers.exists() else "--keep"
            ran = subprocess.run([*line, keep, str(answers)], capture_output=True, text=True)
            ended = server.poll() if server else 0
            if ran.returncode != NO_SERVER or ended is not None or time.monotonic() > until:
                break
            time.sleep(PAUSE)
    finally:
        if server:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    if not ran.stdout:
        died = f"the server ended with {ended}; " if server and ended is not None else ""
        return f"not run: {died}{ran.stderr.strip().splitlines()[-1]}"
    values = json.loads(ran.stdout)
    result.write_text(ran.stdout)
    plain = row.get("speculates") and not values["acceptance"]
    return f"{values['verdict']}{', but no draft was counted' * bool(plain)}"


def cell(value: object) -> str:
    """Return a text as one cell of Markdown: one line, nothing of it a mark."""
    line = "".join(c if c.isprintable() else " " for c in str(value))
    return re.sub(r"([\\`*_~|<>\[\]()&#!])", r"\\\1", " ".join(line.split())[:300])


def main(table: Path, folder: Path) -> int:
    """Audit all rows, write their table, and return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    content = tomllib.loads(table.read_text())
    rows = [
        {**content.get("defaults", {}), **row, **variant}
        for row in content["row"]
        for variant in row.get("variants", [{}])
    ]
    lines, verdicts = ["| row | method | K | verdict | twin |", "|---|---|---|---|---|"], []
    for row in rows:
        verdicts.append(check(row, folder))
        cells = (row["name"], row.get("method", ""), row.get("k", ""), verdicts[-1])
        lines.append(f"| {' | '.join(map(cell, (*cells, row.get('twin', ''))))} |")
        (folder / "table.md").write_text("\n".join(lines) + "\n")
        print(lines[-1], flush=True)
    if any(verdict.startswith("bias") for verdict in verdicts):
        return 7
    return 0 if all(verdict == "held" for verdict in verdicts) else 6


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
