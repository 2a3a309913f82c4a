"""Runtime catalog: lists each runtime with its program, versions, durability and gaps.

Durability says which parts of a run are found again behind its doors after a crash or in a replay:

    exact          every model answer and every tool result
    tool-exact     every tool result, while the model is asked again
    restart-only   only the task, which starts from the beginning with new tool calls

Does not look for installed programs: `discovery` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


Durability = Literal["exact", "tool-exact", "restart-only"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A runtime, as the table has it."""

    name: str  # as a worker's file names it
    title: str
    program: str | None = None  # what is started; None: nothing but ourselves
    least: str | None = None  # the oldest version of it that does
    tested: str | None = None  # the one that our own tests run
    install: str = ""  # how to get it
    durability: Durability = "exact"
    gaps: tuple[str, ...] = ()  # where it does otherwise than pydantic
    unasked: tuple[str, ...] = ()  # the conformance checks that these gaps exempt it from
    network: bool = False  # it needs the network of the machine; all others have their doors and nothing else
    providers: tuple[str, ...] = ()  # whose models it takes, beside `script:` and `replay:`; none: any

    @property
    def routed(self) -> bool:
        """Whether its model calls pass the model door, so that scripts and recordings can answer."""
        return not self.network

    @property
    def line(self) -> str:
        return f"{self.title}, durability {self.durability}"

    def as_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"name": self.name, "durability": self.durability, "gaps": list(self.gaps)}

    @property
    def variable(self) -> str:
        """The variable that names the program, for whoever has it somewhere else."""
        return f"GUILDHALL_{self.name.upper()}"


_ROWS = (
    Row(name="pydantic", title="pydantic-ai", install="part of Guildhall"),
    Row(
        name="claude",
        title="Claude Code",
        program="claude",
        least="2.1.200",
        tested="2.1.325",
        install="pip install 'guildhall[claude]', or the `claude` command of Anthropic",
        gaps=("with a Claude login, two lines that the provider requires precede the system prompt",),
        providers=("anthropic",),
    ),
    Row(
        name="codex",
        title="Codex CLI",
        program="codex",
        least="0.160.0",
        tested="0.166.0",
        install="npm install -g @openai/codex",
        gaps=("Codex scales images and adds a line before and after each; PDFs are rejected",),
        providers=("openai",),
    ),
    Row(
        name="opencode",
        title="OpenCode",
        program="opencode",
        least="1.18.3",
        tested="1.18.33",
        install="npm install -g opencode-ai",
        gaps=("images and PDFs are rejected",),
        unasked=("an_attached_image_reaches_the_model",),
        providers=("anthropic", "openai"),
    ),
    Row(
        name="cursor",
        title="Cursor Agent",
        program="cursor-agent",
        install="the `cursor-agent` command of Cursor",
        durability="restart-only",
        network=True,
        gaps=(
            "Cursor calls its models itself, over the network and with your key: answers are not recorded or replayed",
            "a crash fails the run; the run can be resumed only if it has changed nothing",
            "its own tools cannot be removed; they have access to an empty home and the network",
            "the system prompt is part of the first message",
            "cost and turns are unknown and cannot be limited; time can",
            "it stays in memory while an approval is open",
            "images and PDFs are rejected",
        ),
        providers=("cursor",),
    ),
)

ROWS: Mapping[str, Row] = {row.name: row for row in _ROWS}
