"""Memory across runs: prompt block, scopes, limits, and compaction in the background."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import journal, kinds, put_worker, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import CommandResult, Guild

SCOPES = ("global", "project", "worker")
PRICE = {"input": 3.0, "output": 15.0}
DONE = {"say": "done"}
LIMIT_TOKENS = 400  # 1,600 characters; compaction is due beyond 3,200


def memory_write(scope: str, key: str, content: str) -> dict[str, Any]:
    """Return a step of a model script that calls memory_write."""
    return {"call": "memory_write", "with": {"scope": scope, "key": key, "content": content}}


def script_model(
    project: Path,
    *steps: dict[str, Any],
    compactor: list[dict[str, Any]] | None = None,
    price: dict[str, float] | None = PRICE,
    limit_tokens: int = LIMIT_TOKENS,
) -> None:
    """Script the model of all workers of the project, and of the compactor."""
    workers = {"*": [list(steps)], **({"memory-compactor": [compactor]} if compactor else {})}
    script = {"workers": workers, "repeat": True, **({"price": price} if price else {})}
    (project / "answers.yaml").write_text(json.dumps(script))
    settings = {"model": "script:answers.yaml", "memory": {"limit_tokens": limit_tokens}}
    (project / "guildhall.yaml").write_text(json.dumps(settings))


def script_overflow(project: Path, *steps: dict[str, Any], **options: Any) -> None:
    """Create a worker whose run writes 3,300 characters, which makes compaction due."""
    create_worker(project)
    writes = [memory_write("worker", f"note-{number}", f"{number}" * 1100) for number in range(3)]
    script_model(project, *writes, *steps, DONE, **options)


def create_worker(project: Path, name: str = "scribe", **fields: Any) -> None:
    put_worker(project, name, **{"sandboxes": None, "tool_rules": None, **fields})


def run_worker(guild: Guild, worker: str = "scribe", cwd: Path | None = None) -> CommandResult:
    ran = guild("run", worker, "go", "--output", "json", cwd=cwd)
    assert ran.code == 0, ran
    return ran


def read_assembled(guild: Guild, run: str) -> dict[str, Any]:
    """Return the first journal entry of a run: its prompt, tools and bounds."""
    return journal(guild, run)[0]["data"]


def read_memory_block(guild: Guild, worker: str = "scribe", cwd: Path | None = None) -> str:
    """Run the worker and return the memory block of its prompt."""
    return read_assembled(guild, run_worker(guild, worker, cwd).json["run"])["memory"]


def read_tool_results(guild: Guild, run: str) -> list[str]:
    ended = [entry for entry in journal(guild, run) if entry["kind"] == "tool_ended"]
    return ["".join(part["text"] for part in entry["data"]["result"]["content"]) for entry in ended]


def list_keys(guild: Guild, worker: str = "scribe") -> set[str]:
    listing = guild("memory", "ls", "--worker", worker, "--json").json
    return {entry["key"] for entry in listing["entries"]}


def list_compactor_runs(guild: Guild) -> list[dict[str, Any]]:
    listing = guild("ls", "--all", "--json").json
    return [run for run in (*listing["working"], *listing["done"]) if run["worker"] == "memory-compactor"]


# From one run to the next


@pytest.mark.req("WKR-15", "WKR-22", "WD-27")
def test_next_run_has_the_memory_at_the_end_of_its_prompt(guild: Guild, project: Path) -> None:
    create_worker(project, instructions="Be brief.")
    script_model(project, memory_write("worker", "build", "make, then make test"), DONE)
    first = read_assembled(guild, run_worker(guild).json["run"])
    assert (first["memory"], first["system_prompt"]) == ("", "Be brief.")
    second = read_assembled(guild, run_worker(guild).json["run"])
    assert second["system_prompt"] == f"Be brief.\n\n{second['memory']}"
    assert second["memory"].startswith("<memory>\n")
    assert second["memory"].endswith("\n| make, then make test\n</memory>")
    assert "worker/build, written 20" in second["memory"]


@pytest.mark.req("SYS-19")
def test_memory_is_plain_files_in_three_scopes(guild: Guild, project: Path, home: Home) -> None:
    create_worker(project)
    script_model(project, *(memory_write(scope, "fact", f"of the {scope}") for scope in SCOPES), DONE)
    run_worker(guild)
    files = {str(path.relative_to(home.path / "memory")): path for path in (home.path / "memory").rglob("*.md")}
    assert sorted(name.partition("/")[0] for name in files) == ["global", "projects", "workers"]
    assert files["global/fact.md"].read_text() == "of the global"
    files["global/fact.md"].write_text("edited by hand")
    block = read_memory_block(guild)
    assert "| edited by hand" in block
    assert "| of the project" in block
    assert "| of the worker" in block


@pytest.mark.req("SYS-20")
def test_worker_memory_is_private_and_the_other_scopes_are_shared(guild: Guild, project: Path, tmp_path: Path) -> None:
    other_project = tmp_path / "elsewhere"
    other_project.mkdir()
    for folder in (project, other_project):
        create_worker(folder)
        script_model(folder, DONE)
    create_worker(project, "other")
    script_model(project, *(memory_write(scope, "fact", f"of the {scope}") for scope in SCOPES), DONE)
    run_worker(guild)
    script_model(project, {"call": "memory_read", "with": {"scope": "worker", "key": "fact"}}, DONE)
    assert read_tool_results(guild, run_worker(guild).json["run"]) == ["of the worker"]
    other_run = run_worker(guild, "other").json["run"]
    assert "unknown memory entry 'worker/fact'" in read_tool_results(guild, other_run)[0]
    block = read_assembled(guild, other_run)["memory"]
    assert "| of the global" in block
    assert "| of the project" in block
    assert "| of the worker" not in block
    namesake = read_memory_block(guild, cwd=other_project)
    assert "| of the global" in namesake
    assert "| of the project" not in namesake
    assert "| of the worker" not in namesake


def test_worker_without_base_toolbox_has_no_memory(guild: Guild, project: Path) -> None:
    create_worker(project, base=False)
    script_model(project, DONE)
    assert guild("memory", "write", "fact", "x").code == 0
    assembled = read_assembled(guild, run_worker(guild).json["run"])
    assert (assembled["memory"], assembled["tools"]) == ("", [])


@pytest.mark.parametrize("name", ["memory.read", "memory_read"])
@pytest.mark.parametrize("rule", [{"allowed": False}, {"approval_required": True}])
def test_worker_that_may_not_read_freely_has_no_block(
    guild: Guild, project: Path, name: str, rule: dict[str, bool]
) -> None:
    create_worker(project, tool_rules={name: rule})
    script_model(project, DONE)
    assert guild("memory", "write", "fact", "x").code == 0
    assert read_memory_block(guild) == ""


@pytest.mark.req("WD-29")
@pytest.mark.parametrize(
    "key",
    ["../up", "/etc/passwd", "a/b", "", ".hidden", "a\0b", "a" * 65, "x.md", "compacted", "-f", "a\nb", "..", "é"],
)
def test_hostile_keys_are_rejected(guild: Guild, project: Path, home: Home, key: str) -> None:
    create_worker(project)
    script_model(project, memory_write("worker", key, "x"), DONE)
    (result,) = read_tool_results(guild, run_worker(guild).json["run"])
    assert "key" in result
    assert not list(home.path.rglob("*.md"))


@pytest.mark.req("WD-29")
def test_second_write_replaces_the_entry(guild: Guild, project: Path) -> None:
    create_worker(project)
    script_model(project, memory_write("worker", "fact", "one"), memory_write("worker", "fact", "two"), DONE)
    run_worker(guild)
    assert guild("memory", "show", "fact", "--worker", "scribe").out == "two\n"
    assert list_keys(guild) == {"fact"}


@pytest.mark.req("WKR-23", "WD-28")
def test_newest_entries_are_included_and_omitted_ones_named(guild: Guild, project: Path) -> None:
    create_worker(project)
    script_model(project, DONE)
    for number in range(4):
        assert guild("memory", "write", f"n{number}", f"{number}" * 300).code == 0
    block = read_memory_block(guild)
    assert len(block) <= LIMIT_TOKENS * 4
    assert block.index("| " + "3" * 300) < block.index("| " + "2" * 300)
    assert "| 1" not in block
    assert "| 0" not in block
    assert f"2 more entries do not fit here (limit: {LIMIT_TOKENS} tokens): project/n1, project/n0." in block
    script_model(project, DONE, limit_tokens=8000)
    assert "| " + "0" * 300 in read_memory_block(guild)


# Compaction


@pytest.mark.req("WKR-23", "WD-26", "PLAN-9")
def test_compaction_is_a_run_of_its_own(guild: Guild, project: Path, home: Home) -> None:
    script_overflow(project, compactor=[{"say": "zeros, ones and twos"}])
    ran = run_worker(guild)
    (compactor,) = list_compactor_runs(guild)
    assert f"worker memory compacted: 3 entries, 3,300 to 20 characters (originals: {home.path}" in ran.err
    assert "worker memory compacted" in guild("show", compactor["run"]).out
    assert compactor["status"] == "completed"
    assert compactor["model"] == "script:answers.yaml", "the model of the run that caused it"
    assembled = read_assembled(guild, compactor["run"])
    assert (assembled["tools"], assembled["memory"]) == ([], "")
    assert (assembled["bounds"]["max_turns"], assembled["bounds"]["max_budget_usd"]) == (1, 0.05)
    assert assembled["first_message"].startswith("Condense the following notes, oldest first, into at most ")
    assert "| " + "2" * 1100 in assembled["first_message"]
    assert compactor["usage"]["turns"] == 1
    costs = {line["worker"]: line["cost_usd"] for line in guild("cost", "--json").json["lines"]}
    assert 0 < costs["memory-compactor"] < 0.05
    assert list_keys(guild) == {"compacted"}
    archived = sorted(path.name for path in home.path.rglob("archive/*/*.md"))
    assert archived == ["note-0.md", "note-1.md", "note-2.md"]
    script_model(project, DONE)
    assert read_memory_block(guild).endswith("| zeros, ones and twos\n</memory>")
    assert guild("replay", compactor["run"]).code == 0


@pytest.mark.req("PLAN-9")
def test_worker_does_not_wait_for_compaction(guild: Guild, project: Path) -> None:
    script_overflow(
        project,
        memory_write("worker", "meanwhile", "written during the compaction"),
        compactor=[{"say": "condensed", "sleep": 1.0}],
    )
    ran = run_worker(guild)
    (compactor,) = list_compactor_runs(guild)
    run = guild("show", ran.json["run"], "--json").json
    assert run["ended_at"] < compactor["ended_at"]
    assert "worker memory compacted: 3 entries" in ran.err, "reported although the run had ended"
    assert list_keys(guild) == {"compacted", "meanwhile"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compactor": [{"fail": 400}]}, "scripted failure: HTTP 400"),
        ({"compactor": [{"say": "x" * 5_000}]}, "the model's answer is not shorter"),
        ({"compactor": [{"say": "x"}], "price": None}, "is unknown, so the budget of 0.05 USD cannot be enforced"),
        ({"compactor": [{"say": "x"}], "price": {"input": 300.0, "output": 1500.0}}, "every entry is longer"),
        ({"compactor": [{"say": "x"}], "price": {"input": 9000.0, "output": 9000.0}}, "pays for 0 bytes"),
    ],
)
def test_failed_compaction_is_reported_once_and_changes_nothing(
    guild: Guild, project: Path, options: dict[str, Any], reason: str
) -> None:
    script_overflow(project, memory_write("worker", "note-3", "3" * 100), **options)
    budget = [] if options.get("price", PRICE) is None else ["--budget", "500"]
    ran = guild("run", "scribe", "go", "--output", "stream-json", *budget)
    events = [json.loads(line) for line in ran.out.splitlines() if "memory_condensed" in line]
    reports = " ".join(event["text"] for event in events) + ran.err
    assert "worker memory not compacted: " in reports
    assert reason in reports
    assert reports.count("not compacted") == 1, "although the run writes again"
    assert list_keys(guild) == {"note-0", "note-1", "note-2", "note-3"}


def test_expensive_model_compacts_as_much_as_the_budget_pays_for(guild: Guild, project: Path) -> None:
    script_overflow(project, compactor=[{"say": "condensed"}], price={"input": 18.0, "output": 18.0})
    assert "worker memory compacted: 2 entries, 2,200 to 9 characters" in run_worker(guild).err
    assert list_compactor_runs(guild)[0]["cost_usd"] < 0.05


def test_free_model_compacts_everything(guild: Guild, project: Path) -> None:
    script_overflow(project, compactor=[{"say": "condensed"}], price={"input": 0.0, "output": 0.0})
    assert "worker memory compacted: 3 entries" in run_worker(guild).err


def test_recorded_model_cannot_compact(guild: Guild, project: Path) -> None:
    script_overflow(project, limit_tokens=8000)
    run = run_worker(guild).json["run"]
    script_model(project, DONE)
    ran = guild("run", "scribe", "go", "--override-model", f"replay:{run}", "--output", "json")
    assert ran.code == 0, ran
    assert "worker memory not compacted: the model of the run is a recording" in ran.err
    assert list_compactor_runs(guild) == []


def test_killed_compaction_changes_nothing_and_is_not_resumed(guild: Guild, project: Path, home: Home) -> None:
    script_overflow(project, compactor=[{"say": "condensed", "sleep": 60}])
    process = guild.start("run", "scribe", "go", "--output", "json")
    wait_until(lambda: list_compactor_runs(guild))
    process.kill()
    process.wait(5)
    waiting = guild("ls", "--all", "--json").json["needs_you"]["runs"]
    assert [run["worker"] for run in waiting] in ([], ["scribe"])
    assert [run["status"] for run in list_compactor_runs(guild)] == ["cancelled"]
    assert not list(home.path.rglob("archive"))


def test_terminated_command_cancels_the_compaction(guild: Guild, project: Path, home: Home) -> None:
    script_overflow(project, compactor=[{"say": "condensed", "sleep": 60}])
    process = guild.start("run", "scribe", "go", "--output", "json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["status"] == "completed"
    wait_until(lambda: list_compactor_runs(guild))
    process.terminate()
    assert process.wait(30) == 130
    assert [run["status"] for run in list_compactor_runs(guild)] == ["cancelled"]
    assert not list(home.path.rglob("archive"))


# Replay and resume


def test_replay_uses_the_recorded_memory(guild: Guild, project: Path) -> None:
    create_worker(project)
    script_model(project, memory_write("worker", "fact", "one"), DONE)
    run_worker(guild)
    run = run_worker(guild).json["run"]
    assert guild("memory", "write", "fact", "changed", "--worker", "scribe").code == 0
    assert guild("memory", "write", "more", "another", "--scope", "global").code == 0
    assert guild("replay", run).code == 0
    assert guild("memory", "show", "fact", "--worker", "scribe").out == "changed\n", "a replay writes nothing"
    create_worker(project, instructions="Be different.")
    replay = guild("replay", run)
    assert replay.code == 1
    assert "+ Be different." in replay.out


def test_resumed_run_keeps_its_prompt_and_writes_once(guild: Guild, project: Path, home: Home) -> None:
    create_worker(project)
    script_model(project, memory_write("worker", "fact", "one"), {"say": "slow", "sleep": 60})
    process = guild.start("run", "scribe", "go", "--output", "stream-json")
    assert process.stdout is not None
    run = json.loads(process.stdout.readline())["run"]
    wait_until(lambda: kinds(journal(guild, run)).count("model_asked") == 2)
    process.kill()
    process.wait(5)
    assert guild("memory", "write", "later", "after the start", "--scope", "global").code == 0
    script_model(project, memory_write("worker", "fact", "one"), DONE)
    resumed = guild("resume", run, "--output", "json")
    assert resumed.code == 0, resumed
    assert read_assembled(guild, run)["memory"] == ""
    changes = guild("memory", "log", "fact", "--worker", "scribe", "--json").json["records"]
    assert [(change["action"], change["worker"], change["run"]) for change in changes] == [("write", "scribe", run)]
    with closing(sqlite3.connect(home.database)) as database:
        assert database.execute("SELECT count(*) FROM memory_log WHERE key = 'fact'").fetchone() == (1,)
