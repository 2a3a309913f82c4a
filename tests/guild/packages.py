"""Packages for tests: a writer with an activation function, and a toolbox of two modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.paths import Home

WRITER = """
[project]
name = "writer"
version = "1.2.0"
description = "Writes letters"

[tool.guildhall]
type = "worker"
posture = "You write letters."
toolboxes = ["mail"]
limits = {max_turns = 20}
"""

MAIL = """
[project]
name = "mail"
description = "A box of letters"

[tool.guildhall]
type = "toolbox"
export = "post.tools"
"""

TOOLS = '''
"""Letters, and what they cost."""

from guildhall import tool

from .prices import price


@tool
def weigh(words: int) -> str:
    """What a letter of so many words costs.

    Args:
        words: How many words it has.
    """
    import sys

    from post import prices  # imported late, when the tool is called

    assert prices.price is price
    place = 'the hall' if 'guildhall.hall.composition.hall' in sys.modules else 'a child'
    return f"{price(words)} cents, said in {place}"
'''

PRICES = """
def price(words: int) -> int:
    return 80 + words // 100
"""

LETTERS = {"post/__init__.py": "", "post/tools.py": TOOLS, "post/prices.py": PRICES}


def write_package(home: Home, name: str, project: str, files: Mapping[str, str] | None = None) -> Path:
    """Write a package to the home, and return its folder."""
    folder = home.packages / name
    for path, text in {"pyproject.toml": project, **(files or {})}.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def write_mail_package(home: Home) -> Path:
    return write_package(home, "mail", MAIL, LETTERS)
