"""Ids, names and hashes: creates ids such as `r-7k2m9x4qpw`, checks names, and hashes JSON values and bytes.

The first letter of an id is its kind. This module does not look up an id.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from typing import Any

_ALPHABET = "23456789abcdefghjkmnpqrstvwxyz"
_ID = re.compile(r"[a-z]-[23456789abcdefghjkmnpqrstvwxyz]{10}")
MAX_NAME_CHARS = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME_CHARS - 1}}}")
NAME_RULE = (
    f"use 1 to {MAX_NAME_CHARS} of the characters a-z, A-Z, 0-9, '_', '-' and '.', and start with a letter or digit"
)

RUN = "r"
ASK = "a"
JOB = "j"
ROOM = "m"
WORKFLOW = "w"
COMMISSION = "c"
MEETING = "t"  # "m" is a room
PROPOSAL = "p"  # numbered in each room: p-1, p-2


def new_id(kind: str) -> str:
    """Return a new id such as `r-7k2m9x4qpw`. `kind` is its first letter."""
    return f"{kind}-{''.join(secrets.choice(_ALPHABET) for _ in range(10))}"


def is_id(text: str, kind: str) -> bool:
    """Return True if the text has the form of an id of this kind."""
    return _ID.fullmatch(text) is not None and text.startswith(f"{kind}-")


def is_name(text: str) -> bool:
    """Return True if the text is a valid name of a worker, sandbox or toolbox, and safe as a file name."""
    return _NAME.fullmatch(text) is not None and ".." not in text


def canonical(value: Any) -> str:
    """Return a value as JSON with sorted keys and without spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(value: Any) -> str:
    """Return a short hash of a JSON value."""
    return digest(canonical(value).encode("utf-8", "surrogatepass"))  # models can send lone surrogates


def digest(data: bytes) -> str:
    """Return a short hash of bytes."""
    return hashlib.sha256(data).hexdigest()[:32]
