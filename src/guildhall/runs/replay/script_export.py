"""Script export: converts a recorded run tree to a script with the model's answers and a test for `guild test`.

The test compares the current prompts with the recorded prompts. A comment lists the parts of the record that a script
cannot hold. Reads only the journals. Does not execute the test: `hall.testrun` does.

Invariant: a script is written only if it can be read back.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import yaml
from guildhall.core.errors import Conflict, GuildError, ModelFailed, ScriptExhausted
from guildhall.core.text_checks import is_unicode
from guildhall.core.yaml_writer import dump
from guildhall.models.scripted.source import Script
from guildhall.models.scripted.test_section import TIMED_OUT
from guildhall.runs.assembly.memory import READ_TOOLS
from guildhall.runs.assembly.tools_and_folders import BASE_TOOLS
from guildhall.runs.execution.repeated_calls import without_repeat_note
from guildhall.runs.record import entries
from guildhall.runs.record.journal import Journal, entries_with
from guildhall.runs.replay.portable_text import Normalizer, normalized_system_prompt, sent_texts, tool_fingerprints
from guildhall.runtimes.pydantic import OUTPUT_TOOL, call_arguments
from guildhall.tools.call_router import BUILT_IN
from guildhall.tools.model import Text, ToolResult
from guildhall.workers.model import SYSTEM_TOOLS

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse, ToolCallPart

    from guildhall.runs.model import Run
    from guildhall.runs.record.entries import Assembly, Entry

    Tree = Sequence[tuple[Run, Journal]]


_WRITE_TOOLS = frozenset({"sandbox_write_text", "Write", "Edit"})
_MAX_FILE_CHARS = 50_000
_MAX_RETRIES = 3  # of the model door
_MAX_DEPTH = 30  # deeper arguments are written as JSON text instead of YAML


def files_before(tree: Tree) -> tuple[dict[str, str | None], list[str]]:
    """Return the content of each changed file before the run (None: absent), and the paths of unknown content."""
    contents: dict[str, str | None] = {}
    changed: dict[str, None] = {}
    for run, journal in tree:
        for tool, path, result in _file_calls(run, journal):
            if path not in changed and result.file_before == "absent":
                contents[path] = None
            elif path not in changed and result.file_before == "shown" and len(result.text) <= _MAX_FILE_CHARS:
                contents.setdefault(path, result.text)
            if tool in _WRITE_TOOLS:
                changed[path] = None
        created = (file for entry in journal.all(entries.WorkerCreated) for file in entry.data.files)
        for path in filter(None, (_relative_path(Path(file), run.frame.root) for file in created)):
            contents[path] = changed[path] = None
    known = {path: contents[path] for path in changed if path in contents}
    return known, [path for path in changed if path not in known]


def _file_calls(run: Run, journal: Journal) -> Iterator[tuple[str, str, ToolResult]]:
    """Yield tool, path and result of each successful call that read or wrote a file of the project."""
    root, cwd = run.frame.root, run.frame.cwd
    for end in journal.all(entries.ToolEnded):
        began = journal.last(end.key or "", entries.ToolStarted)
        result = ToolResult.from_dict(end.data.result)
        if began is None or result.is_error:
            continue
        file = _file_of_call(began.data.tool, began.data.arguments or {}, journal.assembly, root, cwd)
        if file is not None and (path := _relative_path(file, root)) is not None:
            yield began.data.tool, path, result


def _file_of_call(tool: str, arguments: Mapping[str, Any], frozen: Assembly, root: Path, cwd: Path) -> Path | None:
    if tool in {"Read", "Write", "Edit"}:
        return cwd / str(arguments.get("file_path"))
    if tool in {"sandbox_read_text", "sandbox_write_text"}:
        shown = next(item for item in frozen.tools if item["name"] == tool)["input_schema"]["properties"]["sandbox"]
        name = arguments.get("sandbox") or shown.get("default")
        if (sandbox := frozen.worker["definition"]["sandboxes"].get(name)) is None:
            return None
        return root / sandbox["path"] / str(arguments.get("path"))
    return None


def _relative_path(path: Path, root: Path) -> str | None:
    """Return a path relative to the project, or None if it is outside."""
    for top in (str(root), os.path.realpath(root)):
        relative = os.path.relpath(os.path.normpath(path), top)
        if not relative.startswith("..") and relative != ".":
            return relative
    return None


@dataclass(frozen=True, kw_only=True)
class WorkflowPart:
    """The part of a workflow's script that is not in the runs of its agents."""

    fields: Mapping[str, Any]  # of the test, instead of a worker and its input
    files: Mapping[str, str | None]  # content before the run, by absolute path
    notes: Sequence[str]  # the parts that the script leaves out
    tools: frozenset[str]  # the tools that only change the room, so a test can call them
    untestable_reason: str | None  # why `guild test` cannot start the workflow


