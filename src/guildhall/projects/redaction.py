"""What workers and people have said, as it may lie in a repository, and remembered as it was first told there.

A hall knows the secrets of its own environment and of those who come to it; the next one may know fewer, and writes the
same text again. The record itself keeps what was said: a worker must hear its task as it was given. So what had a
secret in it when it came in is kept beside, without it, under a digest of the whole text.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from guildhall.core.redaction import MIN_GUESSED_CHARS
from guildhall.projects.records import redacted, remember_redacted

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.store.engine import Store


class Redactions:
    """Takes secrets out of a text: those that are known now, and those that were known when it was first seen."""

    def __init__(self, store: Store, secrets: Callable[[str], str], *, readonly: bool = False) -> None:
        self._store = store
        self._secrets = secrets
        self._readonly = readonly

    def __call__(self, text: str) -> str:
        if len(text) < MIN_GUESSED_CHARS:
            return text
        digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        kept = self._store.read(lambda connection: redacted(connection, digest))
        before = text if kept is None else kept.decode("utf-8", "surrogatepass")
        told = self._secrets(before)
        if told != before and not self._readonly:
            data = told.encode("utf-8", "surrogatepass")  # on disk no later than the row that has the text
            self._store.submit(lambda connection: remember_redacted(connection, digest, data))
        return told
