"""Who may come in: the person, by the token of the boot, and each live run, by a token of its own.

The person's opens the verbs of the hall. A run's opens the doors of that run and nothing else; it ends with the run.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets


class Tokens:
    """The tokens of one boot of a hall."""

    def __init__(self) -> None:
        self.person = secrets.token_urlsafe(32)
        self._runs: dict[bytes, str] = {}  # by the hash of the token, so that looking it up tells nothing about it

    def issue(self, run: str) -> str:
        """A new token of a run; what it had before is worth nothing any more."""
        self.revoke(run)
        token = secrets.token_urlsafe(32)
        self._runs[_hashed(token)] = run
        return token

    def revoke(self, run: str) -> None:
        for hashed in [hashed for hashed, owner in self._runs.items() if owner == run]:
            del self._runs[hashed]

    def is_person(self, token: str) -> bool:
        return hmac.compare_digest(_hashed(token), _hashed(self.person))

    def run_of(self, token: str) -> str | None:
        """The run whose token it is."""
        return self._runs.get(_hashed(token))


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