def export_script(tree: Tree, home: Path, redact: Callable[[str], str], team: WorkflowPart | None = None) -> str:
    """Return the script of the first run of a tree and of its child runs. `team`: the run is a workflow."""
    run, journal = tree[0]
    if run.status not in {"completed", "failed"}:
        hints = {
            "running": f"Wait for its end: guild log {run.id} -f",
            "waiting": f"Show the open ask: guild show {run.id}",
            "cancelled": "Start another run.",
        }
        hint = hints.get(run.status, f"Resume it: guild resume {run.id}")
        raise Conflict(f"cannot export {run.id}: the run is {run.status}, not completed or failed", hint=hint)
    writer = _Writer(tree, Normalizer(run.frame.root, home, redact, times=team is not None), team)
    data: dict[str, Any] = {}
    if reason := team.untestable_reason if team else _untestable_reason(run, journal):
        writer.note(f"the test, because {reason}")
    else:
        data["test"] = writer.test_section()
    if price := _price(*(tree[1] if team and len(tree) > 1 else tree[0])):
        data["price"] = price
    data["workers"] = writer.workers()
    text = "".join(f"# {line}\n" for line in writer.header()) + dump(data)
    _check_readable(text, run.id)
    return text


def _untestable_reason(run: Run, journal: Journal) -> str | None:
    """Return why `guild test` cannot start such a run, or None if it can."""
    frozen = journal.assembly
    if frozen.given:
        return "its toolboxes were Python objects (run it from Python, with this script as its model)"
    if run.forked_from:
        return "the run is a fork and starts with entries of another run"
    if run.kind == "job":
        return "the run belongs to a job (dispatch its task, with this script as the worker's model)"
    if frozen.converses:
        return "the run is a conversation (start another, with this script as the worker's model)"
    if run.kind == "call":
        return "the run made one tool call and called no model"
    return None


def _check_readable(text: str, run_id: str) -> None:
    """Raise Conflict if the script could not be read back."""
    size = len(text.encode())
    if size > yaml.MAX_BYTES:
        message = f"cannot export {run_id}: the script has {size:,} bytes (maximum: {yaml.MAX_BYTES:,})"
        raise Conflict(message, hint="Export a shorter run.")
    try:
        yaml.validate(Script, yaml.parse(Path(f"{run_id}.yaml"), text))
    except GuildError as error:
        raise Conflict(f"cannot export {run_id}: {error.message}") from None


