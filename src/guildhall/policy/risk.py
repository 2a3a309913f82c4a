"""The three together: reads private files, takes in untrusted text, can act outward.

Any two are fine. All three mean that a text from outside can make the worker carry private files out, so the third,
the outward act, needs approval unless the worker's file accepts the risk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.policy.model import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PRIVATE = "fs.read"  # memory is no private file: it is what workers chose to keep, and every worker has it
_OUTSIDE = "net"  # what reaches other machines takes in their text and can carry ours to them


def rules_against_risk(tools: Mapping[str, frozenset[str]], *, accepted: bool) -> tuple[Rule, ...]:
    """The rules that guard the outward tools of a worker, given all its tools with their capabilities."""
    if accepted or not any(_PRIVATE in capabilities for capabilities in tools.values()):
        return ()
    return tuple(Rule(name=name, approval_required=True) for name in outward(tools))


def outward(tools: Mapping[str, frozenset[str]]) -> Iterable[str]:
    """The tools that act outward."""
    return [name for name, capabilities in tools.items() if _OUTSIDE in capabilities]
