"""Workers: worker files and packages, with their format, loading, lookup, life cycle and trust.

Above: memory, runs, jobs, members, projects, workflow, hall and cli.
Below: tools, sandbox, policy, store and core.
A worker is a definition, not a process and not a run. Package `runs` assembles and executes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.workers.code_trust import Code as Code
    from guildhall.workers.code_trust import Trust as Trust
    from guildhall.workers.definition import Definition as Definition
    from guildhall.workers.generated_workers import draft as draft
    from guildhall.workers.home_packages import Packages as Packages
    from guildhall.workers.lifecycle import check_usable as check_usable
    from guildhall.workers.loader import load as load
    from guildhall.workers.model import Lock as Lock
    from guildhall.workers.model import Worker as Worker
    from guildhall.workers.package import Package as Package
    from guildhall.workers.package import read_package as read_package
    from guildhall.workers.registry import Registry as Registry
    from guildhall.workers.registry import choose_model as choose_model

__getattr__, __dir__ = lazy_exports(__name__, __file__)
