"""The completion contract: artifacts, schema, checks and review, before anything is merged."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import UsageError
from tests.projects.commissions.harness import call, say, submit, write

if TYPE_CHECKING:
    from tests.projects.commissions.harness import CommissionProject

ENOUGH = "grep -q 'key = 2' src/key.py"


def results(shop: CommissionProject, run: str, tool: str = "submit_result") -> list[tuple[bool, str]]:
    """Return the results of a tool's calls as pairs of is_error and text."""
    entries = shop.hall.history.entries(run)
    keys = {entry.key for entry in entries if entry.kind == "tool_started" and entry.data.tool == tool}
    ends = [entry.data.result for entry in entries if entry.kind == "tool_ended" and entry.key in keys]
    return [(end["is_error"], end["content"][0]["text"]) for end in ends]


@pytest.mark.req("X-6")
def test_problems_are_reported_and_can_be_corrected(harness: CommissionProject) -> None:
    harness.script(
        [
            submit("Too early."),
            write("src/key.py", "key = 1\n"),
            submit("Not enough."),
            write("src/key.py", "key = 2\n"),
            submit("Now."),
            say(),
        ]
    )

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission(artifacts=("src/key.py",), checks=(ENOUGH,))
        assert (done.status, done.result) == ("completed", "Now."), done.reason
        early, little, now = results(shop, str(done.run))
        assert early[0]
        assert "the artifact src/key.py is missing" in early[1]
        assert little[0]
        assert "exit code 1" in little[1]
        assert not now[0]
        lines = (await shop.commissions.details(done.id)).timeline
        checks = [one.data["checks"] for one in lines if "checks" in one.data]
        assert [[check["passed"] for check in some] for some in checks] == [[False], [True]]
        assert checks[0][0]["command"] == ENOUGH

    harness.run_in_hall(work)


@pytest.mark.req("X-6")
def test_a_symbolic_link_is_not_an_artifact(harness: CommissionProject) -> None:
    harness.worker(tools=["Bash"])
    harness.script([call("Bash", command="mkdir -p out; ln -s /etc/hostname out/key"), submit("Linked."), say()])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission(artifacts=("out/key",))
        assert done.status == "failed"
        assert "the artifact out/key is missing" in str(done.reason)

    harness.run_in_hall(work)


@pytest.mark.req("X-6")
def test_changes_after_the_result_are_checked_again(harness: CommissionProject) -> None:
    harness.script([write("src/key.py", "key = 2\n"), submit("Done."), write("src/key.py", "key = 0\n"), say()])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission(checks=(ENOUGH,))
        assert done.status == "failed"
        assert ENOUGH in str(done.reason)
        # nothing of it was merged, and nothing of it is lost
        assert shop.repo.git("ls-tree", "claude/main", "src/key.py") == ""
        assert shop.repo.at(str(done.branch), "src/key.py") == "key = 0"

    harness.run_in_hall(work)


def test_project_checks_run_confined_without_network(harness: CommissionProject) -> None:
    marker = harness.repo.path / "README.md"
    checks = [f"! test -e {marker}", "test -e README.md", "! (exec 3<>/dev/tcp/127.0.0.1/9) 2>/dev/null"]
    config = harness.home.settings.read_text()
    harness.home.settings.write_text(config + f"    checks: {json.dumps(checks)}\n")
    harness.script([submit("Done."), say()])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission()
        assert done.status == "completed", done.reason
        assert "3 checks passed" in await shop.timeline_reasons(done.id)

    harness.run_in_hall(work)


