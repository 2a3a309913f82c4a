"""The loader of workflow files: parses and checks a file, resolves its agents to workers, and checks its trust.

Errors name file, line and field. The record of a workflow is sufficient to resume it after its files have changed.
Does not execute commands (`setup_commands.py`) or compute the values of placeholders (`start_values.py`).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import ids, yaml
from guildhall.core.config import resolve_script_path
from guildhall.core.errors import GuildError, InvalidFile, NotTrusted
from guildhall.core.paths import Home, project_root
from guildhall.core.text_checks import did_you_mean
from guildhall.room import mentions
from guildhall.room.model import ALL
from guildhall.runs.assembly.assembled import from_snapshot, snapshot
from guildhall.runs.plan.model import ExecutedCode
from guildhall.workers.code_trust import Code, CodeFile
from guildhall.workers.definition import Definition as WorkerDefinition
from guildhall.workers.definition import Limits, ModelSettings, ToolRule
from guildhall.workers.loader import move_lines, normalize_fields, unknown_names
from guildhall.workers.model import Worker
from guildhall.workers.registry import normalize_model
from guildhall.workflow.definition import FIELD_ALIASES, NO_OWNER, AgentDefinition, Definition
from guildhall.workflow.model import Agent, Workflow
from guildhall.workflow.placeholders import Names, quote_placeholders, shell_command

if TYPE_CHECKING:
    from guildhall.core.yaml import Location, Source
    from guildhall.workers.code_trust import Trust

    Find = Callable[[str], Worker]  # returns a worker by its name or file

PROMPT_SUFFIXES = (".md", ".txt")


def load(path: Path, find: Find) -> Workflow:
    """Load a workflow file, and resolve its agents to workers with `find`."""
    path = path.parent.resolve() / path.name
    source = yaml.read(path)
    definition = parse_definition(source)
    _check_kickoff(source, definition)
    loader = _AgentLoader(source, definition, find)
    agents = tuple(map(loader.load_agent, definition.agents))
    return Workflow(definition=definition, path=path, text=source.text, agents=agents)


def _check_kickoff(source: Source, definition: Definition) -> None:
    """Raise InvalidFile if the kickoff mentions only unknown agents. Recorded workflows are not checked."""
    mentioned = mentions.find(quote_placeholders(definition.kickoff or ""), definition.agents)
    if mentioned.missed and not mentioned.reached and definition.context.enabled:
        names = ", ".join(f"@{name[:80]}" for name in mentioned.missed[:5])
        hint = did_you_mean(mentioned.missed[0], (*definition.agents, ALL))
        raise source.error(f"unknown agent {names}", ("kickoff",), hint)


def parse_definition(source: Source) -> Definition:
    """Return the checked definition of a source, without its workers."""
    source = _resolve_aliases(source)
    data = cast("object", source.data)
    if isinstance(data, dict) and cast("dict[str, Any]", data).get("name") is None:
        stem = source.path.stem
        if not ids.is_name(stem):
            hint = "Set a name, such as `name: review`."
            raise source.error(f"invalid workflow name {stem!r} (from the file name)", hint=hint)
        source = replace(source, data={**cast("dict[str, Any]", data), "name": stem})
    agents = (
        cast("dict[str, Any]", source.data).get("agents") if isinstance(cast("object", source.data), dict) else None
    )
    names = cast("dict[str, Any]", agents) if isinstance(agents, dict) else {}
    unknown = (found for name in names for found in unknown_names(source, ("agents", name)))
    definition = yaml.validate(Definition, source, further=unknown)
    _check_names(source, definition)
    for text in placeholder_texts(definition):
        text.check(source)
    return definition


def to_record(workflow: Workflow) -> dict[str, Any]:
    """Return the record of a workflow. With the text of the file, `from_record` restores the workflow."""
    return {
        "name": workflow.name,
        "path": str(workflow.path),
        "agents": [
            {
                "name": agent.name,
                "prompt": agent.prompt,
                "inline": agent.is_inline,
                "worker": snapshot(agent.worker),
                "place": str(agent.cwd) if agent.cwd else None,
            }
            for agent in workflow.agents
        ],
    }


def from_record(text: str, data: Mapping[str, Any]) -> Workflow:
    """Return a workflow from its text and its record."""
    path = Path(data["path"])
    definition = parse_definition(yaml.parse(path, text)).model_copy(update={"name": data["name"]})
    agents = tuple(
        Agent(
            name=record["name"],
            worker=from_snapshot(record["worker"]),
            prompt=record["prompt"],
            is_inline=record["inline"],
            wakeup=definition.agents[record["name"]].wakeup,
            wakeup_prompt=definition.agents[record["name"]].wakeup_prompt,
            cwd=Path(record["place"]) if record["place"] else None,
        )
        for record in data["agents"]
    )
    return Workflow(definition=definition, path=path, text=text, agents=agents)


@dataclass(frozen=True, kw_only=True)
class PlaceholderText:
    """A text of the file that may contain placeholders."""

    location: Location
    text: str
    names: Names
    read_by_model: bool = True
    prompt_of: str | None = None  # the agent, if the text is its prompt or names the file of its prompt

    def check(self, source: Source, where: str | None = None) -> None:
        """Raise InvalidFile if a placeholder has an unknown name."""
        try:
            self.names.check(self.text)
        except InvalidFile as error:
            if where is not None:
                raise InvalidFile(error.message, where=where, hint=error.hint) from None
            raise source.error(error.message, self.location, error.hint) from None


def placeholder_texts(definition: Definition) -> Iterator[PlaceholderText]:
    """Yield every text of the file that may contain placeholders, except prompts in separate files."""
    known = Names(params=definition.params, env=definition.env)
    outputs = tuple(step.name for step in definition.setup if step.name)
    earlier: tuple[str, ...] = ()
    for index, step in enumerate(definition.setup):
        later = tuple(name for name in outputs if name not in earlier)
        names = replace(known, outputs=earlier, later_outputs=later)
        yield PlaceholderText(location=("setup", index, "shell"), text=step.shell, names=names, read_by_model=False)
        earlier = (*earlier, step.name) if step.name else earlier
    for field in ("db", "dir", "bind"):
        if (text := getattr(definition.context.config, field)) is not None:
            names = replace(known, later_outputs=outputs)
            yield PlaceholderText(location=("context", "config", field), text=text, names=names)
    known = names_after_setup(definition)
    texts: list[tuple[Location, str | None, str | None]] = [(("kickoff",), definition.kickoff, None)]
    for name, agent in definition.agents.items():
        texts.append((("agents", name, "system_prompt"), agent.system_prompt, name))
        texts.append((("agents", name, "prompt", "append"), agent.prompt.append if agent.prompt else None, name))
        texts.append((("agents", name, "wakeup_prompt"), agent.wakeup_prompt, None))
    for location, text, prompt_of in texts:
        if text is not None:
            yield PlaceholderText(location=location, text=text, names=known, prompt_of=prompt_of)


def names_after_setup(definition: Definition) -> Names:
    """Return the names for texts that are used after the last setup step."""
    outputs = tuple(step.name for step in definition.setup if step.name)
    return Names(outputs=outputs, params=definition.params, env=definition.env)


def _check_names(source: Source, definition: Definition) -> None:
    """Raise InvalidFile for an unknown document owner, and for names of outputs and params that are used twice."""
    owner = definition.context.document_owner
    if owner not in (None, NO_OWNER, *definition.agents):
        message = f"unknown agent {yaml.format_value(owner)} (use {', '.join(definition.agents)} or none)"
        raise source.error(message, ("context", "documentOwner"))
    names = [step.name for step in definition.setup]
    for index, name in enumerate(names):
        if name is not None and name in names[:index]:
            message = f"duplicate output name {yaml.format_value(name)}"
            raise source.error(message, ("setup", index, "as"), "Rename one of the outputs.")
    _check_variables(source, definition)


def _check_variables(source: Source, definition: Definition) -> None:
    """Raise InvalidFile if two names, such as `a-b` and `a_b`, map to the same environment variable."""
    for field, names in (("params", [*definition.params]), ("setup", [step.name for step in definition.setup])):
        seen: dict[str, str] = {}
        for name in filter(None, names):
            if (other := seen.setdefault(name.replace("-", "_"), name)) != name:
                message = f"{other!r} and {name!r} map to the same environment variable"
                raise source.error(message, (field,), "Rename one of them.")


def _resolve_aliases(source: Source) -> Source:
    """Return the source with aliases of fields replaced by the names of the fields. Line numbers do not change."""
    data = cast("object", source.data)
    agents: object = cast("dict[str, Any]", data).get("agents") if isinstance(data, dict) else None
    if isinstance(agents, list):
        source = _name_agents(source, cast("list[object]", agents))
        agents = source.at(("agents",))
    if not isinstance(agents, dict):
        return source
    if not agents:
        raise source.error("define at least one agent", ("agents",))
    for name, fields in cast("dict[str, Any]", agents).items():
        file: object = cast("dict[str, Any]", fields).get("system_prompt_file") if isinstance(fields, dict) else None
        if isinstance(file, str) and not file.endswith(PROMPT_SUFFIXES):
            message = f"invalid prompt file {yaml.format_value(file)}: its name must end in .md or .txt"
            raise source.error(message, ("agents", name, "system_prompt_file"))
        if isinstance(fields, dict):
            source = normalize_fields(source, ("agents", name), FIELD_ALIASES)
    return source


def _name_agents(source: Source, agents: list[object]) -> Source:
    """Return the source with a list of agents as a mapping. An agent that is only a name is a worker with a file."""
    named: dict[str, Any] = {}
    lines = dict(source.lines)
    for index, agent in enumerate(agents):
        fields = {"worker": agent} if isinstance(agent, str) else agent
        rest = dict(cast("dict[str, Any]", fields)) if isinstance(fields, dict) else {}
        name = rest.pop("name", None) or rest.get("ref") or rest.get("worker")
        if not isinstance(name, str) or name in named:
            raise source.error("in a list, each agent needs a `name:` of its own", ("agents", index))
        named[name] = rest
        move_lines(lines, ("agents", index), ("agents", name))
    return replace(source, data={**source.data, "agents": named}, lines=lines)


class _AgentLoader:
    """Builds the agents of one file."""

    def __init__(self, source: Source, definition: Definition, find: Find) -> None:
        self._source = _resolve_aliases(source)
        self._definition = definition
        self._find = find
        self._folder = source.path.parent

    def load_agent(self, name: str) -> Agent:
        fields = self._definition.agents[name]
        is_inline = fields.worker is None
        prompt = ""
        if fields.system_prompt is not None:
            prompt = self._load_prompt(fields.system_prompt, ("agents", name, "system_prompt"))
        elif fields.prompt is not None:
            prompt = self._load_prompt(fields.prompt.append, ("agents", name, "prompt", "append"))
        worker = self._create_worker(name, fields, prompt) if is_inline else self._find_worker(name, fields)
        return Agent(
            name=name,
            worker=worker,
            prompt=prompt,
            is_inline=is_inline,
            wakeup=fields.wakeup,
            wakeup_prompt=fields.wakeup_prompt,
        )

    def _create_worker(self, name: str, fields: AgentDefinition, prompt: str) -> Worker:
        """Return the worker of an agent that the workflow file defines."""
        definition = WorkerDefinition(
            name=name,
            description=fields.description,
            model=self._model(fields),
            model_settings=fields.model_settings or ModelSettings(),
            runtime=fields.runtime or "pydantic",
            tools=fields.tools or (),
            tool_rules=fields.tool_rules,
            limits=_merge_limits(fields, Limits()),
        )
        return Worker(
            definition=definition,
            instructions=prompt,
            scope="workflow",
            digest=ids.fingerprint([definition.model_dump(mode="json"), prompt]),
            path=self._source.path,
            workdir=self._workdir(name, fields) or self._folder,
        )

    def _find_worker(self, name: str, fields: AgentDefinition) -> Worker:
        """Return the worker that an agent names, with the tools, model and limits of the workflow file."""
        location: Location = ("agents", name)
        try:
            worker = self._find(fields.worker or "")
        except GuildError as error:
            where = f"{error.where}: " if error.where else ""
            raise self._source.error(f"{where}{error.message}", (*location, "worker"), error.hint) from None
        own = worker.definition
        for index, tool in enumerate(fields.tools or ()):
            if tool not in own.tools:
                message = f"the worker {fields.worker} has no tool {tool!r}"
                hint = did_you_mean(tool, own.tools) or f"Declare it in {worker.place}."
                raise self._source.error(message, (*location, "tools", index), hint)
        changes: dict[str, Any] = {
            "name": name,
            "description": fields.description or own.description,
            "model": self._model(fields) or own.model,
            "model_settings": _merge_settings(own.model_settings, fields.model_settings),
            "runtime": fields.runtime or own.runtime,
            "tools": own.tools if fields.tools is None else fields.tools,
            "tool_rules": _merge_rules(own.tool_rules, fields.tool_rules),
            "limits": _merge_limits(fields, own.limits),
        }
        asking = [rule for rule, value in fields.tool_rules.items() if value.approval_required]
        return replace(
            worker,
            definition=own.model_copy(update=changes),
            workdir=self._workdir(name, fields),
            rule_files={**worker.rule_files, **dict.fromkeys(asking, str(self._source.path))},
        )

    def _model(self, fields: AgentDefinition) -> str | None:
        """Return the model of an agent. The path of a script starts at the folder of this file."""
        return resolve_script_path(normalize_model(fields.model), self._folder) if fields.model else None

    def _workdir(self, name: str, fields: AgentDefinition) -> Path | None:
        if fields.workdir is None:
            return None
        location: Location = ("agents", name, "workdir")
        try:
            path = (self._folder / Path(fields.workdir).expanduser()).resolve()
            is_folder = path.is_dir()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a long name, an unknown ~user
            message = f"invalid workdir {fields.workdir}: {error}"
            raise self._source.error(message, location, "Correct the path.") from None
        if not is_folder:
            raise self._source.error(f"folder not found: {path}", location, "Create it, or correct the path.")
        return path

    def _load_prompt(self, text: str, location: Location) -> str:
        """Return the text, or the content of the file that it names."""
        path = self._find_prompt_file(text)
        if path is None:
            if not text.strip():
                raise self._source.error("invalid prompt: empty", location, "Write a text, or the path of a file.")
            return text
        if not path.exists():
            neighbours = {file.name for file in path.parent.glob("*") if file.suffix in PROMPT_SUFFIXES}
            hint = "Create it, or correct the path, which starts at the folder of this file."
            raise self._source.error(f"file not found: {path}", location, did_you_mean(path.name, neighbours) or hint)
        try:
            is_inside = path.resolve().is_relative_to(project_root(self._folder).resolve())
        except (OSError, RuntimeError) as error:
            raise self._source.error(f"cannot read {path}: {error}", location) from None
        if not is_inside:
            message = f"invalid prompt file {path}: outside of the project"
            raise self._source.error(message, location, "Copy it into the project.")
        content = yaml.read_text(path)
        if not content.strip() or "\0" in content:
            raise InvalidFile("invalid prompt: empty or not text", where=str(path), hint="Write a text in UTF-8.")
        placeholders = PlaceholderText(location=location, text=content, names=names_after_setup(self._definition))
        placeholders.check(self._source, str(path))
        return content

    def _find_prompt_file(self, text: str) -> Path | None:
        """Return the path of the prompt file that a text names, or None if the text is the prompt itself."""
        name = text.strip()
        if "\n" in name or not name.endswith(PROMPT_SUFFIXES) or len(name) > 1000:
            return None
        try:
            path = self._folder / Path(name).expanduser()
            return path if path.exists() or not any(map(str.isspace, name)) else None
        except (OSError, RuntimeError, ValueError):
            return None


def _merge_settings(own: ModelSettings, replacing: ModelSettings | None) -> ModelSettings:
    """Return the model settings of a worker. Settings in the workflow file replace them one by one."""
    given = replacing.model_fields_set if replacing else ()
    return own.model_copy(update={name: getattr(replacing, name) for name in given})


def _merge_limits(fields: AgentDefinition, own: Limits) -> Limits:
    """Return the limits of an agent. Limits in the workflow file replace the limits of the worker."""
    named = ("max_turns", "max_budget_usd", "timeout")
    return own.model_copy(update={name: getattr(fields, name) for name in named if getattr(fields, name) is not None})


def _merge_rules(own: Mapping[str, ToolRule], added: Mapping[str, ToolRule]) -> dict[str, ToolRule]:
    """Return both sets of rules. If they name the same tool or capability, the stricter value holds."""
    rules = dict(own)
    for name, rule in added.items():
        own_rule = rules.get(name, rule)
        timeouts = [timeout for timeout in (own_rule.timeout, rule.timeout) if timeout is not None]
        rules[name] = ToolRule(
            name=name,
            allowed=own_rule.allowed and rule.allowed,
            approval_required=own_rule.approval_required or rule.approval_required,
            timeout=min(timeouts, default=None),
            description=rule.description or own_rule.description,
        )
    return rules


def setup_commands(definition: Definition) -> tuple[str, ...]:
    """Return the setup commands as the shell reads them."""
    return tuple(shell_command(step.shell) for step in definition.setup)


def setup_code(workflow: Workflow, home: Home) -> Code | None:
    """Return the file as executed code, or None if it has no setup."""
    if not workflow.definition.setup:
        return None
    root, path = project_root(workflow.folder).resolve(), workflow.path.resolve()
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    file = CodeFile(path=path, display_path=shown, content=workflow.text.encode())
    return Code(kind="workflow", name=shown, root=root, files=(file,), is_own=root == home.path.resolve())


def setup_status(workflow: Workflow, trust: Trust, home: Home) -> ExecutedCode | None:
    """Return the setup commands with the trust of the file, or None if it has no setup."""
    if (code := setup_code(workflow, home)) is None:
        return None
    return ExecutedCode(
        kind=code.kind,
        name=code.name,
        own=code.is_own,
        trusted=trust.is_trusted(code),
        files=trust.files(code),
        commands=setup_commands(workflow.definition),
    )


def check_trust(workflow: Workflow, trust: Trust, home: Home) -> None:
    """Raise NotTrusted if the file has setup commands and is not trusted in its current version."""
    code = setup_code(workflow, home)
    if code is None or trust.is_trusted(code):
        return
    first_lines = [command.strip().partition("\n")[0] for command in setup_commands(workflow.definition)]
    more = f" and {len(first_lines) - 5} more" if len(first_lines) > 5 else ""
    lines = "".join(f"\n  {line[:100]!r}" for line in first_lines[:5])
    raise NotTrusted(
        f"setup has commands that you have not trusted ({trust.files(code)[0].state_text}):{lines}{more}",
        where=workflow.place,
        hint=f"Review and trust the commands: guild trust {shlex.quote(workflow.place)}",
    )
