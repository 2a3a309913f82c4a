"""The loader of workflow files: parses and checks a file, resolves its agents to workers, and checks its trust.

Errors name file, line and field. Also converts a workflow to and from its record, which is sufficient to resume the
workflow after its files have changed. The commands of a setup require trust in the file.
Does not execute commands (`setup.py`). Does not fill in placeholders: it checks their names, and the values come with
the start (`start.py`).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import ids, yaml
from guildhall.core.config import resolve_script_path
from guildhall.core.errors import GuildError, InvalidFile, NotTrusted
from guildhall.core.paths import Home, project_root
from guildhall.core.text import did_you_mean
from guildhall.room import mentions
from guildhall.room.model import ALL
from guildhall.runs.assembly.assembled import from_snapshot, snapshot
from guildhall.runs.plan.model import ExecutedCode
from guildhall.workers.code import Code, CodeFile
from guildhall.workers.definition import Definition as WorkerDefinition
from guildhall.workers.definition import Limits, ToolRule
from guildhall.workers.loader import normalize_fields
from guildhall.workers.model import BUILT_IN_TOOLS, Worker
from guildhall.workers.registry import normalize_model
from guildhall.workflow.definition import OTHER_NAMES, AgentDefinition, Definition
from guildhall.workflow.model import Agent, Names, Workflow, command, unfilled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from guildhall.core.yaml import Location, Source
    from guildhall.workers.code import Trust

    Find = Callable[[str], Worker]  # a worker by its name or file, as the workflow's project sees it


PROMPTS = (".md", ".txt")


def load(path: Path, find: Find) -> Workflow:
    """The workflow in a file, with the workers that its agents are."""
    path = path.parent.resolve() / path.name
    source = yaml.read(path)
    definition = check(source)
    _refuse_nobody(source, definition)
    reader = _Reader(source, definition, find)
    agents = tuple(reader.agent(name, ordinal) for ordinal, name in enumerate(definition.agents))
    return Workflow(definition=definition, path=path, text=source.text, agents=agents)


def _refuse_nobody(source: Source, definition: Definition) -> None:
    """Raises where the kickoff mentions only who is no agent: what is on record may, for it cannot be corrected."""
    found = mentions.find(unfilled(definition.kickoff or ""), definition.agents)
    if found.missed and not found.reached and definition.context.enabled:
        names = ", ".join(f"@{name[:80]}" for name in found.missed[:5])
        hint = did_you_mean(found.missed[0], (*definition.agents, ALL))
        raise source.error(f"it tells nobody: there is no agent {names}", ("kickoff",), hint)


def check(source: Source) -> Definition:
    """What a source says, as far as it can be checked by itself."""
    source = _in_todays_words(source)
    data = cast("object", source.data)
    if isinstance(data, dict) and cast("dict[str, Any]", data).get("name") is None:
        stem = source.path.stem
        if not ids.is_name(stem):
            hint = "Give it a name: `name: review`."
            raise source.error(f"the file's name {stem!r} cannot name a workflow", hint=hint)
        source = replace(source, data={**cast("dict[str, Any]", data), "name": stem})
    definition = yaml.validate(Definition, source)
    for name, agent in definition.agents.items():
        for index, tool in enumerate(agent.tools or ()):
            if tool not in BUILT_IN_TOOLS:
                hint = did_you_mean(tool, BUILT_IN_TOOLS)
                raise source.error(f"there is no built-in tool {tool!r}", ("agents", name, "tools", index), hint)
    _variables(source, definition)
    for text in texts(definition):
        text.check(source)
    return definition


def frozen(workflow: Workflow) -> dict[str, Any]:
    """The workflow as the record keeps it beside the file's text: enough to go on whatever becomes of its files."""
    return {
        "name": workflow.name,
        "path": str(workflow.path),
        "agents": [
            {
                "name": agent.name,
                "prompt": agent.prompt,
                "inline": agent.inline,
                "worker": snapshot(agent.worker),
                "place": str(agent.place) if agent.place else None,
            }
            for agent in workflow.agents
        ],
    }


