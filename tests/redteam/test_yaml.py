"""Attacks by YAML text: from files of a folder, from front matter and through tools. The reader stops at its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from guildhall.core import yaml
from guildhall.core.errors import InvalidFile
from guildhall.projects.model import Artifact
from guildhall.workers.lifecycle import set_field

FIELDS = ", ".join(f"k{n}: 1" for n in range(200))
MERGES = f"a: &a {{{FIELDS}}}\n" + "".join(f"b{n}: {{<<: *a}}\n" for n in range(200))
ALIASES = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "merge keys": MERGES,
    "a list of merge keys": "a: &a {b: 1}\nc:\n  <<: [*a, *a]\n",
    "aliases": ALIASES,
    "a long list": f"a: [{', '.join('1' * 20_001)}]\n",
    "many fields": "".join(f"k{n}: 1\n" for n in range(20_001)),
    "nested flow": "[" * 5_000,
    "nested blocks": "- " * 5_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.req("X-29")
def test_hostile_yaml_is_rejected_while_it_is_read(text: str) -> None:
    """Without the limits, most of these texts take minutes, so that the time limit of the test ends them."""
    with pytest.raises(InvalidFile):
        yaml.parse(Path("workers/a.yaml"), text)


def test_hostile_front_matter_is_rejected() -> None:
    with pytest.raises(InvalidFile, match="longer than 20,000 characters"):
        Artifact.parse(f"---\n{HOSTILE['a long list']}---\nbody\n")
    with pytest.raises(InvalidFile, match="merge keys"):
        Artifact.parse(f"---\n{MERGES[:10_000].rpartition('b')[0]}---\nbody\n")


def test_hostile_yaml_is_not_edited(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(MERGES)
    with pytest.raises(InvalidFile):
        set_field(path, "status", "active")
    assert path.read_text() == MERGES


def test_a_quoted_merge_key_is_an_ordinary_field() -> None:
    assert yaml.parse(Path("a.yaml"), 'a: {"<<": 1}\n').data == {"a": {"<<": 1}}
