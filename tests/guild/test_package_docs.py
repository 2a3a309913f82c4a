"""docs/packages.md: its example works, and it names every field and package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.runs.assembly.activation import Activation
from guildhall.workers.home_packages import Packages, templates
from guildhall.workers.package import Table
from tests.guild.packages import write_package

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.conftest import Guild

TEXT = (Path(__file__).parents[2] / "docs" / "packages.md").read_text()


def test_the_example_is_a_package_that_runs(guild: Guild, project: Path, home: Home) -> None:
    (table,) = re.findall(r"```toml\n(.*?)```", TEXT, re.S)
    modules = re.findall(r"```python\n# (\S+)\n(.*?)```", TEXT, re.S)
    assert [path for path, _ in modules] == ["post/tools.py", "post/begin.py"]
    files = {"posture.md": "You write letters.", "post/prices.py": "def price(words): return 85\n", **dict(modules)}
    write_package(home, "mail", table, files)
    assert Packages(home).find("mail").types == ("worker", "toolbox")
    script = "price: {input: 1.0, output: 1.0}\nworkers: {mail: [[{call: postage, with: {words: 5}}, {say: ok}]]}"
    (project / "answers.yaml").write_text(script)
    ran = guild("run", "mail", "Write", "--override-model", "script:answers.yaml")
    assert ran.out == "ok\n", ran.err


def test_every_field_and_every_template_is_documented() -> None:
    for name in (*(set(Table.model_fields) - set(Table.__mro__[1].model_fields)), *templates()):
        assert f"`{name}`" in TEXT, name
    for name in Activation.__dataclass_fields__:
        assert f"| `{name}` |" in TEXT, name