def thawed(text: str, data: Mapping[str, Any]) -> Workflow:
    """A workflow from the record."""
    path = Path(data["path"])
    definition = check(yaml.parse(path, text)).model_copy(update={"name": data["name"]})
    agents = tuple(
        Agent(
            name=kept["name"],
            ordinal=ordinal,
            worker=from_snapshot(kept["worker"]),
            prompt=kept["prompt"],
            inline=kept["inline"],
            wakeup=definition.agents[kept["name"]].wakeup,
            wakeup_prompt=definition.agents[kept["name"]].wakeup_prompt,
            place=Path(kept["place"]) if kept["place"] else None,
        )
        for ordinal, kept in enumerate(data["agents"])
    )
    return Workflow(definition=definition, path=path, text=text, agents=agents)


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text of the file in which placeholders may stand."""

    location: Location
    text: str
    names: Names
    read_by_model: bool = True
    prompt_of: str | None = None  # the agent whose prompt it is, or whose prompt's file it names

    def check(self, source: Source, where: str | None = None) -> None:
        """Raises where a placeholder of it names nothing."""
        try:
            self.names.check(self.text)
        except InvalidFile as error:
            if where is not None:
                raise InvalidFile(error.message, where=where, hint=error.hint) from None
            raise source.error(error.message, self.location, error.hint) from None


def texts(definition: Definition) -> Iterator[Text]:
    """Every text of the file in which placeholders may stand, with what it may name. Prompts in files are not here."""
    known = Names(params=definition.params, env=definition.env)
    outputs = tuple(step.name for step in definition.setup if step.name)
    before: tuple[str, ...] = ()
    for index, step in enumerate(definition.setup):
        later = tuple(name for name in outputs if name not in before)
        names = replace(known, outputs=before, later=later)
        yield Text(location=("setup", index, "shell"), text=step.shell, names=names, read_by_model=False)
        before = (*before, step.name) if step.name else before
    for field in ("db", "dir", "bind"):
        if (text := getattr(definition.context.config, field)) is not None:
            yield Text(location=("context", "config", field), text=text, names=replace(known, later=outputs))
    known = names_after_setup(definition)
    if definition.kickoff is not None:
        yield Text(location=("kickoff",), text=definition.kickoff, names=known)
    for name, agent in definition.agents.items():
        place: Location = ("agents", name)
        if agent.system_prompt is not None:
            yield Text(location=(*place, "system_prompt"), text=agent.system_prompt, names=known, prompt_of=name)
        if agent.prompt is not None:
            added = agent.prompt.append
            yield Text(location=(*place, "prompt", "append"), text=added, names=known, prompt_of=name)
        if agent.wakeup_prompt is not None:
            yield Text(location=(*place, "wakeup_prompt"), text=agent.wakeup_prompt, names=known)


def names_after_setup(definition: Definition) -> Names:
    """What the texts may name that are used once all steps have run."""
    outputs = tuple(step.name for step in definition.setup if step.name)
    return Names(outputs=outputs, params=definition.params, env=definition.env)


def _variables(source: Source, definition: Definition) -> None:
    """In commands `a-b` and `a_b` would be one variable."""
    for field, names in (("params", [*definition.params]), ("setup", [step.name for step in definition.setup])):
        seen: dict[str, str] = {}
        for name in filter(None, names):
            if (other := seen.setdefault(name.replace("-", "_"), name)) != name:
                message = f"{other!r} and {name!r} are the same variable in a command"
                raise source.error(message, (field,), "Rename one.")


def _in_todays_words(source: Source) -> Source:
    """The source with other names of fields as the usual ones; every line stays where it was."""
    data = cast("object", source.data)
    agents = cast("dict[str, Any]", data).get("agents") if isinstance(data, dict) else None
    if not isinstance(agents, dict):
        return source
    for name, fields in cast("dict[str, Any]", agents).items():
        if isinstance(fields, dict):
            source = normalize_fields(source, ("agents", name), OTHER_NAMES)
    return source


class _Reader:
    """Makes the agents of one file."""

    def __init__(self, source: Source, definition: Definition, find: Find) -> None:
        self._source = _in_todays_words(source)
        self._definition = definition
        self._find = find
        self._folder = source.path.parent

    def agent(self, name: str, ordinal: int) -> Agent:
        fields = self._definition.agents[name]
        inline = fields.worker is None
        if fields.system_prompt is not None:
            prompt = self._prompt(fields.system_prompt, ("agents", name, "system_prompt"))
        else:
            prompt = self._prompt(fields.prompt.append, ("agents", name, "prompt", "append")) if fields.prompt else ""
        worker = self._inline(name, fields, prompt) if inline else self._referenced(name, fields)
        return Agent(
            name=name,
            ordinal=ordinal,
            worker=worker,
            prompt=prompt,
            inline=inline,
            wakeup=fields.wakeup,
            wakeup_prompt=fields.wakeup_prompt,
        )

    def _inline(self, name: str, fields: AgentDefinition, prompt: str) -> Worker:
        definition = WorkerDefinition(
            name=name,
            description=fields.description,
            model=self._model(fields),
            runtime=fields.runtime or "pydantic",
            tools=fields.tools or (),
            tool_rules=fields.tool_rules,
            limits=_limits(fields, Limits()),
        )
        return Worker(
            definition=definition,
            instructions=prompt,
            scope="workflow",
            digest=ids.fingerprint([definition.model_dump(mode="json"), prompt]),
            path=self._source.path,
            workdir=self._workdir(name, fields) or self._folder,
        )

    def _referenced(self, name: str, fields: AgentDefinition) -> Worker:
        """A worker with its own file: it keeps what it has, and the seat takes away or chooses."""
        place: Location = ("agents", name)
        try:
            worker = self._find(fields.worker or "")
        except GuildError as error:
            where = f"{error.where}: " if error.where else ""
            raise self._source.error(f"{where}{error.message}", (*place, "worker"), error.hint) from None
        own = worker.definition
        for index, tool in enumerate(fields.tools or ()):
            if tool not in own.tools:
                message = f"the worker {fields.worker} has no tool {tool!r}, and a seat gives it none"
                hint = did_you_mean(tool, own.tools) or f"Declare it in {worker.place}."
                raise self._source.error(message, (*place, "tools", index), hint)
        changes: dict[str, Any] = {
            "name": name,
            "description": fields.description or own.description,
            "model": self._model(fields) or own.model,
            "runtime": fields.runtime or own.runtime,
            "tools": own.tools if fields.tools is None else fields.tools,
            "tool_rules": _tighter(own.tool_rules, fields.tool_rules),
            "limits": _limits(fields, own.limits),
        }
        return replace(worker, definition=own.model_copy(update=changes), workdir=self._workdir(name, fields))

    def _model(self, fields: AgentDefinition) -> str | None:
        """The model, with a script looked for beside this file."""
        return resolve_script_path(normalize_model(fields.model), self._folder) if fields.model else None

    def _workdir(self, name: str, fields: AgentDefinition) -> Path | None:
        if fields.workdir is None:
            return None
        location: Location = ("agents", name, "workdir")
        try:
            path = (self._folder / Path(fields.workdir).expanduser()).resolve()
            is_folder = path.is_dir()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name too long, ~nobody
            raise self._source.error(f"{fields.workdir} cannot be used: {error}", location) from None
        if not is_folder:
            raise self._source.error(f"there is no folder {path}", location, "Make it, or correct the path.")
        return path

    def _prompt(self, text: str, location: Location) -> str:
        """The text, or that of the file it names."""
        path = self._file(text)
        if path is None:
            if not text.strip():
                raise self._source.error("there is nothing in it", location)
            return text
        if not path.exists():
            near = {other.name for other in path.parent.glob("*") if other.suffix in PROMPTS}
            hint = (
                did_you_mean(path.name, near) or "Make it, or correct the path: it starts at the folder of this file."
            )
            raise self._source.error(f"there is no file {path}", location, hint)
        try:
            inside = path.resolve().is_relative_to(project_root(self._folder).resolve())
        except (OSError, RuntimeError) as error:
            raise self._source.error(f"{path} cannot be read: {error}", location) from None
        if not inside:
            hint = "Put a copy into the project."
            raise self._source.error(f"{path} lies outside the project, and is not read", location, hint)
        said = yaml.read_text(path)
        if not said.strip() or "\0" in said:
            raise InvalidFile("the prompt is empty, or not text", where=str(path))
        Text(location=location, text=said, names=names_after_setup(self._definition)).check(self._source, str(path))
        return said

    def _file(self, text: str) -> Path | None:
        """The file that a text names: one line that ends in .md or .txt, and no sentence that happens to."""
        name = text.strip()
        if "\n" in name or not name.endswith(PROMPTS) or len(name) > 1000:
            return None
        try:
            path = self._folder / Path(name).expanduser()
            return path if path.exists() or not any(map(str.isspace, name)) else None
        except (OSError, RuntimeError, ValueError):
            return None


def _limits(fields: AgentDefinition, own: Limits) -> Limits:
    """A seat's limits, where it has some."""
    named = ("max_turns", "max_budget_usd", "timeout")
    return own.model_copy(update={name: getattr(fields, name) for name in named if getattr(fields, name) is not None})