def test_only_people_set_checks_models_and_worker_files(harness: CommissionProject) -> None:
    async def work(shop: CommissionProject) -> None:
        from guildhall.projects.commissions.model import Draft

        project = shop.hall.projects.get("shop")
        file = str(shop.repo.path / "workers" / "smith.yaml")
        wrong: list[dict[str, Any]] = [
            {"checks": ("true",)},
            {"model": "script:x"},
            {"worker": file},
            {"worker": "workers/smith.yaml"},
            {"worker": "home/../smith"},
            {"worker": "smith.yaml"},
            {"reviewer": file},
        ]
        for more in wrong:
            draft = Draft(**{"title": "A key", "worker": "smith", "prompt": "Forge.", **more})
            with pytest.raises(UsageError, match=r"only the user may set|invalid worker name"):
                await shop.commissions.create(project, draft, shop.frame, by="manager", made_by="r-2222222222")
        made = await shop.create_commission(checks=("true",))
        edited = await shop.commissions.edit(made.id, {"prompt": "Forge two."}, shop.frame, by="manager")
        assert (edited.draft.checks, edited.draft.prompt) == (("true",), "Forge two.")
        with pytest.raises(UsageError, match="only the user may set"):
            await shop.commissions.edit(made.id, {"checks": ["rm -rf ."]}, shop.frame, by="manager")

    harness.run_in_hall(work)


@pytest.mark.req("X-6")
def test_the_result_must_match_the_schema(harness: CommissionProject) -> None:
    schema = {"type": "object", "properties": {"keys": {"type": "integer"}}, "required": ["keys"]}
    (harness.repo.path / "keys.json").write_text(json.dumps(schema))
    harness.worker(output_schema_ref="keys.json")
    harness.script([submit({"keys": "two"}), submit({"keys": 2}), say()])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission()
        assert (done.status, done.result) == ("completed", {"keys": 2})

    harness.run_in_hall(work)


def review(approved: bool, comments: str) -> dict[str, Any]:
    return call("submit_review", approved=approved, comments=comments)


CREATES = {"worker_create": {"allowed": True}}


@pytest.mark.req("X-6")
def test_a_reviewer_rejects_then_approves(harness: CommissionProject) -> None:
    harness.worker("critic", tools=["Bash", "Write", "Grep"], allow_workers=["smith"], tool_rules=CREATES)
    forged = [write("src/key.py", "key = 1\n"), submit("Forged."), say()]
    look = call("Read", file_path="src/key.py")
    harness.script(forged, critic=[[look, review(False, "It is too small."), say()]])

    async def work(shop: CommissionProject) -> None:
        made = await shop.run_commission(reviewer="critic")
        assert (made.status, made.reason) == ("failed", "critic does not approve: It is too small.")
        assert shop.repo.git("ls-tree", "claude/main", "src/key.py") == ""
        below = shop.hall.history.descendants(str(made.run))
        assert [run.worker for run in below] == ["critic"]
        assert "+key = 1" in below[0].request.input
        tools = {tool["name"] for tool in shop.hall.history.entries(below[0].id)[0].data.tools}
        assert {"Read", "Grep", "Glob", "submit_review"} <= tools
        assert {"artifact_read", "artifact_list", "record_decision"} <= tools
        writing = {"Write", "Edit", "Bash", "artifact_write", "memory_write", "worker_call", "worker_create"}
        assert tools.isdisjoint({*writing, "submit_result"})  # it reads, and writes nothing
        replayed = await shop.client.runs.replay(below[0].id, shop.frame)
        assert replayed.matches, replayed
        shop.script(forged, critic=[[look, review(True, "Good."), say()]])
        await shop.commissions.redispatch(made.id, shop.frame)
        again = await shop.wait_ended(made.id)
        assert again.status == "completed", again.reason
        assert "critic approves: Good." in await shop.timeline_reasons(made.id)

    harness.run_in_hall(work)


@pytest.mark.req("X-6")
def test_a_review_needs_a_call_of_submit_review(harness: CommissionProject) -> None:
    harness.worker("critic")
    harness.script([submit("Forged."), say()], critic=[[say("Looks good to me, approved.")]])

    async def work(shop: CommissionProject) -> None:
        made = await shop.run_commission(reviewer="critic")
        assert made.status == "failed"
        assert "no review from critic" in str(made.reason)

    harness.run_in_hall(work)


