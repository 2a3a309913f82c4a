"""Memory in runs: what one run writes the next is shown, to whom, how much of it, and what becomes of too much."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import journal, kinds, put_worker, until

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild, Ran

PRICE = {"input": 3.0, "output": 15.0}
DONE = {"say": "done"}
LIMIT = 400  # tokens: 1,600 characters, and compaction beyond 3,200


def write(scope: str, key: str, content: str) -> dict[str, Any]:
    return {"call": "memory_write", "with": {"scope": scope, "key": key, "content": content}}


def script(
    project: Path,
    *answers: dict[str, Any],
    compactor: list[dict[str, Any]] | None = None,
    price: dict[str, float] | None = PRICE,
    limit: int = LIMIT,
) -> None:
    """The model of the project's workers, and of the one that condenses."""
    workers = {"*": [list(answers)], **({"memory-compactor": [compactor]} if compactor else {})}
    told = {"workers": workers, "repeat": True, **({"price": price} if price else {})}
    (project / "answers.yaml").write_text(json.dumps(told))
    settings = {"model": "script:answers.yaml", "memory": {"limit_tokens": limit}}
    (project / "guildhall.yaml").write_text(json.dumps(settings))


def plain(project: Path, name: str = "scribe", **fields: Any) -> None:
    put_worker(project, name, **{"sandboxes": None, "tool_rules": None, **fields})


def ran(guild: Guild, worker: str = "scribe", cwd: Path | None = None) -> Ran:
    done = guild("run", worker, "go", "--output", "json", cwd=cwd)
    assert done.code == 0, done
    return done


def first(guild: Guild, run: str) -> dict[str, Any]:
    """What the run was made of."""
    return journal(guild, run)[0]["data"]


def shown(guild: Guild, worker: str = "scribe", cwd: Path | None = None) -> str:
    """The memory that a new run of the worker is shown."""
    return first(guild, ran(guild, worker, cwd).json["run"])["memory"]


def results(guild: Guild, run: str) -> list[str]:
    """What the tools of a run said."""
    ends = [entry for entry in journal(guild, run) if entry["kind"] == "tool_ended"]
    return ["".join(part["text"] for part in entry["data"]["result"]["content"]) for entry in ends]


def compactions(guild: Guild) -> list[dict[str, Any]]:
    return [run for run in guild("ls", "--all", "--json").json["done"] if run["worker"] == "memory-compactor"]


# From one run to the next


@pytest.mark.req("WKR-15", "WKR-22", "WD-27")
def test_the_next_run_is_shown_what_the_first_wrote(guild: Guild, project: Path) -> None:
    plain(project, instructions="Be brief.")
    script(project, write("worker", "build", "make, then make test"), DONE)
    earlier = ran(guild).json["run"]
    assert first(guild, earlier)["memory"] == ""
    assert first(guild, earlier)["system_prompt"] == "Be brief."
    later = first(guild, ran(guild).json["run"])
    assert later["system_prompt"] == f"Be brief.\n\n{later['memory']}", "the memory is the last block"
    assert later["memory"].startswith("<memory>\n")
    assert later["memory"].endswith("\n| make, then make test\n</memory>")
    assert "worker/build, written 20" in later["memory"]


@pytest.mark.req("SYS-19")
def test_memory_is_plain_files_in_three_scopes(guild: Guild, project: Path, home: Home) -> None:
    plain(project)
    script(project, *(write(scope, "fact", f"of the {scope}") for scope in ("global", "project", "worker")), DONE)
    ran(guild)
    files = {str(path.relative_to(home.path / "memory")): path for path in (home.path / "memory").rglob("*.md")}
    assert sorted(name.partition("/")[0] for name in files) == ["global", "projects", "workers"]
    assert files["global/fact.md"].read_text() == "of the global"
    files["global/fact.md"].write_text("edited by hand")
    block = shown(guild)
    assert "| edited by hand" in block
    assert "| of the project" in block
    assert "| of the worker" in block


