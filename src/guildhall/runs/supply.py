"""What a worker declares, held against what can be given here: everything that is lacking, not only the first of it.

Starting a run, `guild worker validate` and `guild doctor` ask here, so that they agree. Nothing is started for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.config import anchored
from guildhall.core.errors import GuildError, InvalidFile, ToolUnavailable, did_you_mean
from guildhall.core.yaml import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.workers.model import Worker

_SCRIPT = "script:"


@dataclass(frozen=True, kw_only=True)
class Supply:
    """What there is, in one home and for one environment."""

    home: Home
    environ: Mapping[str, str]
    settings: Callable[[Frame], Settings]

    def lacking(
        self,
        worker: Worker,
        frame: Frame,
        *,
        given: Collection[str] = (),
        script: bool = True,
        thorough: bool = True,
    ) -> list[GuildError]:
        """All that the worker declares and cannot be given, in the order of its fields.

        `given` are toolboxes of the caller's own process. Without `script` another model than the worker's is used;
        without `thorough` files that are read later anyway are only looked for.
        """
        unknown = [name for name in worker.definition.toolboxes if name not in given]
        checks: list[Callable[[], object]] = [lambda: refuse_later_fields(worker)]
        if script:
            checks.append(lambda: _script(worker, frame, thorough=thorough))
        checks += [
            lambda: self._search(worker, frame),
            *(lambda name=name: self.toolbox(worker, name, given) for name in unknown),
            *(lambda one=one: one.folders(frame) for one in _with_one_sandbox_each(worker)),
        ]
        if thorough or not _schema_path(worker, frame).is_file():
            checks.append(lambda: output_schema(worker, frame))
        found: list[GuildError] = []
        for check in checks:
            try:
                check()
            except GuildError as error:
                found.append(error)
        return found

    def toolbox(self, worker: Worker, name: str, given: Collection[str] = ()) -> Path:
        """The file of a toolbox that is not among those `given`."""
        file = self.home.toolboxes / f"{name}.py"
        if file.is_file():
            return file
        known = {*given, *(path.stem for path in self.home.toolboxes.glob("*.py"))}
        raise ToolUnavailable(
            f"toolboxes: there is no toolbox {name!r}",
            where=worker.place,
            hint=did_you_mean(name, known) or f"Put it at {file}, or hand it over in Python.",
        )

    def _search(self, worker: Worker, frame: Frame) -> None:
        if "WebSearch" not in worker.definition.tools:
            return
        from guildhall.tools.websearch import search_tool

        wanted = self.settings(frame).web_search
        try:
            search_tool(wanted.model_dump() if wanted else None, self.environ)
        except ToolUnavailable as error:
            raise ToolUnavailable(f"tools: {error.message}", where=worker.place, hint=error.hint) from None


def refuse(lacking: Sequence[GuildError], place: str) -> None:
    """Raises what is lacking, if anything is: a worker never runs with a part of what it declares."""
    if not lacking:
        return
    if len(lacking) == 1:
        raise lacking[0]
    lines = [error.message if error.where in (None, place) else f"{error.where}: {error.message}" for error in lacking]
    kind = ToolUnavailable if any(isinstance(error, ToolUnavailable) for error in lacking) else InvalidFile
    raise kind(
        f"{len(lines)} things cannot be provided:" + "".join(f"\n  {line}" for line in lines),
        where=place,
        hint="`guild worker validate` says what to do about each.",
    )


def refuse_later_fields(worker: Worker) -> None:
    """Refuses a worker with fields that this version reads and cannot provide, and names all of them."""
    definition = worker.definition
    schema = definition.output_schema_ref
    declared = {
        "runtime": definition.runtime if definition.runtime != "pydantic" else None,
        "members": ", ".join(definition.members),
        "mcp_servers": ", ".join(definition.mcp_servers),
        "output_schema_ref": schema if schema and not schema.endswith(".json") else None,
    }
    lacking = [f"{field}: {value}" for field, value in declared.items() if value]
    if lacking:
        raise ToolUnavailable(
            f"{'; '.join(lacking)} cannot be provided by this version",
            where=worker.place,
            hint="Take out what is named to run the worker without it. An output schema is a .json file.",
        )


def output_schema(worker: Worker, frame: Frame) -> Mapping[str, Any] | None:
    """What the worker's output must look like, if its file says so."""
    reference = worker.definition.output_schema_ref
    if reference is None or not reference.endswith(".json"):
        return None
    path = _schema_path(worker, frame)
    if not path.exists():
        hint = "Make it, or correct the path: it starts at the worker's project."
        raise InvalidFile(f"output_schema_ref: there is no file {path}", where=worker.place, hint=hint)
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    try:
        schema: Any = json.loads(read_text(path))
        validator_for(schema).check_schema(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"not JSON: {error}", where=str(path)) from None
    except SchemaError as error:
        raise InvalidFile(f"not a JSON Schema: {error.message}", where=str(path)) from None
    if not isinstance(schema, dict) or schema.get("type") != "object":  # pyright: ignore[reportUnknownMemberType]
        raise InvalidFile("an output schema must have `type: object`", where=str(path))
    return schema  # pyright: ignore[reportUnknownVariableType]


def doubts(worker: Worker) -> list[str]:
    """What is allowed and yet probably not meant."""
    writers = [name for name in worker.definition.tools if name in ("Write", "Edit")]
    if not writers or any(sandbox.mode == "rw" for sandbox in worker.definition.sandboxes.values()):
        return []
    return [f"tools: {' and '.join(writers)} can write nothing, because no sandbox has `mode: rw`"]


def _script(worker: Worker, frame: Frame, *, thorough: bool) -> None:
    model = worker.definition.model or ""
    if not model.startswith(_SCRIPT):
        return
    path = Path(anchored(model, worker.beside(frame)).removeprefix(_SCRIPT))
    if not path.exists():
        hint = "Make it, or correct the path: it starts at the worker's project."
        raise InvalidFile(f"model: there is no script {path}", where=worker.place, hint=hint)
    if thorough:
        from guildhall.models.script import load_script

        load_script(path)


def _schema_path(worker: Worker, frame: Frame) -> Path:
    return worker.beside(frame) / (worker.definition.output_schema_ref or "")


def _with_one_sandbox_each(worker: Worker) -> Iterator[Worker]:
    """The worker once for each of its sandboxes, so that one that is wrong does not hide the next."""
    for name, sandbox in worker.definition.sandboxes.items():
        yield replace(worker, definition=worker.definition.model_copy(update={"sandboxes": {name: sandbox}}))
