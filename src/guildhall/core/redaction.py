"""Redaction: replaces the values of secrets in a text by their names in brackets.

A secret is known, such as the key of a provider, or guessed: a variable that looks like a secret. Known values have at
least 4 characters. Guessed values have at least 8, because `TOKENIZERS_PARALLELISM=false` looks like a secret too.

Invariant: if a secret contains another secret, the longer value is replaced, so that no part of it remains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MIN_GUESSED_CHARS = 8
_MIN_KNOWN_CHARS = 4
_MAX_SECRETS = 200
_SECRET_NAME = re.compile(r"(?i)(key|token|secret|passw|credential|auth|cookie|private)")
_SECRET_VALUE = re.compile(r"^(sk-|ghp_|gho_|github_pat_|xox[abpr]-|AKIA|eyJ[A-Za-z0-9_-]{10,}\.)")


def looks_secret(name: str, value: str) -> bool:
    """Return True if the name or the value of a variable looks like a secret."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.match(value))


def redact(text: str, secrets: Mapping[str, str]) -> str:
    """Return the text with known secrets replaced. `secrets` maps each value to its name."""
    return _Replacer({value: name for value, name in secrets.items() if len(value) >= _MIN_KNOWN_CHARS})(text)


class _Replacer:
    """Replaces values by their names, longest first."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        longest_first = sorted(names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if names else None

    def __call__(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: f"[{self._names[match[0]]}]", text)


class Redactor(_Replacer):
    """Replaces the values of the variables of an environment that look like a secret."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(
            {
                value: name
                for name, value in environ.items()
                if len(value) >= MIN_GUESSED_CHARS and looks_secret(name, value)
            }
        )


class Secrets:
    """Replaces the secrets of a process and of its requests. Callable with a text."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._known: dict[str, str] = {}
        self._redact = Redactor({})
        self.add(environ)

    def add(self, variables: Mapping[str, str]) -> None:
        """Add the variables that look like a secret. Only the last 200 secrets are kept."""
        new = {name: value for name, value in variables.items() if looks_secret(name, value)}
        if new.items() - self._known.items():
            self._known = dict(list({**self._known, **new}.items())[-_MAX_SECRETS:])
            self._redact = Redactor(self._known)

    def __call__(self, text: str) -> str:
        return self._redact(text)