@pytest.mark.req("SYS-20")
def test_a_worker_s_memory_is_its_own_and_the_others_are_shared(guild: Guild, project: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder in (project, elsewhere):
        plain(folder)
        script(folder, DONE)
    plain(project, "other")
    script(project, *(write(scope, "fact", f"of the {scope}") for scope in ("global", "project", "worker")), DONE)
    ran(guild)
    script(project, {"call": "memory_read", "with": {"scope": "worker", "key": "fact"}}, DONE)
    assert results(guild, ran(guild).json["run"]) == ["of the worker"]
    other = ran(guild, "other").json["run"]
    assert "there is no entry 'fact'" in results(guild, other)[0]
    block = first(guild, other)["memory"]
    assert "| of the global" in block
    assert "| of the project" in block
    assert "| of the worker" not in block
    of_same_name = shown(guild, cwd=elsewhere)
    assert "| of the global" in of_same_name
    assert "project" not in of_same_name
    assert "| of the worker" not in of_same_name


def test_without_the_base_toolbox_there_is_no_memory(guild: Guild, project: Path) -> None:
    plain(project, base=False)
    script(project, DONE)
    assert guild("memory", "write", "fact", "x").code == 0
    made = first(guild, ran(guild).json["run"])
    assert (made["memory"], made["tools"]) == ("", [])


@pytest.mark.parametrize("name", ["memory.read", "memory_read"])
@pytest.mark.parametrize("rule", [{"allowed": False}, {"approval_required": True}])
def test_a_worker_that_may_not_simply_read_is_shown_nothing(
    guild: Guild, project: Path, name: str, rule: dict[str, bool]
) -> None:
    plain(project, tool_rules={name: rule})
    script(project, DONE)
    assert guild("memory", "write", "fact", "x").code == 0
    assert shown(guild) == ""


@pytest.mark.req("WD-29")
@pytest.mark.parametrize(
    "key",
    ["../up", "/etc/passwd", "a/b", "", ".hidden", "a\0b", "a" * 65, "x.md", "compacted", "-f", "a\nb", "..", "é"],
)
def test_hostile_keys_are_refused_and_the_worker_is_told(guild: Guild, project: Path, home: Home, key: str) -> None:
    plain(project)
    script(project, write("worker", key, "x"), DONE)
    said = results(guild, ran(guild).json["run"])
    assert len(said) == 1
    assert "key" in said[0]
    assert not list(home.path.rglob("*.md"))


@pytest.mark.req("WD-29")
def test_writing_a_key_again_replaces_it(guild: Guild, project: Path) -> None:
    plain(project)
    script(project, write("worker", "fact", "one"), write("worker", "fact", "two"), DONE)
    ran(guild)
    assert guild("memory", "show", "fact", "--worker", "scribe").out == "two\n"
    assert [e["key"] for e in guild("memory", "ls", "--worker", "scribe", "--json").json["entries"]] == ["fact"]


# How much of it


@pytest.mark.req("WKR-23", "WD-28")
def test_the_newest_are_shown_whole_and_what_is_left_out_is_named(guild: Guild, project: Path) -> None:
    plain(project)
    script(project, DONE)
    for number in range(4):
        assert guild("memory", "write", f"n{number}", f"{number}" * 300).code == 0
    block = shown(guild)
    assert len(block) <= LIMIT * 4
    assert block.index("| " + "3" * 300) < block.index("| " + "2" * 300)
    assert "| 1" not in block
    assert "| 0" not in block
    assert f"2 entries are left out (the limit is {LIMIT} tokens): project/n1, project/n0." in block
    script(project, DONE, limit=8000)
    assert "| " + "0" * 300 in shown(guild)


# Compaction


def too_much(project: Path, *more: dict[str, Any], **options: Any) -> None:
    plain(project)
    calls = [write("worker", f"note-{number}", f"{number}" * 1100) for number in range(3)]
    script(project, *calls, *more, DONE, **options)


@pytest.mark.req("WKR-23", "WD-26", "PLAN-9")
def test_a_scope_past_twice_the_limit_is_condensed_by_a_run_of_its_own(guild: Guild, project: Path, home: Home) -> None:
    too_much(project, compactor=[{"say": "zeros, ones and twos"}])
    done = ran(guild)
    (compaction,) = compactions(guild)
    assert f"the worker memory was condensed: 3 entries, 3,300 characters to 20; the originals are in {home.path}" in (
        done.err
    )
    assert "the worker memory was condensed" in guild("show", compaction["run"]).out
    assert compaction["status"] == "completed"
    assert compaction["model"] == "script:answers.yaml", "the model of the run that caused it"
    made = first(guild, compaction["run"])
    assert (made["tools"], made["memory"]) == ([], "")
    assert (made["bounds"]["max_turns"], made["bounds"]["max_budget_usd"]) == (1, 0.05)
    assert made["first_message"].startswith("Condense these notes into at most ")
    assert "| " + "2" * 1100 in made["first_message"]
    assert compaction["usage"]["turns"] == 1
    costs = {line["worker"]: line["cost_usd"] for line in guild("cost", "--json").json["lines"]}
    assert 0 < costs["memory-compactor"] < 0.05
    entries = guild("memory", "ls", "--worker", "scribe", "--json").json["entries"]
    assert [entry["key"] for entry in entries] == ["compacted"]
    archived = sorted(path.name for path in home.path.rglob("archive/*/*.md"))
    assert archived == ["note-0.md", "note-1.md", "note-2.md"]
    script(project, DONE)
    assert shown(guild).endswith("| zeros, ones and twos\n</memory>")
    assert guild("replay", compaction["run"]).code == 0


@pytest.mark.req("PLAN-9")
def test_the_worker_does_not_wait_for_it(guild: Guild, project: Path) -> None:
    """The one that condenses is slow; the run has long ended when it has, and what was written meanwhile stays."""
    too_much(
        project,
        write("worker", "meanwhile", "written while it was condensed"),
        compactor=[{"say": "condensed", "sleep": 1.0}],
    )
    done = ran(guild)
    (compaction,) = compactions(guild)
    run = guild("show", done.json["run"], "--json").json
    assert run["ended_at"] < compaction["ended_at"]
    assert "the worker memory was condensed: 3 entries" in done.err, "told, although the run had ended"
    keys = {entry["key"] for entry in guild("memory", "ls", "--worker", "scribe", "--json").json["entries"]}
    assert keys == {"compacted", "meanwhile"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compactor": [{"fail": 400}]}, "the scripted provider failed with HTTP 400"),
        ({"compactor": [{"say": "x" * 5_000}]}, "the model's answer is not shorter"),
        ({"compactor": [{"say": "x"}], "price": None}, "has no known price"),
        ({"compactor": [{"say": "x"}], "price": {"input": 300.0, "output": 1500.0}}, "no entry is as short as that"),
        ({"compactor": [{"say": "x"}], "price": {"input": 9000.0, "output": 9000.0}}, "has room for 0 bytes"),
    ],
)
def test_whatever_fails_is_told_and_changes_nothing(
    guild: Guild, project: Path, options: dict[str, Any], said: str
) -> None:
    too_much(project, write("worker", "note-3", "3" * 100), **options)
    done = guild("run", "scribe", "go", "--output", "stream-json", "--budget", "500")
    if options.get("price", PRICE) is None:
        done = guild("run", "scribe", "go", "--output", "stream-json")
    told = [json.loads(line) for line in done.out.splitlines() if "memory_condensed" in line]
    words = " ".join(event["text"] for event in told) + done.err
    assert "the worker memory was not condensed: " in words
    assert said in words
    assert words.count("was not condensed") == 1, "once for a run, however much it writes"
    keys = {entry["key"] for entry in guild("memory", "ls", "--worker", "scribe", "--json").json["entries"]}
    assert keys == {"note-0", "note-1", "note-2", "note-3"}


