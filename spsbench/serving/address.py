"""Addresses of servers, and the API keys of their users, hidden in all that servers say."""

import base64
import html
import ipaddress
import json
import os
import re
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

from spsbench.errors import DataError, UsageError
from spsbench.untrusted import cut

KEY, BASELINE_KEY = "SPS_API_KEY", "SPS_BASELINE_API_KEY"
HIDDEN = "***"
SHORTEST_SECRET = 8  # characters; a shorter key is no secret, and an ordinary text may hold it
INVISIBLE = r"[\s\x00-\x1f\x7f\xad\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufe0f\ufeff]*+"
"""Characters that may break a key in a text."""


def check_address(url: str) -> str:
    """Return `url`, else http, without / or /v1 at its end; UsageError: unusable, key or query."""
    import httpx2

    try:
        if not url.isprintable() or " " in url:
            raise ValueError("a blank or a control character")
        parts = urlsplit(url if "://" in url else f"http://{url}")
        address = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/v1")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == -1:
            raise ValueError("no host, or another protocol")
        has_secret = parts.username or parts.password or parts.query or parts.fragment
        if not has_secret:
            httpx2.URL(address)
    except (ValueError, httpx2.InvalidURL) as error:
        excerpt = cut(url.rpartition("@")[2].partition("?")[0].encode("unicode_escape").decode())
        raise UsageError(
            f"no URL of a server ({excerpt}): expected one like http://localhost:8000"
        ) from error
    if has_secret:
        raise UsageError(
            f"a URL with a key or a query ({parts.scheme}://{parts.hostname}/...): expected host, "
            f"port and path alone. Keys come from {KEY} and {BASELINE_KEY} in the environment"
        )
    return address.rstrip("/")


def is_local(host: str) -> bool:
    """Return whether a host is this machine: localhost, a loopback address, 0.0.0.0 or ::."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


class ApiKey:
    """The key in an environment variable, without blanks and line ends around it."""

    def __init__(self, variable: str) -> None:
        self.variable = variable
        self._value = os.environ.get(variable, "").strip()
        if not (self._value.isascii() and self._value.isprintable()):
            raise DataError(
                f"a key that no request can carry ({variable}): expected printable ASCII in one "
                f"line. Set {variable} anew"
            )
        self.headers = {"authorization": f"Bearer {self._value}"} if self._value else {}
        forms = sorted(_forms(self._value), key=len, reverse=True) if self._value else []
        self._pattern = re.compile("|".join(map(re.escape, forms)), re.IGNORECASE)
        visible = map(re.escape, "".join(self._value.split()))
        self._broken = re.compile(INVISIBLE.join(visible), re.IGNORECASE)

    def hide(self, value: Any) -> Any:
        """Return a text, or a JSON value with all its names and texts, with *** for the key.

        The key may be in any of `_forms`, in HTML entities (the text comes back without any), or
        broken by invisible characters. A key of fewer than `SHORTEST_SECRET` characters stays.
        """
        if len(self._value) < SHORTEST_SECRET:
            return value
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if isinstance(value, dict):
            return {self.hide(name): self.hide(item) for name, item in value.items()}
        if not isinstance(value, str):
            return value
        unescaped = html.unescape(value)
        if self._broken.search(unescaped):
            value = self._broken.sub(HIDDEN, unescaped)
        return self._pattern.sub(HIDDEN, value)


def _forms(key: str) -> set[str]:
    """Return a key as it is, and as it looks quoted, escaped, percent-encoded, in hex and base64.

    Base64 has three, by what stands before the key, each without the digits that neighbours change.
    """
    data = key.encode("ascii")
    forms = {key, repr(key)[1:-1], json.dumps(key)[1:-1], html.escape(key)}
    forms |= {quote(key, safe=""), quote_plus(key), quote(key)}
    forms |= {data.hex(), "".join(f"%{byte:02x}" for byte in data)}
    forms |= {"".join(f"\\{kind}{byte:0{n}x}" for byte in data) for kind, n in (("u", 4), ("x", 2))}
    for before in range(3):
        digits = base64.b64encode(bytes(before) + data).decode()
        first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        forms |= {digits[first:last], digits[first:last].translate({43: "-", 47: "_"})}
    return forms
