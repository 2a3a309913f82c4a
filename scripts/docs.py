"""Writes what is generated: the shipped JSON Schemas of the files that people write. `make docs` runs it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from guildhall.members import manifest as of_members
from guildhall.workers import schema as of_workers
from guildhall.workflow import schema as of_workflows

if TYPE_CHECKING:
    from pathlib import Path


def generated() -> dict[Path, str]:
    """Every generated file and its text."""
    return {
        of_members.SHIPPED_SCHEMA: of_members.manifest_schema_text(),
        of_workers.SHIPPED_SCHEMA: of_workers.worker_schema_text(),
        of_workflows.SHIPPED_SCHEMA: of_workflows.workflow_schema_text(),
    }


def main() -> None:
    """Brings every generated file up to date and names the ones that changed."""
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
