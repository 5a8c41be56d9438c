"""Rows in a file, and a context without an end."""

import json


def always(sample):
    return True


def written(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)
