"""Policy: decides by capabilities and rules whether a tool call is allowed, refused or needs approval.

Above: cli, hall, runs, workers and tools, whose gate asks for every call.
Below: nothing.
The functions are pure: they do not open files, ask the user or store state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.policy.rules import CAPABILITIES as CAPABILITIES
    from guildhall.policy.rules import Action as Action
    from guildhall.policy.rules import Mode as Mode
    from guildhall.policy.rules import Risk as Risk
    from guildhall.policy.rules import Rule as Rule
    from guildhall.policy.rules import Verdict as Verdict
    from guildhall.policy.rules import assess_risk as assess_risk
    from guildhall.policy.rules import judge as judge

__getattr__, __dir__ = lazy_exports(__name__, __file__)
