"""The judgement: declared tools are allowed, rules narrow that, modes settle what would be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.policy.model import Action, Mode, Rule, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable


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
