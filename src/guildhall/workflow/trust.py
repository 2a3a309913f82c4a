"""Trust in a workflow: its setup runs only as a person has seen it. The file is pinned by its content."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from guildhall.core.errors import NotTrusted
from guildhall.core.paths import project_root
from guildhall.runs.plan import Executes
from guildhall.workers.code import Code, CodeFile
from guildhall.workflow.interpolate import command

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.workers.trust import Trust
    from guildhall.workflow.definition import Definition
    from guildhall.workflow.model import Workflow


def commands(definition: Definition) -> tuple[str, ...]:
    """What its setup would run, as a shell would read it."""
    return tuple(command(step.shell) for step in definition.setup)


def setup_code(workflow: Workflow, home: Home) -> Code | None:
    """The file as something that is executed; None: it has no setup."""
    return code_of(workflow.path, workflow.text, home) if workflow.definition.setup else None


def code_of(path: Path, text: str, home: Home) -> Code:
    root = project_root(path.parent).resolve()
    real = path.resolve()
    shown = real.relative_to(root).as_posix() if real.is_relative_to(root) else str(real)
    file = CodeFile(path=real, shown=shown, content=text.encode())
    return Code(kind="workflow", name=shown, root=root, files=(file,), own=root == home.path.resolve())


def executed(workflow: Workflow, trust: Trust, home: Home) -> Executes | None:
    """The setup, and how the file stands; None: it has none."""
    if (code := setup_code(workflow, home)) is None:
        return None
    return Executes(
        kind=code.kind,
        name=code.name,
        own=code.own,
        trusted=trust.holds(code),
        files=trust.seen(code),
        commands=commands(workflow.definition),
    )


def demand_trust(workflow: Workflow, trust: Trust, home: Home) -> None:
    """Raises NotTrusted where the setup would run and the file is not trusted as it is."""
    code = setup_code(workflow, home)
    if code is None or trust.holds(code):
        return
    would = [one.strip().partition("\n")[0] for one in commands(workflow.definition)]
    more = f" and {len(would) - 5} more" if len(would) > 5 else ""
    lines = "".join(f"\n  {line[:100]!r}" for line in would[:5])
    raise NotTrusted(
        f"setup: its commands are not trusted as they are ({trust.seen(code)[0].said}):{lines}{more}",
        where=workflow.place,
        hint=f"Look at it, then: guild trust {shlex.quote(workflow.place)}",
    )
