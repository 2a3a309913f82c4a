"""The room of a team, as the commands and the HTTP endpoint show it."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from guildhall.hall.client.discovery import EMBEDDED_VARIABLE
from guildhall.room.tools import TOOLS as ROOM_TOOLS
from tests.hall.hall_server import serve_hall
from tests.workflow.teams import Team, call, say, send, stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.core.paths import Home
    from tests.conftest import Guild, GuildWithHall

SENDERS = 32 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 6
LONG_TEXT = "all that there is to say about it, and more. " * 1_000


def messages(guild: Guild, target: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in guild("log", target, "--json").out.splitlines()]
    return [line for line in lines if line.get("type") == "message"]


def read_messages(guild: Guild, target: str) -> list[tuple[str, str, list[str]]]:
    return [(line["sender"], line["content"], line["mentions"]) for line in messages(guild, target)]


def agents(guild: Guild, target: str = "@team") -> dict[str, dict[str, Any]]:
    return {one["agent"]: one for one in guild("ls", target, "--json").json["agents"]}


def first_message_of(guild: Guild, run: str) -> str:
    """Return the first message that a run was given."""
    return next(one["content"] for one in guild("show", run, "--json").json["messages"] if one["role"] == "user")


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit, "the condition did not hold within 10 s"
        time.sleep(0.05)


@pytest.mark.req("AW-5", "AW-23")
def test_messages_never_change_and_each_tag_has_its_own(team: Team, guild: Guild) -> None:
    team.write_workflow()
    team.write_script(ann=[[send("@bob and @cid, look"), stop()]], bob=[[stop()]], cid=[[stop()]], repeat=True)
    assert guild("run", "team.yaml", "--tag", "a").code == 0
    first = read_messages(guild, "@team:a")
    assert first == [("system", "@ann begin", ["ann"]), ("ann", "@bob and @cid, look", ["bob"])]
    team.write_workflow(agents="ann bob cid")  # the new agent cid does not turn old texts into mentions
    assert guild("run", "team.yaml", "--tag", "a").code == 0
    again = read_messages(guild, "@team:a")
    assert again[-1] == ("ann", "@bob and @cid, look", ["bob", "cid"])
    with closing(sqlite3.connect(team.home.database)) as connection:
        kept = connection.execute("SELECT id, sender, content, mentions FROM messages ORDER BY room, id").fetchall()
    assert [tuple(row[1:3]) for row in kept[:2]] == [one[:2] for one in first]
    assert [json.loads(row[3]) for row in kept] == [["ann"], ["bob"], ["ann"], ["bob", "cid"]]
    assert guild("doc", "write", "@team:a", "a.md", input="of a").code == 0
    assert guild("run", "team.yaml", "--tag", "b").code == 0
    assert len(read_messages(guild, "@team:b")) == 2
    assert guild("doc", "ls", "@team:b", "--json").json["documents"] == []
    assert agents(guild, "@team:b")["cid"]["runs"] == 1
    assert agents(guild, "@team:a")["cid"]["runs"] == 1


@pytest.mark.req("AW-6", "AW-25", "AW-22")
def test_a_run_starts_with_its_unread_messages_which_are_handled_at_its_end(team: Team, guild: Guild) -> None:
    """The agents name their runtime with the field `backend`."""
    approval = {"tools": ["Write"], "tool_rules": {"fs.write": {"approval_required": True}}, "backend": "pydantic"}
    team.write_workflow(each={"bob": approval, "ann": {"backend": "pydantic"}})
    team.write_script(
        ann=[[call("document_write", content="the secret plan"), send("@bob first"), send("@bob second"), stop()]],
        bob=[[call("inbox_read"), call("Write", file_path="x.txt", content="x"), stop()], [stop()]],
    )
    waiting = guild("run", "team.yaml", "--output", "json")
    assert waiting.code == 4, waiting.err
    unread = agents(guild)["bob"]["unread"]
    assert unread == 2  # in the first message, read again by the tool, and not handled yet
    answered = guild("answer", waiting.json["asks"][0]["ask"], "yes")
    assert answered.code == 0
    assert "setup" not in answered.err.splitlines()  # the setup is complete
    assert agents(guild)["bob"]["unread"] == 0
    first = first_message_of(guild, next(one["run"] for one in waiting.json["runs"] if one["worker"] == "bob"))
    assert "Your inbox (" in first
    assert "from ann, normal priority\n@bob first" in first
    for tool in ("channel_send", "no_action"):
        assert tool in first
    assert "the secret plan" not in first  # documents and the channel are read with tools
    assert "@ann begin" not in first
    team.write_workflow(each={"ann": {"backend": "claude"}})
    refused = guild("run", "team.yaml", "--tag", "b")
    assert (refused.code, "claude" in refused.err) == (8, True) or "claude" in refused.err


@pytest.mark.req("AW-25")
def test_the_first_message_is_bounded(team: Team, guild: Guild) -> None:
    """While an agent waits for the user, it receives more text than one message holds."""
    many = 300
    approval = {"tools": ["Write"], "tool_rules": {"fs.write": {"approval_required": True}}}
    team.write_workflow(each={"bob": approval}, kickoff="@bob begin, and so do you, @ann")
    pieces = [{"calls": [send(f"@bob {'x' * 400} number {n}") for n in range(many)]}, stop()]
    busy = [call("Write", file_path="x.txt", content="x"), stop()]
    team.write_script(ann=[pieces], bob=[busy, [stop()]], repeat=True)
    waiting = guild("run", "team.yaml", "--output", "json")
    assert waiting.code == 4, waiting.err
    ran = guild("answer", waiting.json["asks"][0]["ask"], "yes", "--output", "json")
    assert ran.code == 0, ran.err
    assert agents(guild)["bob"]["unread"] == 0
    firsts = [first_message_of(guild, one["run"]) for one in ran.json["runs"] if one["worker"] == "bob"]
    assert any("more unread messages will be delivered" in first for first in firsts)
    assert all(len(first) < 60_000 for first in firsts)
    text = "".join(firsts)
    assert all(f"number {n}\n" in text for n in range(many))


@pytest.mark.req("AW-11")
def test_a_long_text_is_stored_under_its_hash_and_read_by_it(team: Team, guild: Guild) -> None:
    team.write_workflow()
    team.write_script(
        ann=[[send(f"@bob {LONG_TEXT}"), call("resource_create", content=LONG_TEXT), stop()]],
        bob=[[call("channel_read"), stop()]],
    )
    assert guild("run", "team.yaml").code == 0
    (message,) = [line for line in messages(guild, "@team") if line["sender"] == "ann"]
    assert len(message["content"]) < len(LONG_TEXT)
    assert message["resource"] in message["content"]
    with closing(sqlite3.connect(team.home.database)) as connection:
        kept = dict(connection.execute("SELECT id, content FROM resources").fetchall())
    assert kept[message["resource"]] == f"@bob {LONG_TEXT}"
    assert sorted(kept.values()) == sorted([f"@bob {LONG_TEXT}", LONG_TEXT])
    resource = message["resource"]
    again = {"expect": "more. $", **say("read")}
    team.write_script(
        ann=[[stop()], [call("resource_read", id=resource), again]], bob=[[stop()], [stop()]], repeat=True
    )
    assert guild("run", "team.yaml").code == 0


@pytest.mark.req("AW-12", "AW-17", "AW-24")
def test_a_running_team_receives_messages_from_many_senders(guild_hall: GuildWithHall, team: Team) -> None:
    guild = guild_hall
    team.write_workflow(agents="ann bob cid", kickoff=None)
    team.write_script(**{name: [[stop()]] for name in ("ann", "bob", "cid")}, repeat=True)
    assert guild("start", "team.yaml", "--background").code == 0
    delivery = guild("send", "@team", "@all sync up", "--json").json
    assert sorted(delivery["reached"]) == ["ann", "bob", "cid"]
    assert sorted(guild("send", "@team", "no name in it", "--json").json["reached"]) == ["ann", "bob", "cid"]
    missed = guild("send", "@team", "@bbo look")
    assert (missed.code != 0, "bob" in missed.err) == (True, True)
    part = guild("send", "@team", "@bob and @nobody, see `@ann`, a@cid.org\n> @cid said", "--json").json
    assert part["reached"] == ["bob"]
    assert part["missed"] == ["nobody"]
    before = len(messages(guild, "@team"))
    senders = [guild.start("send", "@team", f"@bob number {n}") for n in range(SENDERS)]
    assert {process.wait(60) for process in senders} == {0}
    texts = [line["content"] for line in messages(guild, "@team")[before:]]
    assert sorted(texts) == sorted(f"@bob number {n}" for n in range(SENDERS))
    assert guild("wait", "@team", "--timeout", "20s").code == 0
    assert [one["unread"] for one in agents(guild).values()] == [0, 0, 0]
    with closing(sqlite3.connect(team.home.database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    runs = agents(guild)["cid"]["runs"]
    assert guild("schedule", "cid@team", "set", "1s").code == 0
    wait_until(lambda: agents(guild)["cid"]["runs"] > runs)
    assert guild("stop", "@team").code == 0


@pytest.mark.req("AW-18", "AW-19", "AW-20")
def test_the_token_of_an_agent_opens_the_room_over_http(home: Home, team: Team, guild: Guild) -> None:
    """Start the team with the command, and send the requests of the agent over HTTP."""
    team.write_workflow()
    team.write_script(ann=[[{"sleep": 30, **stop()}]], bob=[[{"sleep": 30, **stop()}]])

    async def send_request(client: httpx2.AsyncClient, token: str, method: str, **params: Any) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
        return await client.post("/mcp/room/", json=body, headers=headers)

    async def work() -> None:
        async with serve_hall(home) as hall, httpx2.AsyncClient(base_url=hall.address.url) as client:
            command = {"env": {EMBEDDED_VARIABLE: "0"}}
            began = await asyncio.to_thread(guild, "start", "team.yaml", "--background", "--json", **command)
            assert began.code == 0, began.err
            (run,) = [one["run"] for one in began.json["agents"] if one["agent"] == "ann" and one["run"]] or [None]
            while run is None:
                listed = (await asyncio.to_thread(guild, "ls", "@team", "--json", **command)).json["agents"]
                run = next((one["run"] for one in listed if one["agent"] == "ann"), None)
            token = hall.hall.runs.token(run)
            shown = (await send_request(client, token, "tools/list")).json()["result"]["tools"]
            assert [tool["name"] for tool in shown] == list(ROOM_TOOLS)
            for properties in (tool["inputSchema"].get("properties", {}) for tool in shown):
                assert not {"sender", "agent", "from", "run"} & set(properties)
            claim = {"message": "I am bob", "sender": "bob"}
            refused = await send_request(client, token, "tools/call", name="channel_send", arguments=claim)
            assert refused.json()["result"]["isError"]
            done = await send_request(
                client, token, "tools/call", name="channel_send", arguments={"message": "@bob hello"}
            )
            assert not done.json()["result"].get("isError")
            for other in ("none", hall.address.token):  # the token of the user opens no room
                assert (await send_request(client, other, "tools/list")).status_code in (401, 403)
            ran = await asyncio.to_thread(guild, "log", "@team", "--json", **command)
            lines = [json.loads(line) for line in ran.out.splitlines()]
            sent_messages = [(line["sender"], line["content"]) for line in lines if line.get("type") == "message"]
            assert sent_messages == [("system", "@ann begin"), ("ann", "@bob hello")]
            assert (await asyncio.to_thread(guild, "stop", "@team", **command)).code == 0
            assert (await send_request(client, token, "tools/list")).status_code in (401, 403)

    asyncio.run(work())
