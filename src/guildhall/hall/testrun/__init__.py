"""`guild test`: repeats a recorded run on copies of the project and the home, and compares it with its script.

Does not change the project or the home, except for the test file itself with `--update`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.hall.testrun.files import tests_in as tests_in
    from guildhall.hall.testrun.runner import run_test as run_test

__getattr__, __dir__ = lazy_exports(__name__, __file__)
