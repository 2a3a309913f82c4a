"""Who may speak to the hall over HTTP at all: a program on this machine, never a page of another place.

A browser can be made to send requests to loopback by any page, also under a name that leads here (DNS rebinding). Both
show in the headers Host and Origin. Who it is, and what it may do, is said by its token alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Collection

_HERE = frozenset({"127.0.0.1", "localhost", "::1"})


def refused(host: str | None, origin: str | None, names: Collection[str] = _HERE) -> tuple[int, str] | None:
    """The status and the reason, where a request is not heard: it was sent to another name, or by a page elsewhere."""
    if host is None or _name(f"//{host}") not in names:
        return 421, "the Host header names another machine"
    if origin is not None and (not origin.startswith(("http://", "https://")) or _name(origin) not in names):
        return 403, "the request comes from a page of another place"
    return None


def bearer(authorization: str | None) -> str | None:
    """The token in a header `Authorization: Bearer TOKEN`."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _name(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.port is None or parts.port >= 0 else None
    except ValueError:
        return None
