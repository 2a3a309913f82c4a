"""The manager's tools: what they do, what they refuse, and that a call which is made again does nothing twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.request_frame import Frame
from guildhall.projects.commissions import records
from guildhall.tools.definition import KeyedHandler, TypedHandler, invoke
from tests.projects.commissions.harness import call, say, submit, write
from tests.projects.manager.manager_runs import ID, call_tools, run_manager, tool_results, until, write_script

if TYPE_CHECKING:
    from guildhall.tools.model import Tool, ToolResult
    from tests.projects.commissions.harness import Answer, CommissionProject

KEY = [write("src/key.py", "key = 1\n"), submit("Forged."), say()]
FAILS: list[Answer] = [say("I cannot.")]


def new(title: str = "A key", worker: str = "smith", **more: Any) -> Answer:
    return call("create_commission", title=title, worker=worker, prompt="Forge it.", **more)


def then(tool: str, **more: Any) -> Answer:
    """Return a call about the newest commission."""
    return {"expect": f"(?P<id>{ID}) is", **call(tool, id="${id}", **more)}


def waited() -> Answer:
    return call("wait_for_commissions", ids=["${id}"])


@pytest.mark.req("WKR-24", "WKR-25", "WKR-27")
def test_it_looks_commissions_waits_and_puts_the_work_up(harness: CommissionProject) -> None:
    harness.worker(description="Forges keys.", tools=["Bash"])
    answers = [
        call("list_workers"),
        call("list_projects"),
        new(artifacts=["src/key.py"]),
        then("dispatch_commission"),
        waited(),
        call("list_commissions"),
        call("open_pull_request", title="A key", body="It was forged."),
    ]

    async def work(shop: CommissionProject) -> None:
        write_script(shop, *answers, smith=[KEY])
        run = await run_manager(shop)
        said = [one.text for one in tool_results(shop, run)]
        assert run.output == "managed"
        workers, projects, made, dispatched, outcome, listed, review = said
        assert workers.splitlines() == [
            "- smith: Forges keys. (uses Bash)",
        ]
        assert projects == "- shop (your current project): user's branch main; no commissions"
        (one,) = await shop.commissions.list_commissions("shop")
        assert made == f"{one.id} is pending: A key (smith)."
        assert dispatched.startswith(f"{one.id} is ")
        line = (
            f"{one.id} completed: A key (smith, created by the manager); 1 file changed, +1 -0; must produce src/key.py"
        )
        assert outcome == f"{line}\nResult:\nForged."
        assert listed == f"- {line}"
        assert "review branch claude/review/" in review
        assert (one.by, one.made_by) == ("manager", f"{run.id}#{_key(shop, run.id, 'create_commission')}")

    harness.run_in_hall(work)


def _key(shop: CommissionProject, run: str, tool: str) -> str:
    entries = shop.hall.history.entries(run)
    return next(one.key for one in entries if one.kind == "tool_started" and one.data.tool == tool)


@pytest.mark.req("SYS-14")
def test_what_depends_on_another_waits_for_it(harness: CommissionProject) -> None:
    answers = [
        new("First", artifacts=["src/key.py"]),
        {"expect": f"(?P<first>{ID}) is pending", **new("Second", dependencies=["src/key.py"])},
        {"expect": f"(?P<second>{ID}) is blocked", **call("dispatch_commission", id="${second}")},
        call("dispatch_commission", id="${first}"),
        call("wait_for_commissions", ids=["${second}"]),
        call("dispatch_commission", id="${second}"),
        call("wait_for_commissions", ids=["${first}", "${second}", "${second}"]),
    ]

    async def work(shop: CommissionProject) -> None:
        lock = [write("src/lock.py", "lock = 1\n"), submit("Locked."), say()]
        said = await call_tools(shop, *answers, smith=[KEY, lock])
        assert "cannot dispatch commission " in said[2]
        assert ": waiting for src/key.py" in said[2]
        assert "depends on" in said[4]
        assert " pending: Second" in said[4]
        assert said[6].count("completed: ") == 2
        assert "Result:\nForged." in said[6]

    harness.run_in_hall(work)


def test_one_that_fails_is_told_with_its_reason_and_tried_anew(harness: CommissionProject) -> None:
    answers = [
        new(artifacts=["src/key.py"]),
        then("dispatch_commission"),
        waited(),
        call("redispatch_commission", id="${id}"),
        waited(),
        call("redispatch_commission", id="${id}"),
    ]

    async def work(shop: CommissionProject) -> None:
        said = await call_tools(shop, *answers, smith=[FAILS])
        assert " failed: A key (smith, created by the manager); " in said[2]
        assert said[3].endswith("attempt 2.")
        assert " failed: A key" in said[4]
        assert said[5].endswith("attempt 3.")

    harness.run_in_hall(work)


@pytest.mark.req("WKR-27")
def test_it_calls_off_its_own_and_nobody_else_s(harness: CommissionProject) -> None:
    slow: list[Answer] = [{"sleep": 30, "say": "late"}]

    async def work(shop: CommissionProject) -> None:
        theirs = await shop.create_commission("The user's")
        answers = [
            new(),
            then("dispatch_commission"),
            call("cancel_commission", id="${id}", reason="It is not needed.\nAny more."),
            call("cancel_commission", id=theirs.id, reason="Mine now."),
            call("cancel_commission", id="${id}", reason="Again."),
        ]
        said = await call_tools(shop, *answers, smith=[slow])
        assert said[2].endswith(" is cancelled.")
        assert said[3].startswith(f"error: cannot cancel {theirs.id}: the user created it")
        assert said[4].startswith("error: ")
        assert shop.commissions.get(theirs.id).status == "pending"

    harness.run_in_hall(work)


def test_what_waits_for_a_person_is_waited_for_no_longer(harness: CommissionProject) -> None:
    harness.worker(tool_rules={"Write": {"approval_required": True}})

    async def work(shop: CommissionProject) -> None:
        said = await call_tools(shop, new(), then("dispatch_commission"), waited(), smith=[KEY])
        assert "waiting for the user" in said[2]

    harness.run_in_hall(work)


def test_a_question_of_a_worker_that_goes_on_ends_no_waiting(harness: CommissionProject) -> None:
    async def work(shop: CommissionProject) -> None:
        asks = [call("log_question", question="Which metal?"), {"sleep": 0.5, **KEY[0]}, *KEY[1:]]
        said = await call_tools(shop, new(), then("dispatch_commission"), waited(), smith=[asks])
        assert " completed: A key" in said[2]
        assert "Open question: Which metal?" in said[2]

    harness.run_in_hall(work)


# The same call once more


def tools(shop: CommissionProject, run: str = "r-manager") -> dict[str, Tool]:
    worker = shop.hall.workers.find("manager", shop.frame)
    return {tool.name: tool for tool in shop.services.manager_tools(worker, shop.frame, run, "run")}


async def called(tool: Tool, key: str, **arguments: Any) -> ToolResult:
    assert isinstance(tool.handler, KeyedHandler)
    return await invoke(replace(tool, handler=TypedHandler(tool.handler.bind_key(key), tool.handler.form)), arguments)


@pytest.mark.req("WKR-27")
def test_a_call_that_is_made_again_makes_no_second_commission(harness: CommissionProject) -> None:
    given = {"title": "A key", "worker": "smith", "prompt": "Forge it."}

    async def work(shop: CommissionProject) -> None:
        create = tools(shop)["create_commission"]
        first = await called(create, "t1", **given)
        assert (await called(create, "t1", **given)).text == first.text
        assert len(await shop.commissions.list_commissions()) == 1
        assert (await called(create, "t2", **given)).text != first.text
        other = tools(shop, "r-other")["create_commission"]
        assert (await called(other, "t1", **given)).text != first.text
        assert len(await shop.commissions.list_commissions()) == 3

    harness.run_in_hall(work)


@pytest.mark.req("WKR-26")
def test_what_was_made_again_from_an_artifact_is_a_person_s_to_dispatch(harness: CommissionProject) -> None:
    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        await shop.hall.store.write(lambda c: records.update_fields(c, made.id, made.changed_at, by="artifact"))
        for name in ("dispatch_commission", "redispatch_commission"):
            said = await called(tools(shop)[name], "t1", id=made.id)
            assert said.is_error
            assert "only the user may dispatch a commission" in said.text
        assert shop.commissions.get(made.id).status == "pending"

    harness.run_in_hall(work)


def test_nor_does_it_ask_for_a_second_meeting(harness: CommissionProject) -> None:
    topic = {"topic": "Which lock?", "max_turns": 9, "budget": 1.5}

    async def work(shop: CommissionProject) -> None:
        write_script(shop, call("request_meeting", **topic))
        run = await run_manager(shop)
        (meeting,) = shop.hall.meetings.list_meetings("shop")
        assert meeting.limits == {"max_turns": 9, "budget": 1.5}
        await shop.hall.meetings.decline(meeting.id, "not now")
        again = tools(shop, run.id)["request_meeting"]
        said = await called(again, _key(shop, run.id, "request_meeting"), **topic)
        assert f"Meeting {meeting.id} is declined" in said.text
        assert len(shop.hall.meetings.list_meetings("shop")) == 1

    harness.run_in_hall(work)


def test_what_it_did_before_it_was_cut_off_is_not_done_again(harness: CommissionProject) -> None:
    """Repeat each call with its key long after its effect."""
    answers = [new(artifacts=["src/key.py"]), then("dispatch_commission"), waited()]
    more = [call("redispatch_commission", id="${id}"), waited()]

    async def work(shop: CommissionProject) -> None:
        write_script(shop, *answers, *more, smith=[FAILS])
        run = await run_manager(shop)
        (one,) = await shop.commissions.list_commissions()
        assert (one.status, one.attempt) == ("failed", 2)
        for name in ("dispatch_commission", "redispatch_commission"):
            said = await called(tools(shop, run.id)[name], _key(shop, run.id, name), id=one.id)
            assert not said.is_error, said.text
        assert shop.commissions.get(one.id).attempt == 2
        other = await called(tools(shop, run.id)["redispatch_commission"], "another", id=one.id)
        assert not other.is_error
        assert (await shop.wait_ended(one.id)).attempt == 3

    harness.run_in_hall(work)


def test_after_a_crash_it_goes_on_and_nothing_is_made_or_tried_twice(harness: CommissionProject) -> None:
    """Stop the hall while the manager waits. The next hall resumes both the manager and the commission."""
    slow: list[Answer] = [{"sleep": 1.0, **write("src/key.py", "key = 1\n")}, submit("Forged."), say()]
    answers = [
        new(artifacts=["src/key.py"]),
        then("dispatch_commission"),
        waited(),
    ]
    write_script(harness, *answers, smith=[slow])
    found: dict[str, str] = {}

    async def first(shop: CommissionProject) -> None:
        task = asyncio.create_task(run_manager(shop))

        def waits() -> bool:
            found["run"] = next((run.id for run in shop.hall.history.recent() if run.worker == "manager"), "")
            return bool(found["run"]) and _waits(shop, found["run"])

        await until(waits)
        await shop.hall.drain()
        await task

    async def second(shop: CommissionProject) -> None:
        await until(lambda: shop.hall.history.get(found["run"]).status in ("completed", "failed"))
        run = shop.hall.history.get(found["run"])
        assert (run.status, run.output) == ("completed", "managed"), run
        (one,) = await shop.commissions.list_commissions()
        assert (one.status, one.attempt) == ("completed", 1)

    harness.run_in_hall(first)
    harness.run_in_hall(second, recover=True)
    harness.repo.fsck()


def _waits(shop: CommissionProject, run: str) -> bool:
    entries = shop.hall.history.entries(run)
    return any(one.kind == "tool_started" and one.data.tool == "wait_for_commissions" for one in entries)


# What cannot be


def test_hostile_arguments_are_answered_and_change_nothing(harness: CommissionProject) -> None:
    good: dict[str, Any] = {"title": "A key", "worker": "smith", "prompt": "Forge it."}
    wrong: list[tuple[str, dict[str, Any]]] = [
        *(
            ("create_commission", {**good, **more})
            for more in (
                {"title": ""},
                {"title": "a\nb"},
                {"title": "a\0"},
                {"title": "x" * 10_000},
                {"title": 3},
                {"prompt": " "},
                {"prompt": "x" * 2_000_000},
                {"worker": "nobody"},
                {"worker": "../../etc/passwd"},
                {"worker": "manager"},
                {"worker": "shipped/manager"},
                {"reviewer": "nobody"},
                {"project": "nowhere"},
                {"project": "../shop"},
                {"artifacts": ["../../etc/passwd"]},
                {"artifacts": ["/etc/passwd"]},
                {"artifacts": [".git/hooks/post-commit"]},
                {"artifacts": "src/key.py"},
                {"artifacts": ["a"] * 101},
                {"dependencies": ["a\0b"]},
                {"linked": [".."]},
                {"checks": ["rm -rf /"]},
                {"model": "openai:gpt-5"},
                {"max_budget_usd": 1e9},
                {"by": "person"},
                {"branch": "main"},
            )
        ),
        *(
            (tool, {"id": id, **more})
            for tool, more in (
                ("dispatch_commission", {}),
                ("redispatch_commission", {}),
                ("cancel_commission", {"reason": "x"}),
            )
            for id in ("", "c-nothere", "c-' or 1=1 --", "main", "\0", "x" * 1000)
        ),
        ("wait_for_commissions", {"ids": []}),
        ("wait_for_commissions", {"ids": ["c-nothere"]}),
        ("wait_for_commissions", {"ids": ["c-a"] * 51}),
        ("list_commissions", {"status": "merged"}),
        ("list_commissions", {"project": "' or 1=1"}),
        ("list_workers", {"project": "/etc"}),
        ("open_pull_request", {"title": "", "body": "x"}),
        ("open_pull_request", {"title": "x", "body": "x", "branch": "main"}),
        ("request_meeting", {"topic": ""}),
        ("request_meeting", {"topic": "x" * 10_001}),
        ("request_meeting", {"topic": "x", "linked": ["../x"]}),
        ("request_meeting", {"topic": "x", "budget": -1}),
        ("request_meeting", {"topic": "x", "max_turns": 0}),
    ]

    async def work(shop: CommissionProject) -> None:
        every = tools(shop)
        refs = shop.branches()
        for name, arguments in wrong:
            result = await called(every[name], "t1", **arguments)
            assert result.is_error, (name, arguments, result.text)
            assert len(result.text) < 2_000
        assert await shop.commissions.list_commissions() == []
        assert shop.branches() == refs
        made = (await called(every["create_commission"], "t9", **good)).text.split()[0]
        for minutes in (0, -1, 10**9, "long", 1.5):
            assert (await called(every["wait_for_commissions"], "t2", ids=[made], minutes=minutes)).is_error
        assert (await called(every["cancel_commission"], "t3", id=made, reason=" ")).is_error

    harness.run_in_hall(work)


def test_outside_of_a_project_it_has_to_name_one(harness: CommissionProject, tmp_path: Any) -> None:
    elsewhere = Frame(cwd=tmp_path, root=tmp_path)

    async def work(shop: CommissionProject) -> None:
        worker = shop.hall.workers.find("manager", elsewhere)
        every = {tool.name: tool for tool in shop.services.manager_tools(worker, elsewhere, "r-x", "run")}
        said = await called(every["list_workers"], "t1")
        assert said.is_error
        assert "Name a project: shop." in said.text
        assert "smith" in (await called(every["list_workers"], "t1", project="shop")).text
        assert (await called(every["list_projects"], "t1")).text.startswith("- shop: ")

    harness.run_in_hall(work)