def _tighter(own: Mapping[str, ToolRule], seat: Mapping[str, ToolRule]) -> dict[str, ToolRule]:
    """Both sets of rules at once: where they speak of the same, what either forbids or asks for holds."""
    rules = dict(own)
    for name, rule in seat.items():
        mine = rules.get(name, rule)
        times = [one.timeout for one in (mine, rule) if one.timeout is not None]
        rules[name] = ToolRule(
            name=name,
            allowed=mine.allowed and rule.allowed,
            approval_required=mine.approval_required or rule.approval_required,
            timeout=min(times, default=None),
            description=rule.description or mine.description,
        )
    return rules


def commands(definition: Definition) -> tuple[str, ...]:
    """What its setup would run, as a shell would read it."""
    return tuple(command(step.shell) for step in definition.setup)


def setup_code(workflow: Workflow, home: Home) -> Code | None:
    """Return the file as code that is executed, or None if it has no setup."""
    if not workflow.definition.setup:
        return None
    root, path = project_root(workflow.folder).resolve(), workflow.path.resolve()
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    file = CodeFile(path=path, display_path=shown, content=workflow.text.encode())
    return Code(kind="workflow", name=shown, root=root, files=(file,), is_own=root == home.path.resolve())


def executed(workflow: Workflow, trust: Trust, home: Home) -> ExecutedCode | None:
    """The setup, and how the file stands; None: it has none."""
    if (code := setup_code(workflow, home)) is None:
        return None
    return ExecutedCode(
        kind=code.kind,
        name=code.name,
        own=code.is_own,
        trusted=trust.is_trusted(code),
        files=trust.files(code),
        commands=commands(workflow.definition),
    )


def demand_trust(workflow: Workflow, trust: Trust, home: Home) -> None:
    """Raises NotTrusted where the setup would run and the file is not trusted as it is."""
    code = setup_code(workflow, home)
    if code is None or trust.is_trusted(code):
        return
    would = [one.strip().partition("\n")[0] for one in commands(workflow.definition)]
    more = f" and {len(would) - 5} more" if len(would) > 5 else ""
    lines = "".join(f"\n  {line[:100]!r}" for line in would[:5])
    raise NotTrusted(
        f"setup: its commands are not trusted as they are ({trust.files(code)[0].state_text}):{lines}{more}",
        where=workflow.place,
        hint=f"Look at it, then: guild trust {shlex.quote(workflow.place)}",
    )
