"""Comparison of access tokens."""

from __future__ import annotations

import hmac


def is_same_token(shown: str, expected: str) -> bool:
    """Return True if the tokens are equal, in a time that does not depend on where they differ.

    An empty `expected` matches nothing. `shown` comes from a request and may hold any characters.
    """
    return bool(expected) and hmac.compare_digest(shown.encode("utf-8", "surrogatepass"), expected.encode())