def test_an_expensive_model_condenses_what_can_be_paid_for(guild: Guild, project: Path) -> None:
    too_much(project, compactor=[{"say": "condensed"}], price={"input": 18.0, "output": 18.0})
    done = ran(guild)
    assert "the worker memory was condensed: 2 entries, 2,200 characters to 9" in done.err
    assert compactions(guild)[0]["cost_usd"] < 0.05


def test_a_model_that_costs_nothing_condenses_as_much_as_is_asked(guild: Guild, project: Path) -> None:
    too_much(project, compactor=[{"say": "condensed"}], price={"input": 0.0, "output": 0.0})
    assert "the worker memory was condensed: 3 entries" in ran(guild).err


def test_a_recorded_model_condenses_nothing(guild: Guild, project: Path) -> None:
    too_much(project)
    script(project, *(write("worker", f"note-{n}", f"{n}" * 1100) for n in range(3)), DONE, limit=8000)
    run = ran(guild).json["run"]
    script(project, DONE)
    again = guild("run", "scribe", "go", "--override-model", f"replay:{run}", "--output", "json")
    assert again.code == 0, again
    assert "not condensed: the run's model is a recording" in again.err
    assert compactions(guild) == []


def test_cut_off_nothing_has_changed_and_nobody_is_to_go_on_with_it(guild: Guild, project: Path, home: Home) -> None:
    too_much(project, compactor=[{"say": "condensed", "sleep": 60}])
    process = guild.start("run", "scribe", "go", "--output", "json")
    until(lambda: any(run["worker"] == "memory-compactor" for run in _runs(guild)))
    process.kill()
    process.wait(5)
    listed = guild("ls", "--all", "--json").json
    assert listed["needs_you"]["runs"] == [] or listed["needs_you"]["runs"][0]["worker"] == "scribe"
    assert [run["status"] for run in compactions(guild)] == ["cancelled"]
    assert not list(home.path.rglob("archive"))