class _Writer:
    """Converts journals to the plain data of a script."""

    def __init__(self, tree: Tree, normalizer: Normalizer, team: WorkflowPart | None) -> None:
        self._tree = tree
        self._model_runs = tree[1:] if team else tree
        self._normalizer = normalizer
        self._team = team
        self._omissions: dict[str, None] = dict.fromkeys(team.notes if team else ())

    def note(self, omission: str) -> None:
        self._omissions[omission] = None

    def header(self) -> Iterator[str]:
        run = self._tree[0][0]
        model = f", model {self._normalizer.text(run.model)}" if run.model else ""  # a workflow has none
        yield f"Recorded from {run.id} on {run.created_at[:10]}{model}."
        yield "Run with `guild test` (no key, no network). It fails if prompts, tools or results change."
        if self._normalizer.has_redactions:
            yield "Values of secret variables were replaced by their names in brackets."
        if self._normalizer.has_surrogates:
            self.note("lone surrogates, each replaced by a question mark")
        if self._omissions:
            yield f"Left out: {'; '.join(self._omissions)}."

    # the test

    def test_section(self) -> dict[str, Any]:
        run, journal = self._tree[0]
        request, frozen = run.request, journal.assembly
        text = self._normalizer.text
        case: dict[str, Any] = {"worker": text(request.worker), "input": text(request.input)}
        if self._team is not None:
            case = self._normalizer.value(dict(self._team.fields))
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
        case["shown"] = self._model_inputs()
        if run.error is not None and run.error.get("limit") == "timeout":
            self.note("the timeout, which a test does not reach")
        return {**case, **expected_end(run, self._normalizer)}

    def _files(self) -> dict[str, str | None]:
        known, unknown = files_before(self._tree)
        if unknown:
            names = ", ".join(unknown[:5]) + (" ..." if len(unknown) > 5 else "")
            self.note(f"the content of {names} before the run changed it (add it under `files` if it matters)")
        root = self._tree[0][0].frame.root
        if self._team is not None:
            known |= {os.path.relpath(path, root): text for path, text in self._team.files.items()}
        return {self._normalizer.text(path): text and self._normalizer.text(text) for path, text in known.items()}

    def _model_inputs(self) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for run, journal in self._model_runs:
            frozen = journal.assembly
            if frozen.memory:
                self.note("the memory of the worker; a test starts with an empty memory")
            system, tools = normalized_system_prompt(frozen, self._normalizer), tool_fingerprints(frozen, OUTPUT_TOOL)
            memory = {"memory": True} if frozen.memory else {}
            shown.setdefault(run.worker, {"system": system, "tools": tools, **memory})
        return shown

    def _replies(self) -> Iterator[dict[str, Any]]:
        """Yield the answers of the user, run by run, in the order of the asks."""
        counted: Counter[str] = Counter()
        for run, journal in self._tree:
            counted[run.worker] += 1
            asking_run: dict[str, Any] = {"worker": run.worker} if run.worker != self._tree[0][0].worker else {}
            if counted[run.worker] > 1:
                asking_run["run"] = counted[run.worker]
            yield from self._replies_in(journal, asking_run)

    def _replies_in(self, journal: Journal, asking_run: dict[str, Any]) -> Iterator[dict[str, Any]]:
        answers = {entry.data.ask: entry.data for entry in journal.all(entries.Answered)}
        for entry in journal.entries:
            match entry.data:
                case entries.ToolAsked(tool=tool, ask=ask):
                    reply = {"tool": tool, **asking_run}
                case entries.LimitAsked(limit=limit, ask=ask):
                    reply = {"limit": limit, **asking_run}
                case entries.LoopAsked(ask=ask):
                    reply = {"loop": True, **asking_run}
                case _:
                    continue
            if (answer := answers.get(ask)) is not None:
                note = {"note": self._normalizer.text(answer.note)} if answer.note else {}
                yield {**reply, "answer": answer.choice, **note}
            elif "loop" in reply or journal.last(entry.key or "", entries.ToolRefused) is not None:
                yield {**reply, "answer": TIMED_OUT}

    # the answers

    def workers(self) -> dict[str, Any]:
        workers: dict[str, list[Any]] = {}
        for run, journal in self._model_runs:
            is_root = run is self._tree[0][0]
            workers.setdefault(run.worker, []).append(list(self._answers(run, journal, is_root=is_root)))
        return workers

    def _answers(self, run: Run, journal: Journal, *, is_root: bool) -> Iterator[dict[str, Any]]:
        from guildhall.runs.record.messages import load_response

        keys = dict.fromkeys(entry.key for entry in journal.all(entries.ModelAsked) if entry.key)
        was_cut_off = False  # a call of the previous answer
        for key in keys:
            answer = journal.last(key, entries.ModelAnswered)
            yield from _failures(entries_with(journal.of(key), entries.ModelCallFailed), answered=answer is not None)
            asked = journal.last(key, entries.ModelAsked)
            if answer is None or asked is None:
                continue
            try:
                response = load_response(answer.data.response)
            except ValueError:
                raise Conflict(f"cannot export {run.id}: invalid model response in entry {answer.seq}") from None
            sent = sent_texts(asked.data.message, self._normalizer)
            is_input = is_root and sent == self._normalizer.text(run.request.input)  # the test has it already
            yield {**({} if is_input or was_cut_off else {"sent": sent}), **self._answer(response, journal, key)}
            was_cut_off = self._note_interrupted_calls(journal, key)

    def _note_interrupted_calls(self, journal: Journal, key: str) -> bool:
        """Return True if a crash cut off a call of this answer. The user decided its result, and a test cannot."""
        doubted = journal.all(entries.ToolDoubted)
        tools = [entry.data.tool for entry in doubted if (entry.key or "").startswith(f"{key}/")]
        for tool in tools:
            self.note(f"the result of a call of {self._normalizer.text(tool)} that was cut off (a test makes the call)")
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
            answer["say"] = self._normalizer.text("".join(texts))
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
        written: dict[str, Any] = {"call": self._normalizer.text(call.tool_name) or "(no name)"}
        if arguments := self._arguments(call):
            written["with"] = arguments
        result = self._result(call.tool_name, journal, f"{key}/{call.tool_call_id}")
        return {**written, **({"result": result} if result else {})}

    def _arguments(self, call: ToolCallPart) -> dict[str, Any] | str:
        """Return the arguments as fields, or as their original text if YAML cannot hold them."""
        arguments = call_arguments(call)
        if arguments is not None and _is_yaml(dict(arguments)):
            return self._normalizer.value(dict(arguments))
        return self._normalizer.text(call.args if isinstance(call.args, str) else json.dumps(call.args))

    def _result(self, tool: str, journal: Journal, key: str) -> dict[str, Any] | None:
        """Return the result of a call that a test does not repeat, because it reaches the network or reads memory."""
        end = journal.last(key, entries.ToolEnded)
        if end is None or tool in _local_tools() or (self._team and tool in self._team.tools):
            return None
        result = without_repeat_note(end.data)  # a test adds the note again
        if not all(isinstance(block, Text) for block in result.content):
            self.note(f"images and documents that {tool} returned")
        text = self._normalizer.text(result.text)
        return {"text": text, "is_error": True} if result.is_error else {"text": text}


