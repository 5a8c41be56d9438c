"""Take the texts out of a finished run: a digest of each stays, so that equal texts remain equal.

For prompts that may be measured with and not passed on: what a model writes about an article quotes
it. Ids of samples, counts, times and scores stay.
"""

import json
from hashlib import sha256
from pathlib import Path

from spsbench.settings.records import Record
from spsbench.store.atomic import replace_file
from spsbench.store.lock import Lock
from spsbench.store.log import encode, iterate
from spsbench.store.run_folder import Shard, records_path

MARK = "sha256:"
DIGITS = 32


def withhold_texts(folder: Path, shard: Shard) -> None:
    """Replace token ids and text of each record of a shard by a digest, in place."""
    path = records_path(folder, shard)
    with Lock(path):
        lines = []
        for number, values in enumerate(iterate(path)):
            text, tokens = values.get("text"), values.get("tokens")  # none in a line of a start
            if tokens or (text and not text.startswith(MARK)):
                written = json.dumps(tokens or text).encode()
                values |= {"tokens": [], "text": f"{MARK}{sha256(written).hexdigest()[:DIGITS]}"}
            lines.append(encode(number, values))
        replace_file(path, b"".join(lines))


def is_withheld(record: Record) -> bool:
    """Return whether a record has a digest in the place of its text."""
    return not record.tokens and record.text.startswith(MARK)
