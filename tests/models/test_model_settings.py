"""Model settings and prompt caching, through the real command and the real clients of Anthropic and OpenAI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import claude_program, codex_program, opencode_program
from tests.models.scripts import write_script

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.conftest import Guild

SAMPLING = {"temperature": 0.5, "top_p": 0.9}
HIGH = {"thinking": "high", "max_tokens": 700}
TURNS = 10
READS = [{"call": "Read", "with": {"file_path": f"{number}.txt"}} for number in range(1, TURNS)]
SCRIPT = {"workers": {"reader": [[*READS, {"say": "all read"}]], "talker": [[{"say": "hello"}]]}}
INSTRUCTIONS = "Read all files. " * 400
CURSOR = Path(__file__).parents[1] / "standins" / "cursor-agent"
SONNET, TERRA, CHAT = "anthropic:claude-sonnet-5-5", "openai:gpt-6.1-terra", "openai-chat:gpt-4.1"


@pytest.fixture
def server(tmp_path: Path) -> Generator[ScriptedServer]:
    with ScriptedServer(write_script(tmp_path, yaml.safe_dump(SCRIPT)), prompt_cache=True) as running:
        yield running


def provider_env(server: ScriptedServer, worker: str = "talker") -> dict[str, str]:
    urls = {"ANTHROPIC_BASE_URL": server.anthropic_url, "OPENAI_BASE_URL": server.openai_url}
    return {**urls, **dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), f"script-{worker}")}


def write_worker(project: Path, name: str, model: str, settings: dict[str, Any] | None = None, **fields: Any) -> Path:
    path = project / "workers" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    definition = {"name": name, "instructions": "Talk.", "model": model, "base": False, **fields}
    path.write_text(yaml.safe_dump({**definition, **({"model_settings": settings} if settings else {})}))
    return path


def last_body(server: ScriptedServer) -> dict[str, Any]:
    return dict(server.requests[-1].body or {})


@pytest.mark.req("X-33")
@pytest.mark.parametrize(
    ("model", "settings", "sent"),
    [
        (
            SONNET,
            {"thinking": "high", "max_tokens": 500, "stop": ["END"], "service_tier": "default"},
            {
                "max_tokens": 500,
                "stop_sequences": ["END"],
                "service_tier": "standard_only",
                "output_config": {"effort": "high"},
                "thinking": {"type": "adaptive"},
            },
        ),
        (TERRA, {"thinking": "low", "max_tokens": 300}, {"max_output_tokens": 300}),
        (
            CHAT,
            {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["END"], "service_tier": "flex"},
            {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["END"], "service_tier": "flex"},
        ),
    ],
)
def test_model_settings_reach_the_provider(
    guild: Guild, project: Path, server: ScriptedServer, model: str, settings: dict[str, Any], sent: dict[str, Any]
) -> None:
    write_worker(project, "talker", model, settings)
    ran = guild("run", "talker", "go", "--json", env=provider_env(server))
    assert ran.code == 0, ran.err
    body = last_body(server)
    assert {name: body.get(name) for name in sent} == sent
    if model == TERRA:
        assert body["reasoning"]["effort"] == "low"


@pytest.mark.req("X-33")
def test_model_settings_are_planned_recorded_and_compared(guild: Guild, project: Path, server: ScriptedServer) -> None:
    path = write_worker(project, "talker", SONNET, {"thinking": "high", "max_tokens": 500})
    assert "thinking high; prompt caching on" in guild("plan", "talker").out.replace("max_tokens 500; ", "")
    planned = guild("plan", "talker", "--json").json["model_settings"]
    assert planned == {"max_tokens": 500, "thinking": "high", "cache": True}
    run = guild("run", "talker", "go", "--json", env=provider_env(server)).json["run"]
    assert guild("replay", run).code == 0
    path.write_text(path.read_text().replace("high", "low"))
    changed = guild("replay", run)
    assert changed.code != 0
    assert "the worker's model settings" in changed.out + changed.err


@pytest.mark.req("X-33")
@pytest.mark.parametrize(
    ("model", "runtime", "settings", "message"),
    [
        (SONNET, "pydantic", {"temperature": 0.2, "seed": 1}, f"{SONNET} cannot apply `temperature`, `seed`"),
        (TERRA, "pydantic", {"stop": ["END"]}, f"{TERRA} cannot apply `stop`"),
        (CHAT, "pydantic", {"thinking": "high"}, f"{CHAT} cannot apply `thinking`"),
        (SONNET, "pydantic", {"service_tier": "flex"}, f"{SONNET} cannot apply `service_tier`"),
        (SONNET, "claude", {"temperature": 0.2}, "Claude Code cannot apply `temperature`"),
        (TERRA, "codex", {"seed": 1}, "Codex CLI cannot apply `seed`"),
        (SONNET, "opencode", {"thinking": "high"}, "OpenCode cannot apply `thinking`"),
        ("cursor:x", "cursor", {"max_tokens": 9}, "Cursor Agent cannot apply `max_tokens`"),
    ],
)
def test_a_setting_that_would_be_ignored_is_rejected_before_the_run(
    guild: Guild,
    project: Path,
    server: ScriptedServer,
    model: str,
    runtime: str,
    settings: dict[str, Any],
    message: str,
) -> None:
    write_worker(project, "talker", model, settings, runtime=runtime)
    ran = guild(
        "run", "talker", "go", env={**provider_env(server), "CURSOR_API_KEY": "k", "GUILDHALL_CURSOR": str(CURSOR)}
    )
    assert ran.code != 0
    assert f"model_settings: {message}" in ran.err
    assert server.requests == []
    if runtime != "pydantic":
        assert f"model_settings: {message}" in guild("check", "talker").err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{temperature: 3}", "model_settings.temperature"),
        ("{thinking: lots}", "model_settings.thinking"),
        ("{effort: high}", "model_settings.effort"),
        ("{stop: END}", "model_settings.stop"),
        ("{service_tier: auto}", "model_settings.service_tier"),
        ("{cache: 1}", "model_settings.cache"),
    ],
)
def test_invalid_settings_are_reported_with_line_and_field(
    guild: Guild, project: Path, settings: str, message: str
) -> None:
    path = project / "workers" / "talker.yaml"
    path.parent.mkdir()
    path.write_text(f"name: talker\ninstructions: Talk.\nmodel: {SONNET}\nmodel_settings: {settings}\n")
    checked = guild("check", "talker")
    assert checked.code != 0
    assert f"talker.yaml:4: {message}" in checked.out + checked.err


def test_an_agent_replaces_single_settings_of_its_worker(guild: Guild, project: Path, server: ScriptedServer) -> None:
    write_worker(project, "talker", SONNET, {"thinking": "high", "max_tokens": 500})
    (project / "team.yaml").write_text(
        "name: team\nagents:\n  talker: {worker: talker, model_settings: {max_tokens: 200}}\nkickoff: '@talker go'\n"
    )
    ran = guild("run", "team.yaml", env=provider_env(server))
    assert ran.code == 0, ran.err
    body = last_body(server)
    assert (body["max_tokens"], body["output_config"]) == (200, {"effort": "high"})


# prompt caching


def read_ten_files(
    guild: Guild, project: Path, server: ScriptedServer, model: str, settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    for number in range(1, TURNS):
        (project / f"{number}.txt").write_text(f"line of file {number}\n" * 40)
    box = {"here": {"path": ".", "mode": "ro"}}
    write_worker(project, "reader", model, settings, instructions=INSTRUCTIONS, tools=["Read"], sandboxes=box)
    ran = guild("run", "reader", "go", "--json", env=provider_env(server, "reader"))
    assert ran.code == 0, ran.err
    (line,) = guild("cost", ran.json["run"], "--json").json["lines"]
    return {**line, "run": ran.json["run"]}


@pytest.mark.req("X-33")
@pytest.mark.parametrize(("model", "marks"), [(SONNET, True), (TERRA, False)])
def test_ten_turns_cost_what_the_cache_promises(
    guild: Guild, project: Path, server: ScriptedServer, model: str, marks: bool
) -> None:
    cached = read_ten_files(guild, project, server, model)
    first, *others = [exchange.body or {} for exchange in server.requests]
    assert len(others) == TURNS - 1
    if marks:
        mark = {"type": "ephemeral", "ttl": "5m"}
        assert [body["cache_control"] for body in (first, *others)] == [mark] * TURNS
        assert first["system"][-1]["cache_control"] == first["tools"][-1]["cache_control"] == mark
    else:
        assert len({body["prompt_cache_key"] for body in (first, *others)}) == 1
    assert all(body["tools"] == first["tools"] for body in others)
    assert cached["turns"] == TURNS
    assert cached["cache_read_tokens"] > 0.8 * cached["input_tokens"]
    plain = cached["input_tokens"] - cached["cache_read_tokens"] - cached["cache_write_tokens"]
    prices = {SONNET: (2.0, 0.1, 2.5, 10.0), TERRA: (1.0, 0.05, 1.25, 5.0)}[model]
    tokens = (plain, cached["cache_read_tokens"], cached["cache_write_tokens"], cached["output_tokens"])
    expected = sum(price * count for price, count in zip(prices, tokens, strict=True)) / 1_000_000
    assert cached["cost_usd"] == pytest.approx(expected)
    assert "cache read" in guild("cost").out


@pytest.mark.req("X-33")
def test_caching_can_be_turned_off_and_the_reservation_covers_the_price_of_writing(
    guild: Guild, project: Path, server: ScriptedServer
) -> None:
    without = read_ten_files(guild, project, server, SONNET, {"cache": False})
    assert "cache_control" not in str([exchange.body for exchange in server.requests])
    assert (without["cache_read_tokens"], without["cache_write_tokens"]) == (0, 0)
    cached = read_ten_files(guild, project, server, SONNET)
    assert cached["cost_usd"] < without["cost_usd"] / 2
    reserved = [entries_of(guild, one["run"], "model_asked")[0]["reserved_usd"] for one in (cached, without)]
    output = 16_384 * 10 / 1_000_000
    assert (reserved[0] - output) / (reserved[1] - output) == pytest.approx(1.25)


def entries_of(guild: Guild, run: str, kind: str) -> list[dict[str, Any]]:
    entries = map(json.loads, guild("log", run, "--json").out.splitlines())
    return [entry["data"] for entry in entries if entry["kind"] == kind]


# programs


@pytest.mark.req("X-33")
@pytest.mark.parametrize(
    ("runtime", "program", "model", "settings", "sent"),
    [
        ("claude", claude_program, SONNET, HIGH, {"output_config.effort": "high", "max_tokens": 700}),
        ("codex", codex_program, TERRA, HIGH, {"reasoning.effort": "high", "max_output_tokens": 700}),
        ("opencode", opencode_program, "openai:gpt-4.1", SAMPLING, SAMPLING),
    ],
)
def test_programs_apply_the_settings_that_they_support(
    guild: Guild,
    project: Path,
    server: ScriptedServer,
    runtime: str,
    program: Callable[[], Path],
    model: str,
    settings: dict[str, Any],
    sent: dict[str, Any],
) -> None:
    write_worker(project, "talker", model, settings, runtime=runtime)
    env = {**provider_env(server), f"GUILDHALL_{runtime.upper()}": str(program())}
    ran = guild("run", "talker", "go", env=env)
    assert ran.code == 0, ran.err
    body = next(exchange.body or {} for exchange in server.requests if not exchange.path.endswith("count_tokens"))
    for path, value in sent.items():
        outer, _, inner = path.partition(".")
        assert (body[outer][inner] if inner else body[outer]) == value