def test_stopped_while_it_is_waited_for_it_is_cut_off(guild: Guild, project: Path, home: Home) -> None:
    too_much(project, compactor=[{"say": "condensed", "sleep": 60}])
    process = guild.start("run", "scribe", "go", "--output", "json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["status"] == "completed"
    until(lambda: any(run["worker"] == "memory-compactor" for run in _runs(guild)))
    process.terminate()
    assert process.wait(30) == 130
    assert [run["status"] for run in compactions(guild)] == ["cancelled"]
    assert not list(home.path.rglob("archive"))


def _runs(guild: Guild) -> list[dict[str, Any]]:
    listed = guild("ls", "--all", "--json").json
    return [*listed["working"], *listed["done"]]


# The record


def test_a_replay_takes_the_memory_of_then(guild: Guild, project: Path) -> None:
    plain(project)
    script(project, write("worker", "fact", "one"), DONE)
    ran(guild)
    run = ran(guild).json["run"]
    assert guild("memory", "write", "fact", "changed", "--worker", "scribe").code == 0
    assert guild("memory", "write", "more", "another", "--scope", "global").code == 0
    assert guild("replay", run).code == 0
    assert guild("memory", "show", "fact", "--worker", "scribe").out == "changed\n", "a replay writes nothing"
    plain(project, instructions="Be different.")
    differs = guild("replay", run)
    assert differs.code == 1
    assert "+ Be different." in differs.out


def test_killed_and_resumed_the_prompt_is_the_same_and_nothing_is_written_twice(
    guild: Guild, project: Path, home: Home
) -> None:
    plain(project)
    script(project, write("worker", "fact", "one"), {"say": "slow", "sleep": 60})
    process = guild.start("run", "scribe", "go", "--output", "stream-json")
    assert process.stdout is not None
    run = json.loads(process.stdout.readline())["run"]
    until(lambda: kinds(journal(guild, run)).count("model_asked") == 2)
    process.kill()
    process.wait(5)
    assert guild("memory", "write", "later", "after the start", "--scope", "global").code == 0
    script(project, write("worker", "fact", "one"), DONE)
    resumed = guild("resume", run, "--output", "json")
    assert resumed.code == 0, resumed
    assert first(guild, run)["memory"] == ""
    records = guild("memory", "blame", "fact", "--worker", "scribe", "--json").json["records"]
    assert [(record["action"], record["worker"], record["run"]) for record in records] == [("write", "scribe", run)]
    with closing(sqlite3.connect(home.database)) as database:
        assert database.execute("SELECT count(*) FROM memory_log WHERE key = 'fact'").fetchone() == (1,)
