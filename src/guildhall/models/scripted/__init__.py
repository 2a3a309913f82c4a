"""Scripted model: answers from a YAML file in place of a provider, and the `test:` section of such a file.

Does not run tests: `hall.testrun` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.models.scripted.source import Script as Script
    from guildhall.models.scripted.source import ScriptSource as ScriptSource
    from guildhall.models.scripted.source import load_script as load_script
    from guildhall.models.scripted.test_section import Case as Case

__getattr__, __dir__ = lazy_exports(__name__, __file__)
