"""Rules: the capabilities of tools, the verdict of rules on a tool call, and the risk of exfiltration.

A verdict is allow, refuse or ask. All rules that name the tool or one of its capabilities apply. A refusal takes
precedence. Approval is requested in `tools.gate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# The effects of tools, with their descriptions. Permissions are defined by capability, never by tool name alone.
CAPABILITIES: Mapping[str, str] = {
    "fs.read": "read files in the run's folders",
    "fs.write": "change files in the run's folders",
    "proc.exec": "run programs",
    "net": "access the network",
    "worker.call": "run another worker",
    "worker.create": "write a new worker",
    "memory.read": "read memory entries",
    "memory.write": "write memory entries",
    "artifact.read": "read the artifacts of the project",
    "artifact.write": "write artifacts of the project",
    "commission": "create and cancel commissions of the project",
    "pull_request": "open pull requests for finished work",
    "meeting": "request a meeting with the user",
    "room.read": "read messages and documents of the team",
    "room.write": "send messages to the team and change its documents",
}

# Names that other systems use for a capability.
ALIASES: Mapping[str, str] = {
    "sandbox.read": "fs.read",
    "sandbox.write": "fs.write",
    "network": "net",
    "shell": "proc.exec",
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of a worker file for a capability or a tool."""

    name: str  # a capability or a tool; aliases are resolved
    allowed: bool = True
    approval_required: bool = False
    timeout: float | None = None  # seconds to wait for an approval
    description: str | None = None  # reason for the rule, shown to the user
    origin: str | None = None  # the rule and its file, or the check that added it

    @property
    def reason(self) -> str:
        """Return why a call needs approval, for the user."""
        text = f"{self.origin or f'the rule {self.name!r}'} requires approval"
        return f"{text}: {self.description}" if self.description else text


@dataclass(frozen=True, kw_only=True)
class Action:
    """A tool call that rules apply to."""

    tool: str
    capabilities: frozenset[str]


Decision = Literal["allow", "refuse", "ask"]
Mode = Literal["ask", "approve_all", "strict"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The decision about an action and its reason."""

    decision: Decision
    reason: str
    rule: str | None = None
    timeout: float | None = None


def judge(action: Action, rules: Iterable[Rule], mode: Mode = "ask") -> Verdict:
    """Return the verdict on a call. All rules that name the tool or one of its capabilities apply."""
    matching = [rule for rule in rules if rule.name == action.tool or rule.name in action.capabilities]
    for rule in matching:
        if not rule.allowed:
            return Verdict(decision="refuse", reason=f"the worker's rule {rule.name!r} forbids it", rule=rule.name)
    required = [rule for rule in matching if rule.approval_required]
    if not required:
        return Verdict(decision="allow", reason="declared")
    rule = required[0]
    if mode == "approve_all":
        return Verdict(decision="allow", reason="approved by --approve-all", rule=rule.name)
    if mode == "strict":
        reason = f"the rule {rule.name!r} requires approval, which --strict denies"
        return Verdict(decision="refuse", reason=reason, rule=rule.name)
    timeouts = [rule.timeout for rule in required if rule.timeout is not None]
    reason = "; ".join(dict.fromkeys(rule.reason for rule in required))
    return Verdict(decision="ask", reason=reason, rule=rule.name, timeout=min(timeouts, default=None))


# Exfiltration risk. A worker that reads private files and untrusted text and reaches the network could be made to send
# the files out. Its network tools then need approval, unless the worker file accepts the risk. Workers that call each
# other count together, because a worker can pass on what it has read.
_PRIVATE = "fs.read"  # memory does not count, because workers share it on purpose
_OUTSIDE = "net"  # a network call can read untrusted text and can send files


@dataclass(frozen=True, kw_only=True)
class Risk:
    """The exfiltration risk of a set of tools."""

    reads_private: bool  # True if this worker or another one reads private files
    readers: tuple[str, ...] = ()  # tools of this worker that read private files
    outward: tuple[str, ...]  # tools with network access
    guarded: tuple[str, ...]  # tools with network access that need approval

    @property
    def is_present(self) -> bool:
        return self.reads_private and bool(self.outward)

    @property
    def text(self) -> str:
        if not self.outward:
            return "none (no network access)"
        if not self.reads_private:
            return "none (reads no private files)"
        accepted = [name for name in self.outward if name not in self.guarded]
        parts = ["reads private files and untrusted text, and can reach the network"]
        parts += [f"asks before each call of {', '.join(self.guarded)}"] if self.guarded else []
        parts += [f"accepted for {', '.join(accepted)} (accepts_risk: true)"] if accepted else []
        return "; ".join(parts)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rules that require approval for the guarded tools."""
        readers = self.readers or ("other workers of the run",)
        reads = f"the run can read private files ({_PRIVATE}: {', '.join(readers)})"
        return tuple(
            Rule(
                name=name,
                approval_required=True,
                origin="the exfiltration check",
                description=f"{reads}, and {name} ({_OUTSIDE}) can read untrusted text and send data",
            )
            for name in self.guarded
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "together": self.is_present,
            "private": self.reads_private,
            "outward": list(self.outward),
            "guarded": list(self.guarded),
            "text": self.text,
        }


def assess_risk(tools: Mapping[str, frozenset[str]], *, accepted: bool, others: frozenset[str] = frozenset()) -> Risk:
    """Return the exfiltration risk of tools. `others` has the capabilities of parent runs and of callable workers."""
    readers = tuple(name for name, capabilities in tools.items() if _PRIVATE in capabilities)
    private = _PRIVATE in others or bool(readers)
    outward = tuple(name for name, capabilities in tools.items() if _OUTSIDE in capabilities)
    guarded = outward if private and not accepted else ()
    return Risk(reads_private=private, readers=readers, outward=outward, guarded=guarded)
