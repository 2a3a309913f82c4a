"""The page about conformance: what it shows can be run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    first, second = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    compile(second, "second", "exec")
    program = first.replace("enumerate(OWN_CHECKS)", "enumerate(OWN_CHECKS[:2])")  # the others have tests of their own
    assert program != first
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench-0", "bench-1"]
