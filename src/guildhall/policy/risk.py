"""Exfiltration risk: detects workers that read private files, take in untrusted text and can act outward.

Any two of the three capabilities are accepted. With all three, a text from outside can make the worker send private
files out. The outward tools then need approval, unless the worker's file accepts the risk. Workers that call each other
count together, because a worker can pass on the content that it has read.

Does not apply the rules that it returns (see `policy.rules`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.policy.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Mapping

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
            return "no: no other machine is reached"
        if not self.private:
            return "no: no private files are read"
        accepted = [name for name in self.outward if name not in self.guarded]
        parts = [f"you are asked before each call of {', '.join(self.guarded)}"] if self.guarded else []
        if accepted:
            parts.append(f"the file accepts the risk of {', '.join(accepted)} (accepts_risk: true)")
        return f"yes (private files, text from outside, a way out): {'; '.join(parts)}"

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
