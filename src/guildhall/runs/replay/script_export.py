"""Script export: converts a recorded run tree to a script with the model's answers and a test for `guild test`.

The test compares the current prompts with the recorded prompts. The script names the parts of the record that it cannot
hold. Reads only the journals. Does not execute the test: `hall.testrun` does.

Invariant: a script is written only if it can be read back.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import yaml
from guildhall.core.errors import Conflict, GuildError, ModelFailed, ScriptExhausted
from guildhall.core.text import is_unicode
from guildhall.core.yaml_writer import dump
from guildhall.models.scripted.source import Script
from guildhall.models.scripted.test_case import TIMED_OUT
from guildhall.runs.assembly.tool_set import base_toolbox
from guildhall.runs.record.entries import (
    Answered,
    Assembly,
    Entry,
    LimitAsked,
    LoopAsked,
    ModelAnswered,
    ModelAsked,
    ModelCallFailed,
    ToolAsked,
    ToolDoubted,
    ToolEnded,
    ToolRefused,
    ToolStarted,
    WorkerCreated,
)
from guildhall.runs.record.journal import Journal, entries_with
from guildhall.runs.replay.normalize import Normalizer, normalized_system_prompt, sent_texts, tool_fingerprints
from guildhall.runtimes.pydantic import OUTPUT_TOOL, arguments_of
from guildhall.tools.executor import BUILT_IN
from guildhall.tools.model import Text, ToolResult
from guildhall.workers.model import SYSTEM_TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydantic_ai.messages import ModelResponse, ToolCallPart

    from guildhall.runs.model import Run

    Tree = Sequence[tuple[Run, Journal]]


_WRITE_TOOLS = frozenset({"sandbox_write_text", "Write", "Edit"})
_MAX_FILE_CHARS = 50_000


def files_before(tree: Sequence[tuple[Run, Journal]]) -> tuple[dict[str, str | None], list[str]]:
    """Return the content of each changed file before the run (None: absent), and the paths of unknown content."""
    contents: dict[str, str | None] = {}
    changed: dict[str, None] = {}
    for run, journal in tree:
        for tool, path, result in _file_calls(run, journal):
            if path not in changed and result.file_before == "absent":
                contents[path] = None
            elif path not in changed and result.file_before == "shown" and len(result.text) <= _MAX_FILE_CHARS:
                contents.setdefault(path, _without_numbers(result.text) if tool == "Read" else result.text)
            if tool in _WRITE_TOOLS:
                changed[path] = None
        for path in _created_files(run, journal):
            contents[path] = changed[path] = None
    known = {path: contents[path] for path in changed if path in contents}
    return known, [path for path in changed if path not in known]


def _file_calls(run: Run, journal: Journal) -> Iterator[tuple[str, str, ToolResult]]:
    """Yield tool, path and result of each successful call that read or wrote a file of the project."""
    root, cwd = run.frame.root, run.frame.cwd
    for end in journal.all(ToolEnded):
        began = journal.last(end.key or "", ToolStarted)
        result = ToolResult.from_dict(end.data.result)
        if began is None or result.is_error:
            continue
        place = _place(began.data.tool, began.data.arguments or {}, journal.assembly, root, cwd)
        if place is not None and (path := _inside(place, root)) is not None:
            yield began.data.tool, path, result


def _created_files(run: Run, journal: Journal) -> Iterator[str]:
    for entry in journal.all(WorkerCreated):
        for file in entry.data.files:
            if (path := _inside(Path(file), run.frame.root)) is not None:
                yield path


def _place(tool: str, arguments: Mapping[str, Any], frozen: Assembly, root: Path, cwd: Path) -> Path | None:
    if tool in {"Read", "Write", "Edit"}:
        return cwd / str(arguments.get("file_path"))
    sandbox = frozen.worker["definition"]["sandboxes"].get(arguments.get("sandbox"))
    if tool in {"sandbox_read_text", "sandbox_write_text"} and sandbox is not None:
        return root / sandbox["path"] / str(arguments.get("path"))
    return None


def _inside(path: Path, root: Path) -> str | None:
    """The path from the top of the project, if it is in it."""
    for top in (str(root), os.path.realpath(root)):
        relative = os.path.relpath(os.path.normpath(path), top)
        if not relative.startswith("..") and relative != ".":
            return relative
    return None


def _without_numbers(text: str) -> str:
    return "".join(line.partition("\t")[2] + "\n" for line in text.split("\n"))


_RETRIED = 3  # failures in a row after which the model door still asks again
_DEEPEST = 30  # levels of arguments that are written as YAML; deeper ones as the JSON text that they were


@dataclass(frozen=True, kw_only=True)
class WorkflowPart:
    """What the script of a workflow has beyond the runs of its agents."""

    fields: Mapping[str, Any]  # of the test, in the place of a worker and its input
    files: Mapping[str, str | None]  # as they were before, absolute
    notes: Sequence[str]  # what is left out
    tools: frozenset[str]  # that a test calls, because they only reach its room
    untestable: str | None  # why `guild test` could not start it, if it could not


def export_script(tree: Tree, home: Path, redact: Callable[[str], str], team: WorkflowPart | None = None) -> str:
    """Return the script of a run, the first of the tree, and of all runs below it. `team`: the run is a workflow."""
    run, journal = tree[0]
    if run.status not in {"completed", "failed"}:
        hints = {"running": f"guild log {run.id} -f", "cancelled": "Make another run."}
        hint = hints.get(run.status, f"Let it end first: guild show {run.id} says how it goes on.")
        raise Conflict(f"the run {run.id} is {run.status}: only one that came to its end is a script", hint=hint)
    root = run.frame.root
    writer = _Writer(tree, Normalizer(root, home, redact, times=team is not None), team)
    data: dict[str, Any] = {}
    if untestable := team.untestable if team else _untestable(run, journal):
        writer.note(f"the test, because {untestable}")
    else:
        data["test"] = writer.case()
    if price := _price(*(tree[1] if team and len(tree) > 1 else tree[0])):
        data["price"] = price
    data["workers"] = writer.workers()
    text = "".join(f"# {line}\n" for line in writer.head()) + dump(data)
    _check(text, run.id)
    return text


def _untestable(run: Run, journal: Journal) -> str | None:
    """Why `guild test` could not start such a run, if it could not."""
    frozen = journal.assembly
    if frozen.worker["scope"] == "given" or frozen.given:
        return "the worker or its toolboxes were Python objects: run it from Python, with this as its model"
    if run.forked_from:
        return "it is a fork: its beginning is that of another run"
    if run.kind == "job":
        return "it did a job: dispatch its task, with this as the worker's model"
    if frozen.converses:
        return "it is a conversation: hold another one, with this as the worker's model"
    if run.kind == "call":
        return "the run made a call of its own and asked no model"
    return None


def _check(text: str, run: str) -> None:
    """What is written must be readable, or nothing is."""
    size = len(text.encode())
    if size > yaml.MAX_BYTES:
        raise Conflict(f"the script of {run} would be {size:,} bytes, and at most {yaml.MAX_BYTES:,} can be read")
    try:
        yaml.validate(Script, yaml.parse(Path(f"{run}.yaml"), text))
    except GuildError as error:
        raise Conflict(f"the run {run} cannot be written as a script: {error.message}") from None


class _Writer:
    """Turns journals into the plain data of a script."""

    def __init__(self, tree: Tree, neutral: Normalizer, team: WorkflowPart | None) -> None:
        self._tree = tree
        self._asking = tree[1:] if team else tree  # the runs that have a model
        self._neutral = neutral
        self._team = team
        self._left_out: dict[str, None] = dict.fromkeys(team.notes if team else ())

    def note(self, what: str) -> None:
        self._left_out[what] = None

    def head(self) -> Iterator[str]:
        run = self._tree[0][0]
        model = f", model {self._neutral.text(run.model)}" if run.model else ""  # a workflow itself has none
        yield f"Recorded from {run.id} on {run.created_at[:10]}{model}."
        yield "`guild test` runs it again, with no key and no network, and shows what is not as it was."
        if self._neutral.redacted:
            yield "Values of secret variables were replaced by their names in brackets."
        if self._neutral.halved:
            self.note("halves of characters, each replaced by a question mark")
        if self._left_out:
            yield f"Left out: {'; '.join(self._left_out)}."

    # the test

    def case(self) -> dict[str, Any]:
        run, journal = self._tree[0]
        request, frozen = run.request, journal.assembly
        text = self._neutral.text
        case: dict[str, Any] = {"worker": text(request.worker), "input": text(request.input)}
        if self._team is not None:
            case = self._neutral.value(dict(self._team.fields))
        if files := request.attachments:
            case["attachments"] = [text(file) for file in files]
        folder = run.frame.cwd
        with suppress(ValueError):
            if (inside := str(folder.relative_to(run.frame.root))) != ".":
                case["folder"] = inside
        if frozen.mode != "ask":
            case["mode"] = frozen.mode
        for limit in ("max_turns", "max_tokens", "max_budget_usd", "budget"):
            if (value := getattr(request, limit)) is not None:
                case[limit] = value
        if files := self._files():
            case["files"] = files
        if replies := list(self._replies()):
            case["answers"] = replies
        case["shown"] = self._shown()
        if run.error is not None and run.error.get("limit") == "timeout":
            self.note("the time that it took: a test is faster, and will not run out of it")
        return {**case, **expected_end(run, self._neutral)}

    def _files(self) -> dict[str, str | None]:
        known, unknown = files_before(self._tree)
        if unknown:
            names = ", ".join(unknown[:5]) + (" ..." if len(unknown) > 5 else "")
            self.note(f"how {names} was before the run changed it; say it under `files`, if it matters")
        root = self._tree[0][0].frame.root
        if self._team is not None:
            known |= {os.path.relpath(path, root): text for path, text in self._team.files.items()}
        return {self._neutral.text(path): text and self._neutral.text(text) for path, text in known.items()}

    def _shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for run, journal in self._asking:
            frozen = journal.assembly
            if frozen.memory:
                self.note("the memory of the worker; a test starts with an empty memory")
            tools = tool_fingerprints(frozen, OUTPUT_TOOL)
            shown.setdefault(run.worker, {"system": normalized_system_prompt(frozen, self._neutral), "tools": tools})
        return shown

    def _replies(self) -> Iterator[dict[str, Any]]:
        """What people answered: run by run, in the order in which they were asked."""
        counted: Counter[str] = Counter()
        for run, journal in self._tree:
            counted[run.worker] += 1
            who: dict[str, Any] = {"worker": run.worker} if run.worker != self._tree[0][0].worker else {}
            if counted[run.worker] > 1:
                who["run"] = counted[run.worker]
            yield from self._replies_in(journal, who)

    def _replies_in(self, journal: Journal, who: dict[str, Any]) -> Iterator[dict[str, Any]]:
        said = {entry.data.ask: entry.data for entry in journal.all(Answered)}
        for entry in journal.entries:
            match entry.data:
                case ToolAsked(tool=tool, ask=ask):
                    reply = {"tool": tool, **who}
                case LimitAsked(limit=limit, ask=ask):
                    reply = {"limit": limit, **who}
                case LoopAsked(ask=ask):
                    reply = {"loop": True, **who}
                case _:
                    continue
            if (answer := said.get(ask)) is not None:
                note = {"note": self._neutral.text(answer.note)} if answer.note else {}
                yield {**reply, "answer": answer.choice, **note}
            elif isinstance(entry.data, LoopAsked) or journal.last(entry.key or "", ToolRefused) is not None:
                yield {**reply, "answer": TIMED_OUT}

    # the answers

    def workers(self) -> dict[str, Any]:
        workers: dict[str, list[Any]] = {}
        for run, journal in self._asking:
            root = run is self._tree[0][0]
            workers.setdefault(run.worker, []).append(list(self._answers(run, journal, root=root)))
        return workers

    def _answers(self, run: Run, journal: Journal, *, root: bool) -> Iterator[dict[str, Any]]:
        from guildhall.runs.record.messages import load_response

        keys = dict.fromkeys(entry.key for entry in journal.all(ModelAsked) if entry.key)
        cut_off = False  # a call of the answer before
        for key in keys:
            answer = journal.last(key, ModelAnswered)
            yield from _failures(entries_with(journal.of(key), ModelCallFailed), answered=answer is not None)
            asked = journal.last(key, ModelAsked)
            if answer is None or asked is None:
                continue
            try:
                response = load_response(answer.data.response)
            except ValueError:
                raise Conflict(f"the answer on record at entry {answer.seq} of {run.id} cannot be read") from None
            sent = sent_texts(asked.data.message, self._neutral)
            known = root and sent == self._neutral.text(run.request.input)  # it stands above, as the input
            yield {**({} if known or cut_off else {"sent": sent}), **self._answer(response, journal, key)}
            cut_off = self._cut_off(journal, key)

    def _cut_off(self, journal: Journal, key: str) -> bool:
        """Whether a call of this answer was cut off: what a person said came of it, no test can say again."""
        tools = [entry.data.tool for entry in journal.all(ToolDoubted) if (entry.key or "").startswith(f"{key}/")]
        for tool in tools:
            self.note(
                f"what the model was told of a call of {self._neutral.text(tool)} that was cut off: a test makes it"
            )
        return bool(tools)

    def _answer(self, response: ModelResponse, journal: Journal, key: str) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        texts: list[str] = []
        calls: list[ToolCallPart] = []
        for part in response.parts:
            if part.part_kind == "text":
                texts.append(part.content)
            elif part.part_kind == "tool-call":
                calls.append(part)
            else:
                self.note(f"{part.part_kind.replace('-', ' ')} of the model")
        if texts or not calls:
            answer["say"] = self._neutral.text("".join(texts))
        output = None
        if calls and calls[-1].tool_name == OUTPUT_TOOL and journal.assembly.output_schema is not None:
            output = self._arguments(calls[-1])
        if isinstance(output, dict):
            calls.pop()
        written = [self._call(call, journal, key) for call in calls]
        if len(written) == 1:
            answer |= written[0]
        elif written:
            answer["calls"] = written
        if isinstance(output, dict):
            answer["output"] = output
        if response.finish_reason == "length":
            answer["cut_off"] = True
        return {**answer, **_usage(response)}

    def _call(self, call: ToolCallPart, journal: Journal, key: str) -> dict[str, Any]:
        written: dict[str, Any] = {"call": self._neutral.text(call.tool_name) or "(no name)"}
        if arguments := self._arguments(call):
            written["with"] = arguments
        result = self._result(call.tool_name, journal, f"{key}/{call.tool_call_id}")
        return {**written, **({"result": result} if result else {})}

    def _arguments(self, call: ToolCallPart) -> dict[str, Any] | str:
        """The arguments as fields; as the text that they were where that is the only exact way."""
        arguments = arguments_of(call)
        if arguments is not None and _writable(dict(arguments)):
            return self._neutral.value(dict(arguments))
        return self._neutral.text(call.args if isinstance(call.args, str) else json.dumps(call.args))

    def _result(self, tool: str, journal: Journal, key: str) -> dict[str, Any] | None:
        """What came of a call that a test is not to make again, or perhaps not: it reaches beyond the project."""
        end = journal.last(key, ToolEnded)
        if end is None or tool in _local_tools() or (self._team and tool in self._team.tools):
            return None
        result = ToolResult.from_dict(end.data.result)
        if not all(isinstance(block, Text) for block in result.content):
            self.note(f"pictures and documents that {tool} gave")
        text = self._neutral.text(result.text)
        return {"text": text, "is_error": True} if result.is_error else {"text": text}


def expected_end(run: Run, neutral: Normalizer) -> dict[str, Any]:
    """How a run ended, as a test compares it."""
    ended: dict[str, Any] = {"status": run.status}
    if run.status == "completed":
        ended["output"] = neutral.value(run.output)
    elif run.error:
        code = run.error["code"]  # a test plays a missing answer as a failure of the provider
        ended["error"] = ModelFailed.code if code == ScriptExhausted.code else code
    return ended


def _local_tools() -> frozenset[str]:
    """Tools that work inside the project and the home alone: a test makes their calls, on copies."""
    reaching = {name for name, capabilities in BUILT_IN.items() if "net" in capabilities}
    base = {tool.name for tool in base_toolbox().tools}
    return frozenset({*BUILT_IN, *SYSTEM_TOOLS, *base} - reaching)


def _failures(failed: Sequence[Entry[ModelCallFailed]], *, answered: bool) -> Iterator[dict[str, Any]]:
    """Failures in the place of an answer: as many as the model door gets over, where an answer came in the end."""
    if answered:
        failed = [entry for entry in failed if entry.data.transient][:_RETRIED]
    for entry in failed[: _RETRIED + 1]:
        status = entry.data.status or 0
        otherwise = 529 if entry.data.transient else 400
        yield {"fail": status if 400 <= status <= 599 else otherwise}


def _usage(response: ModelResponse) -> dict[str, Any]:
    usage = response.usage
    if not (usage.input_tokens or usage.output_tokens):
        return {}
    counted = {"input": usage.input_tokens, "output": usage.output_tokens}
    cached = {"cache_read": usage.cache_read_tokens, "cache_write": usage.cache_write_tokens}
    if sum(cached.values()) <= usage.input_tokens:
        counted |= {name: count for name, count in cached.items() if count}
    return {"usage": counted}


def _writable(value: Any, depth: int = 0) -> bool:
    """Whether YAML can hold the value as it is."""
    if isinstance(value, dict):
        inside = cast("dict[str, Any]", value)
        return depth < _DEEPEST and all(is_unicode(k) and _writable(v, depth + 1) for k, v in inside.items())
    if isinstance(value, list):
        return depth < _DEEPEST and all(_writable(part, depth + 1) for part in cast("list[Any]", value))
    return not isinstance(value, str) or is_unicode(value)


def _price(run: Run, journal: Journal) -> dict[str, float] | None:
    """Dollars for a million tokens, so that limits in dollars can be kept: by the model, else what was paid."""
    from pydantic_ai.usage import RequestUsage

    from guildhall.models.providers import cost, split_name
    from guildhall.models.scripted.source import load_script

    model = journal.assembly.model
    with suppress(GuildError):
        if model.startswith("script:"):
            price = load_script(Path(model.removeprefix("script:"))).price
            return price.model_dump() if price else None
        provider, name = split_name(model)
        asked = cost(provider, name, RequestUsage(input_tokens=1000))
        said = cost(provider, name, RequestUsage(output_tokens=1000))
        if asked is not None and said is not None:
            return {"input": round(asked * 1000, 6), "output": round(said * 1000, 6)}
    tokens = run.usage.input_tokens + run.usage.output_tokens
    if run.usage.cost_usd is None:
        return None
    average = round(run.usage.cost_usd / tokens * 1_000_000, 6) if tokens else 0.0
    return {"input": average, "output": average}
