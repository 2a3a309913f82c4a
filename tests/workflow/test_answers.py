"""The final answers of agents, recipients of messages, and the tools that a run is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.workflow.teams import Team, call, say, send, stop
from tests.workflow.test_room_commands import first_message_of, read_messages

if TYPE_CHECKING:
    from tests.conftest import Guild, GuildWithHall


def turns_of(guild: Guild, run: str) -> int:
    return guild("show", run, "--json").json["usage"]["turns"]


@pytest.mark.req("AW-6", "AW-14")
def test_a_plain_answer_goes_to_the_sender_and_the_last_one_is_the_result(team: Team, guild: Guild) -> None:
    """bob answers ann, and the answer of ann to that answer goes to the user."""
    team.write_workflow()
    team.write_script(
        ann=[[call("channel_send", to="bob", message="check it")], [say("it is fine")]], bob=[[say("fine")]]
    )
    script = json.loads((team.project / "script.yaml").read_text())
    script["workers"]["ann"][0].append(say("asked bob"))  # not delivered: the run has sent a message
    (team.project / "script.yaml").write_text(json.dumps(script))
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 0, ran.err
    assert ran.json["output"] == "it is fine"
    assert read_messages(guild, "@team")[1:] == [
        ("ann", "check it", ["bob"]),
        ("bob", "fine", ["ann"]),
        ("ann", "it is fine", ["person"]),
    ]
    assert guild("replay", ran.json["run"]).code == 0


@pytest.mark.req("AW-19")
def test_no_action_and_votes_end_the_run_and_tools_are_shown_on_demand(team: Team, guild: Guild) -> None:
    team.write_workflow(each={"bob": {"description": "checks results"}})
    vote = {"type": "decision", "title": "which", "options": ["a", "b"], "quorum": 1}
    team.write_script(
        ann=[[call("more_tools"), call("proposal_create", **vote), stop()], [stop()]],
        bob=[[{"expect": "p-1", **call("proposal_vote", proposal="p-1", choice="a")}]],
    )
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 0, ran.err
    (bob,) = [one["run"] for one in ran.json["runs"] if one["worker"] == "bob"]
    assert turns_of(guild, bob) == 1  # the vote ends the run
    assert guild("replay", ran.json["run"]).code == 0
    ann = next(one["run"] for one in ran.json["runs"] if one["worker"] == "ann")
    assert "- bob: checks results" in first_message_of(guild, ann)
    entries = [json.loads(line) for line in guild("log", ann, "--json").out.splitlines()]
    tools = next(entry["data"]["tools"] for entry in entries if entry["kind"] == "assembled")
    recipients = next(tool["input_schema"]["properties"]["to"] for tool in tools if tool["name"] == "channel_send")
    assert recipients["enum"] == ["bob", "person", "all"]
    shown = [entry["data"]["tools"] for entry in entries if entry["kind"] == "model_asked"]
    assert shown[0] != shown[1] == shown[2]  # fingerprints of the tool list, before and after more_tools


def test_an_unknown_recipient_is_refused_with_the_nearest_name(team: Team, guild: Guild) -> None:
    team.write_workflow()
    team.write_script(ann=[[call("channel_send", to="bobb", message="x"), {"expect": "Did you mean 'bob'", **stop()}]])
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 0, ran.err
    assert len(read_messages(guild, "@team")) == 1


def test_a_lone_agent_reads_no_words_about_a_team(team: Team, guild: Guild) -> None:
    team.write_workflow("ann", kickoff="@ann say hello")
    team.write_script(ann=[[say("hello")]])
    ran = guild("run", "team.yaml", "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, "hello")
    ann = next(one["run"] for one in ran.json["runs"] if one["worker"] == "ann")
    first = first_message_of(guild, ann)
    assert first.endswith("Your final answer goes to the user. If no action is needed, call no_action.")
    assert "team" not in first


def test_a_team_without_a_kickoff_pays_for_no_election(team: Team, guild: Guild) -> None:
    team.write_workflow(kickoff=None, context={})
    team.write_script()
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 0, ran.err
    assert ran.json["runs"] == []
    team.write_workflow(context={})
    team.write_script(ann=[[send("@person done")]], election={"ann": "bob", "bob": "bob"}, repeat=True)
    ran = guild("run", "team.yaml", "--output", "json")
    voters = [one["run"] for one in ran.json["runs"] if one["worker"].startswith("election.")]
    assert [turns_of(guild, run) for run in voters] == [1, 1]


LONG_ANSWER = "all that there is to say about it. " * 600


@pytest.mark.req("AW-15", "AW-16")
def test_a_started_team_shows_what_its_agents_say(team: Team, guild_hall: GuildWithHall) -> None:
    guild = guild_hall
    team.write_workflow("ann bob cid")
    greeting = [call("channel_send", to="person", message="hello\nthere"), send("@bob check it"), say("asked bob")]
    team.write_script(ann=[greeting, [say("bob agrees")], [send("@person second answer"), stop()]], bob=[[say("fine")]])
    assert guild("start", "team.yaml", "--background").code == 0
    waited = guild("wait", "@team", "--timeout", "20s")
    assert (waited.code, waited.out) == (0, "ann: hello\n    there\nann: bob agrees\nbob: fine\n")
    assert guild("wait", "bob@team", "--timeout", "20s").out == "bob: fine\n"
    assert guild("wait", "@team", "--json").json["answers"] == {"ann": "bob agrees", "bob": "fine", "cid": None}
    listed = guild("ls", "@team").out
    assert "messages to you\n  ann: hello there\n  ann: bob agrees\n" in listed
    assert "last answers\n  bob: fine\n" in listed
    shown = guild("show", "@team").out
    assert "  ann: hello\n    there\n" in shown
    assert "last answers\n  bob: fine\n" in shown
    assert "hello" not in guild("show", "bob@team").out
    assert "ann: bob agrees" in guild("show", "ann@team").out
    for command in ("ls", "show"):
        agents = {one["agent"]: one for one in guild(command, "@team", "--json").json["agents"]}
        assert [one["content"] for one in agents["ann"]["messages_to_user"]] == ["hello\nthere", "bob agrees"]
        assert guild(command, "bob@team", "--json").json["answer"] == agents["bob"]["answer"] == "fine"
    assert guild("send", "ann@team", "and now?").code == 0
    assert guild("wait", "@team", "--timeout", "20s").out == "ann: @person second answer\nbob: fine\n"
    assert guild("stop", "@team").code == 0
    assert "ann: @person second answer\n" in guild("wait", "@team").out


def test_a_long_message_to_the_user_is_shown_whole(team: Team, guild: Guild) -> None:
    team.write_workflow("ann", context={})
    team.write_script(ann=[[say(LONG_ANSWER)]])
    ran = guild("run", "team.yaml", "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, LONG_ANSWER)
    assert guild("show", "@team").out.count(LONG_ANSWER.strip()) >= 1
    assert max(map(len, guild("ls", "@team").out.splitlines())) < 300


def test_agents_without_a_room_show_their_answers(team: Team, guild: Guild) -> None:
    team.write_workflow("ann bob", context=False, kickoff="@all begin")
    team.write_script(ann=[[say("one")]], bob=[[say("two")]])
    assert guild("run", "team.yaml").code == 0
    assert "last answers\n  ann: one\n  bob: two\n" in guild("ls", "@team").out
