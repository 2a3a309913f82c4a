"""Backup of a home: the commands of docs/hall.md, executed as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.paths import Home
from tests.conftest import ROOT
from tests.runs.places import DONE, put_script, put_worker

if TYPE_CHECKING:
    from tests.conftest import GuildWithHall


def run_block(guild: GuildWithHall, block: str) -> None:
    env = guild.environment()
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-e", "-c", block], env=env, check=True, capture_output=True, timeout=60)


def test_a_restored_backup_has_its_runs_and_no_later_runs(guild_hall: GuildWithHall, home: Home, project: Path) -> None:
    section = (ROOT / "docs/hall.md").read_text().partition("## Back up and restore")[2].partition("\n## ")[0]
    back_up, restore = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    for block in (back_up, restore):
        assert f"$HOME/{Home.locate({}).path.name}}}" in block, "the default home"
    put_worker(project, tool_rules=None)
    put_script(project, DONE)
    before = guild_hall("run", "scribe", "go", "--output", "json").json["run"]
    run_block(guild_hall, back_up)
    later = guild_hall("run", "scribe", "go", "--output", "json").json["run"]
    guild_hall.hall()
    run_block(guild_hall, restore)
    assert [run["run"] for run in guild_hall("ls", "--all", "--json").json["done"]] == [before]
    assert guild_hall("show", later).code == 3
    assert guild_hall("replay", before).code == 0
    assert guild_hall("run", "scribe", "go").out == "done\n"
    assert home.path.with_name(f"{home.path.name}.old").is_dir()