@pytest.mark.req("COM-2")
def test_results_without_files_are_merged_too(harness: CommissionProject) -> None:
    harness.script([submit("Two keys are enough."), say()])

    async def work(shop: CommissionProject) -> None:
        made = [await shop.create_commission(title="First"), await shop.create_commission(title="Second")]
        await asyncio.gather(*(shop.commissions.dispatch(one.id, shop.frame) for one in made))
        for one in made:
            done = await shop.wait_ended(one.id)
            text = shop.repo.at("guildhall/records", done.path)
            assert "status: completed" in text
            assert str(done.result) in text

    harness.run_in_hall(work)


@pytest.mark.req("X-6", "X-7", "COM-14")
def test_an_ignored_artifact_is_merged_and_other_ignored_files_are_kept(harness: CommissionProject) -> None:
    harness.repo.commit({".gitignore": "dist/\n"})
    made = [write("dist/report.md", "precious\n"), write("dist/other.md", "beside\n")]
    harness.script([*made, submit("Reported."), write("dist/report.md", "more\n"), say()])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission(artifacts=("dist/report.md",))
        assert done.status == "completed", done.reason
        assert shop.repo.at("claude/main", "dist/report.md") == "more"
        assert shop.repo.git("ls-tree", "claude/main", "dist/other.md") == ""
        kept = f"refs/guildhall/kept/ignored/commission/{done.id}-1"
        assert shop.repo.at(kept, "dist/other.md") == "beside"
        assert f"ignored files kept at {kept}: dist/other.md" in await shop.timeline_reasons(done.id)

    harness.run_in_hall(work)


@pytest.mark.req("X-6", "COM-14")
def test_checks_see_the_commit_and_leave_nothing_behind(harness: CommissionProject) -> None:
    harness.repo.commit({".gitignore": "*.ignored\n"})
    checks = (
        "python3 -c 'import sys; sys.path[:0] = [\"src\"]; import key'",
        "touch coverage.xml && echo broken > src/key.py && mkdir locked && touch locked/x && chmod 500 locked",
        "test -e coverage.xml && test ! -e src/here.ignored",  # the next check finds the files of the one before
        "grep -q broken src/key.py && test ! -e src/__pycache__",
    )
    harness.script([write("src/key.py", "key = 2\n"), write("src/here.ignored", "x\n"), submit("Done."), say()])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission(checks=checks)
        assert done.status == "completed", done.reason
        made = shop.repo.git("diff", "--name-only", "main", "claude/main").split()
        assert made == ["src/key.py"]
        assert shop.repo.at("claude/main", "src/key.py") == "key = 2"
        assert [one.name for one in (shop.home.worktrees / "shop").iterdir() if one.is_dir()] == []

    harness.run_in_hall(work)


@pytest.mark.req("COM-14", "X-7")
def test_a_result_without_its_checkout_is_refused(harness: CommissionProject) -> None:
    harness.script([write("src/key.py"), {"sleep": 0.5, **write("src/lock.py")}, submit("Done."), say()])

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        await shop.commissions.dispatch(made.id, shop.frame)
        place = shop.home.worktrees / "shop" / f"{made.id}-1"
        await shop.wait_until((place / "src/key.py").exists)
        shutil.rmtree(place)
        done = await shop.wait_ended(made.id)
        assert done.status == "failed"
        assert "the checkout was removed" in str(done.reason)
        assert shop.repo.git("diff", "--name-only", "main", "claude/main") == ""
        again = await shop.commissions.redispatch(made.id, shop.frame)
        assert (await shop.wait_ended(again.id)).status == "completed"
        assert shop.repo.at("claude/main", "src/key.py") == "made"

    harness.run_in_hall(work)


@pytest.mark.req("X-20")
def test_a_result_in_the_same_answer_as_its_file_is_accepted(harness: CommissionProject) -> None:
    harness.script([{"calls": [write("src/key.py", "key = 1\n"), submit("Forged.")]}, say()])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission(artifacts=("src/key.py",))
        assert done.status == "completed"
        assert [is_error for is_error, _ in results(shop, done.run)] == [False]

    harness.run_in_hall(work)
