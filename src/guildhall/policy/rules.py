"""Rules: the capabilities of tools, the verdict of a worker's rules on a tool call, and the risk of exfiltration.

A verdict is allow, refuse or ask. Every rule that names the tool or a capability of the call counts, and a refusal
wins. Does not ask for approval (see `tools.gate`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# What a tool can do to the world. The boundary is drawn by these, never by tool names alone.
CAPABILITIES: Mapping[str, str] = {
    "fs.read": "read files in the run's folders",
    "fs.write": "change files in the run's folders",
    "proc.exec": "run programs",
    "net": "talk to other machines",
    "worker.call": "run another worker",
    "worker.create": "write a new worker",
    "memory.read": "read memory entries",
    "memory.write": "write memory entries",
    "artifact.read": "read the artifacts of the project",
    "artifact.write": "write artifacts of the project",
    "commission": "hand out work in the project, and call it back",
    "pull_request": "put work that is done up for review",
    "meeting": "ask for a meeting with the person",
    "room.read": "read what the team shares",
    "room.write": "tell the team something, change what it shares",
}

# The rule names of earlier systems, and what they mean here.
ALIASES: Mapping[str, str] = {
    "sandbox.read": "fs.read",
    "sandbox.write": "fs.write",
    "network": "net",
    "shell": "proc.exec",
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What the worker's file says about a capability or a tool."""

    name: str  # a capability or a tool's name; aliases are resolved when the file is read
    allowed: bool = True
    approval_required: bool = False
    timeout: float | None = None  # seconds an approval may take; None: as long as it takes


@dataclass(frozen=True, kw_only=True)
class Action:
    """One call as policy sees it."""

    tool: str
    capabilities: frozenset[str]
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


Decision = Literal["allow", "refuse", "ask"]
Mode = Literal["ask", "approve_all", "strict"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What policy says to an action, and why."""

    decision: Decision
    reason: str
    rule: str | None = None
    timeout: float | None = None


def judge(action: Action, rules: Iterable[Rule], mode: Mode = "ask") -> Verdict:
    """The verdict on an action of a declared tool. Every rule that names the tool or one of its capabilities counts."""
    matching = [rule for rule in rules if rule.name == action.tool or rule.name in action.capabilities]
    for rule in matching:
        if not rule.allowed:
            return Verdict(decision="refuse", reason=f"the worker's rule {rule.name!r} forbids it", rule=rule.name)
    demanding = [rule for rule in matching if rule.approval_required]
    if not demanding:
        return Verdict(decision="allow", reason="declared")
    rule = demanding[0]
    if mode == "approve_all":
        return Verdict(decision="allow", reason="approved by --approve-all", rule=rule.name)
    if mode == "strict":
        reason = f"the rule {rule.name!r} demands approval and --strict refuses what would be asked"
        return Verdict(decision="refuse", reason=reason, rule=rule.name)
    timeouts = [rule.timeout for rule in demanding if rule.timeout is not None]
    return Verdict(
        decision="ask",
        reason=f"the rule {rule.name!r} demands approval",
        rule=rule.name,
        timeout=min(timeouts, default=None),
    )


# Exfiltration risk. A worker may do any two of these: read private files, take in text from outside, act outward.
# With all three, a text from outside can make it send private files out, so the outward tools need approval unless the
# worker's file accepts the risk. Workers that call each other count together: a worker can pass on what it has read.
_PRIVATE = "fs.read"  # memory does not count: workers chose to share it
_OUTSIDE = "net"  # what reaches other machines takes in their text and can carry ours to them


@dataclass(frozen=True, kw_only=True)
class Risk:
    """The verdict on a set of tools."""

    private: bool  # private files are read, here or around
    outward: tuple[str, ...]  # the tools that take in text from outside and can act outward
    guarded: tuple[str, ...]  # those of them that need approval

    @property
    def together(self) -> bool:
        return self.private and bool(self.outward)

    @property
    def text(self) -> str:
        """The verdict as people read it."""
        if not self.outward:
            return "none (no network access)"
        if not self.private:
            return "none (reads no private files)"
        accepted = [name for name in self.outward if name not in self.guarded]
        parts = ["reads private files and untrusted text, and can reach the network"]
        parts += [f"asks before each call of {', '.join(self.guarded)}"] if self.guarded else []
        parts += [f"accepted for {', '.join(accepted)} (accepts_risk: true)"] if accepted else []
        return "; ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        return {
            "together": self.together,
            "private": self.private,
            "outward": list(self.outward),
            "guarded": list(self.guarded),
            "text": self.text,
        }


def judge_risk(tools: Mapping[str, frozenset[str]], *, accepted: bool, around: frozenset[str] = frozenset()) -> Risk:
    """The verdict on the tools of a worker, with what is around it."""
    private = _PRIVATE in around or any(_PRIVATE in capabilities for capabilities in tools.values())
    outward = tuple(name for name, capabilities in tools.items() if _OUTSIDE in capabilities)
    return Risk(private=private, outward=outward, guarded=outward if private and not accepted else ())


def rules_against_risk(
    tools: Mapping[str, frozenset[str]], *, accepted: bool, around: frozenset[str] = frozenset()
) -> tuple[Rule, ...]:
    """The rules that guard the outward tools of a worker, given all its tools with their capabilities.

    `around` are the capabilities of the runs above it and of the workers that it may call.
    """
    risk = judge_risk(tools, accepted=accepted, around=around)
    return tuple(Rule(name=name, approval_required=True) for name in risk.guarded)
