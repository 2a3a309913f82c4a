"""Runtime catalog: lists each runtime with its program, versions, durability and gaps.

Durability is the part of a run that the doors repeat from the journal after a crash or in a replay:

    exact          every model response and every tool result
    tool-exact     every tool result; the model is called again
    restart-only   nothing; the run starts over with new tool calls

Does not look for installed programs: `discovery` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Durability = Literal["exact", "tool-exact", "restart-only"]


@dataclass(frozen=True, kw_only=True)
class RuntimeInfo:
    """The properties of a runtime."""

    name: str  # the value of `runtime:` in a worker file
    title: str
    program: str | None = None  # None if the runtime needs no program
    min_version: str | None = None
    tested_version: str | None = None
    install: str = ""  # how to install the program
    durability: Durability = "exact"
    gaps: tuple[str, ...] = ()  # differences from the pydantic runtime
    exempt_checks: tuple[str, ...] = ()  # conformance checks that do not apply because of the gaps
    needs_network: bool = False  # other programs reach only the doors
    providers: tuple[str, ...] = ()  # of its models, in addition to `script:` and `replay:`; empty means all
    settings: tuple[str, ...] | None = None  # the model settings that it can apply; None means all

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
    RuntimeInfo(name="pydantic", title="pydantic-ai", install="part of Guildhall"),
    RuntimeInfo(
        name="claude",
        title="Claude Code",
        program="claude",
        min_version="2.1.200",
        tested_version="2.1.325",
        install="pip install 'guildhall[claude]', or the `claude` command of Anthropic",
        gaps=("with a Claude login, two lines that the provider requires precede the system prompt",),
        providers=("anthropic",),
        settings=("max_tokens", "thinking"),
    ),
    RuntimeInfo(
        name="codex",
        title="Codex CLI",
        program="codex",
        min_version="0.160.0",
        tested_version="0.166.0",
        install="npm install -g @openai/codex",
        gaps=("Codex scales images and adds a line before and after each; PDFs are rejected",),
        providers=("openai",),
        settings=("max_tokens", "thinking"),
    ),
    RuntimeInfo(
        name="opencode",
        title="OpenCode",
        program="opencode",
        min_version="1.18.3",
        tested_version="1.18.33",
        install="npm install -g opencode-ai",
        gaps=("images and PDFs are rejected",),
        exempt_checks=("an_attached_image_reaches_the_model",),
        providers=("anthropic", "openai"),
        settings=("temperature", "top_p", "max_tokens"),
    ),
    RuntimeInfo(
        name="cursor",
        title="Cursor Agent",
        program="cursor-agent",
        install="the `cursor-agent` command of Cursor",
        durability="restart-only",
        needs_network=True,
        gaps=(
            "Cursor calls its models itself, over the network and with your key; responses are not recorded",
            "a crash fails the run; the run can be resumed only if it has changed nothing",
            "its own tools cannot be removed; they have access to an empty home and the network",
            "the system prompt is part of the first message",
            "cost and turns are unknown and cannot be limited; time can",
            "it stays in memory while an approval is open",
            "images and PDFs are rejected",
        ),
        providers=("cursor",),
        settings=(),
    ),
)

RUNTIMES: Mapping[str, RuntimeInfo] = {row.name: row for row in _RUNTIMES}
