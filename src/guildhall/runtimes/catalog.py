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
class RuntimeInfo:
    """The properties of a runtime."""

    name: str  # as a worker's file names it
    title: str
    program: str | None = None  # what is started; None: nothing but ourselves
    min_version: str | None = None  # the oldest version of it that does
    tested_version: str | None = None  # the one that our own tests run
    install: str = ""  # how to get it
    durability: Durability = "exact"
    gaps: tuple[str, ...] = ()  # where it does otherwise than pydantic
    exempt_checks: tuple[str, ...] = ()  # the conformance checks that these gaps exempt it from
    needs_network: bool = False  # it needs the network of the machine; all others have their doors and nothing else
    providers: tuple[str, ...] = ()  # whose models it takes, beside `script:` and `replay:`; none: any

    @property
    def uses_model_door(self) -> bool:
        """Return True if its model calls pass the model door, so that scripts and recordings can answer them."""
        return not self.needs_network

    @property
    def summary(self) -> str:
        return f"{self.title}, durability {self.durability}"

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "durability": self.durability, "gaps": list(self.gaps)}

    @property
    def variable(self) -> str:
        """Return the variable that contains the path of the program."""
        return f"GUILDHALL_{self.name.upper()}"


_RUNTIMES = (
    RuntimeInfo(name="pydantic", title="pydantic-ai", install="nothing: it is part of Guildhall"),
    RuntimeInfo(
        name="claude",
        title="Claude Code",
        program="claude",
        min_version="2.1.200",
        tested_version="2.1.325",
        install="pip install 'guildhall[claude]', or the `claude` command of Anthropic",
        gaps=("with a Claude login, two lines of Claude Code stand before the system prompt: its provider wants them",),
        providers=("anthropic",),
    ),
    RuntimeInfo(
        name="codex",
        title="Codex CLI",
        program="codex",
        min_version="0.160.0",
        tested_version="0.166.0",
        install="npm install -g @openai/codex",
        gaps=("images are scaled by it, with a line of its own before and after each; PDFs are refused",),
        providers=("openai",),
    ),
    RuntimeInfo(
        name="opencode",
        title="OpenCode",
        program="opencode",
        min_version="1.18.3",
        tested_version="1.18.33",
        install="npm install -g opencode-ai",
        gaps=("images and PDFs are refused",),
        exempt_checks=("an_attached_image_reaches_the_model",),
        providers=("anthropic", "openai"),
    ),
    RuntimeInfo(
        name="cursor",
        title="Cursor Agent",
        program="cursor-agent",
        install="from Cursor, who publish no package; tested with a stand-in",
        durability="restart-only",
        needs_network=True,
        gaps=(
            "its models are asked by itself, with your key and over the network: no answer is on record, none replayed",
            "a crash is not mended: the run fails, and is resumed only if it has changed nothing",
            "the tools of its own cannot be taken away; they see its empty home and the network",
            "the system prompt is put into the first message",
            "neither cost nor turns are known, so they cannot be limited; its time can",
            "while an approval is waited for, it stays in memory",
            "images and PDFs are refused",
        ),
        providers=("cursor",),
    ),
)

RUNTIMES: Mapping[str, RuntimeInfo] = {row.name: row for row in _RUNTIMES}