def expected_end(run: Run, normalizer: Normalizer) -> dict[str, Any]:
    """Return the fields with which a test compares the end of a run."""
    ended: dict[str, Any] = {"status": run.status}
    if run.status == "completed":
        ended["output"] = normalizer.value(run.output)
    elif run.error:
        code = run.error["code"]  # in a test, a missing answer is a failure of the provider
        ended["error"] = ModelFailed.code if code == ScriptExhausted.code else code
    return ended


def _local_tools() -> frozenset[str]:
    """Return the tools that a test can call on copies of the project and the home."""
    reaching = {name for name, capabilities in BUILT_IN.items() if "net" in capabilities}
    return frozenset({*BUILT_IN, *SYSTEM_TOOLS, *(tool.name for tool in BASE_TOOLS)} - reaching - READ_TOOLS)


def _failures(failed: Sequence[Entry[entries.ModelCallFailed]], *, answered: bool) -> Iterator[dict[str, Any]]:
    """Yield failed model calls. If an answer followed, yield no more than the model door retries."""
    if answered:
        failed = [entry for entry in failed if entry.data.transient][:_MAX_RETRIES]
    for entry in failed[: _MAX_RETRIES + 1]:
        status = entry.data.status or 0
        default = 529 if entry.data.transient else 400
        yield {"fail": status if 400 <= status <= 599 else default}


def _usage(response: ModelResponse) -> dict[str, Any]:
    usage = response.usage
    if not (usage.input_tokens or usage.output_tokens):
        return {}
    counted = {"input": usage.input_tokens, "output": usage.output_tokens}
    cached = {"cache_read": usage.cache_read_tokens, "cache_write": usage.cache_write_tokens}
    if sum(cached.values()) <= usage.input_tokens:
        counted |= {name: count for name, count in cached.items() if count}
    return {"usage": counted}


def _is_yaml(value: Any, depth: int = 0) -> bool:
    """Return True if YAML can hold the value unchanged."""
    if isinstance(value, dict):
        inside = cast("dict[str, Any]", value)
        return depth < _MAX_DEPTH and all(is_unicode(k) and _is_yaml(v, depth + 1) for k, v in inside.items())
    if isinstance(value, list):
        return depth < _MAX_DEPTH and all(_is_yaml(part, depth + 1) for part in cast("list[Any]", value))
    return not isinstance(value, str) or is_unicode(value)


def _price(run: Run, journal: Journal) -> dict[str, float] | None:
    """Return the price of a million tokens, of the model or as an average of the run, to test budgets."""
    from pydantic_ai.usage import RequestUsage

    from guildhall.models.provider_source import cost, split_name
    from guildhall.models.scripted.source import load_script

    model = journal.assembly.model
    with suppress(GuildError):
        if model.startswith("script:"):
            price = load_script(Path(model.removeprefix("script:"))).price
            return price.model_dump() if price else None
        provider, name = split_name(model)
        input_usd = cost(provider, name, RequestUsage(input_tokens=1000))
        output_usd = cost(provider, name, RequestUsage(output_tokens=1000))
        if input_usd is not None and output_usd is not None:
            return {"input": round(input_usd * 1000, 6), "output": round(output_usd * 1000, 6)}
    tokens = run.usage.input_tokens + run.usage.output_tokens
    if run.usage.cost_usd is None:
        return None
    average = round(run.usage.cost_usd / tokens * 1_000_000, 6) if tokens else 0.0
    return {"input": average, "output": average}
