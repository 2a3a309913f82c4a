"""Forked runtime: executes each run with the pydantic runtime in a process that a warm fork server forks.

`client` and `runtime` work in the hall, `server` and `child` in the other processes. `protocol` defines their messages.
Does not execute vendors' programs: `runtimes.programs` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.runtimes.forked.fork_server_client import ForkServer as ForkServer
    from guildhall.runtimes.forked.runtime import ForkedRuntime as ForkedRuntime

__getattr__, __dir__ = lazy_exports(__name__, __file__)
