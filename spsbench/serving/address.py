"""Addresses of servers, as users give them, and the certificates that prove them."""

import ipaddress
import os
from functools import cache
from typing import Any
from urllib.parse import SplitResult, urlsplit

from spsbench.errors import DataError, UsageError
from spsbench.foreign import cut
from spsbench.serving.api_key import BASELINE_KEY, KEY

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@cache
def certificates() -> Any:
    """Return the TLS context of all clients; to read the certificates takes 50 ms.

    Raises:
        DataError: a variable names a file without certificates.
    """
    import httpx2

    try:
        return httpx2.create_ssl_context()
    except OSError as error:
        names = ", ".join(f"{n}={cut(os.environ[n])}" for n in CERTIFICATES if n in os.environ)
        raise DataError(
            f"no certificates ({names or 'of this system'}: {error.strerror or error}): expected "
            "a file of them in PEM. Correct the variable, or unset it"
        ) from error


def checked(url: str) -> str:
    """Return the address of a server without path, slash or /v1.

    Raises:
        UsageError: the address is not HTTP, or has a key or a query.
    """
    import httpx2

    try:
        if not url.isprintable() or " " in url:
            raise ValueError("a blank or a control character")
        parts = urlsplit(url if "://" in url else f"http://{url}")
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        address = f"{parts.scheme}://{parts.netloc}{path}"
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != -1
        if not _has_secret(parts):
            httpx2.URL(address)
    except (ValueError, httpx2.InvalidURL) as error:
        safe_url = cut(url.rpartition("@")[2].partition("?")[0].encode("unicode_escape").decode())
        raise UsageError(
            f"no URL of a server ({safe_url}): expected one like http://localhost:8000"
        ) from error
    if _has_secret(parts):
        raise UsageError(
            f"a URL with a key or a query ({parts.scheme}://{parts.hostname}/...): expected host, "
            f"port and path alone. Keys come from {KEY} and {BASELINE_KEY} in the environment"
        )
    if not valid:
        raise UsageError(
            f"no URL of a server ({cut(url)}): expected one like http://localhost:8000"
        )
    return address


def _has_secret(parts: SplitResult) -> bool:
    return bool(parts.username or parts.password or parts.query or parts.fragment)


def is_local(host: str) -> bool:
    """Return whether a host is this machine, as a loopback address or as 0.0.0.0 or ::."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
