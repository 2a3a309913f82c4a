"""Ids and hashes: makes readable ids such as `r-7k2m9x4qpw`, checks names, and hashes JSON values and bytes.

Does not look up an id. The first letter of an id is its kind.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from typing import Any

_ALPHABET = "23456789abcdefghjkmnpqrstvwxyz"
_ID = re.compile(r"[a-z]-[23456789abcdefghjkmnpqrstvwxyz]{10}")
LONGEST_NAME = 64  # characters
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}")

RUN = "r"
ASK = "a"
JOB = "j"
ROOM = "m"
WORKFLOW = "w"
COMMISSION = "c"
MEETING = "t"  # a talk; m- is a room
PROPOSAL = "p"  # p-1, p-2 ...: counted in their room


def new_id(kind: str) -> str:
    """A new id such as `r-7k2m9x4qpw`; `kind` is the letter that says what it names."""
    return f"{kind}-{''.join(secrets.choice(_ALPHABET) for _ in range(10))}"


def is_id(text: str, kind: str) -> bool:
    """Whether the text has the form of an id of this kind."""
    return _ID.fullmatch(text) is not None and text.startswith(f"{kind}-")


def is_name(text: str) -> bool:
    """Whether the text may name a worker, a sandbox or a toolbox: safe as a file name on every system."""
    return _NAME.fullmatch(text) is not None and ".." not in text


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(value: Any) -> str:
    """A short hash of a JSON value; equal values have equal fingerprints."""
    return digest(canonical(value).encode("utf-8", "surrogatepass"))  # half a pair, from a model, is text too


def digest(data: bytes) -> str:
    """A short hash of bytes."""
    return hashlib.sha256(data).hexdigest()[:32]
