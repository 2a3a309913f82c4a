"""Methods `worker/*`: check the parameters, call the jobs of a worker, and return results in their wire format.

A member's own hall, the user's hall (`/workers/NAME/mcp`) and `guild serve` use them. `guild serve` calls a hall in
another process.
Does not approve calls: `worker/answer` only delivers the user's reply to a question.
Does not execute jobs: `guildhall.jobs` does.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import parse_qs

from guildhall import __version__
from guildhall.core.errors import GuildError, NotDeletable, NotFinished, UnknownJob, UsageError
from guildhall.core.paths import project_root
from guildhall.core.request_frame import Frame
from guildhall.core.text_checks import did_you_mean
from guildhall.jobs.model import Detail, Dispatch, Job, JobDetails, JobResult, Page, WorkerJobs, parse_detail
from guildhall.members.dispatch_tools import TOOLS as DISPATCH_TOOLS
from guildhall.members.dispatch_tools import DispatchTools
from guildhall.rpc.asgi_requests import HttpError, is_token
from guildhall.rpc.jsonrpc import INVALID_PARAMS, SERVER_ERROR, RpcError
from guildhall.rpc.mcp_http_server import (
    ANSWER,
    CANCEL,
    DELETE,
    DISPATCH,
    LIST,
    RESULT,
    RESUME,
    STATUS,
    Endpoint,
    Offer,
)
from guildhall.tools.definition import bind_tools, call_method
from guildhall.tools.model import ToolCall

if TYPE_CHECKING:
    import asyncio

    from guildhall.hall.client.interface import HallClient
    from guildhall.hall.composition.hall import Hall
    from guildhall.hall.services.embedded import EmbeddedHall
    from guildhall.rpc.asgi_requests import Message
    from guildhall.tools.model import Tool, ToolResult

    Method = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


T = TypeVar("T")
_META = "_meta"  # MCP permits it in all parameters
_TYPE_NAMES: Mapping[type, str] = {str: "text", dict: "an object", int: "a whole number"}


class HallJobs:
    """The jobs of one worker of a hall, as WorkerJobs. Jobs of other workers are unknown here."""

    def __init__(
        self, hall: HallClient, worker: str, create_frame: Callable[[], Frame], *, name: str | None = None
    ) -> None:
        """`worker`: its name or file. `name`: its name in the file. `create_frame`: returns the frame of a new job."""
        self._hall = hall
        self._worker = worker
        self._name = name or worker
        self._create_frame = create_frame

    async def dispatch(self, dispatch: Dispatch) -> Job:
        return await self._hall.jobs.dispatch(self._worker, dispatch, self._create_frame())

    async def page(
        self,
        *,
        detail: Detail = "detailed",
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        return await self._hall.jobs.list(worker=self._name, filter=filter, limit=limit, cursor=cursor)

    async def status(self, id: str) -> JobDetails:
        details = None if "/" in id else await self._hall.jobs.get(id)  # MEMBER/JOB is a job of a member
        if details is None or details.job.worker != self._name:
            raise UnknownJob(f"unknown job {id[:60]!r}")
        return details

    async def result(self, id: str) -> JobResult:
        return await self._hall.jobs.result((await self.status(id)).job.id)

    async def cancel(self, id: str) -> Job:
        return await self._hall.jobs.cancel((await self.status(id)).job.id)

    async def delete(self, id: str, *, force: bool = False) -> None:
        await self._hall.jobs.delete((await self.status(id)).job.id, force=force)

    async def resume(self, id: str, *, max_turns: int | None = None, budget: float | None = None) -> Job:
        job_id = (await self.status(id)).job.id
        return await self._hall.jobs.resume(job_id, self._create_frame(), max_turns=max_turns, budget=budget)

    async def answer(self, id: str, text: str, question: str | None = None) -> str:
        return await self._hall.jobs.answer((await self.status(id)).job.id, text, question=question)


class WorkerMethods:
    """Calls a method `worker/*` by its name. Errors are JSON-RPC errors."""

    def __init__(self, jobs: WorkerJobs) -> None:
        self._jobs = jobs
        self._methods: dict[str, Method] = {
            DISPATCH: self._dispatch,
            LIST: self._list,
            STATUS: self._status,
            RESULT: self._result,
            CANCEL: self._cancel,
            DELETE: self._delete,
            ANSWER: self._answer,
            RESUME: self._resume,
        }

    async def __call__(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._methods[method](params)
        except GuildError as error:
            raise to_rpc_error(error) from None

    async def _dispatch(self, params: Mapping[str, Any]) -> dict[str, Any]:
        _check_known(params, "description", "task", "config")
        config = cast("dict[str, Any] | None", _get_optional(params, "config", dict))
        dispatch = Dispatch(
            description=_get_required(params, "description", str),
            task=_get_required(params, "task", str),
            config=config or {},
        )
        return {"jobId": (await self._jobs.dispatch(dispatch)).id}

    async def _list(self, params: Mapping[str, Any]) -> dict[str, Any]:
        _check_known(params, "detail", "filter", "limit", "cursor")
        detail = parse_detail(_get_optional(params, "detail", str) or "simple")
        page = await self._jobs.page(
            detail=detail,
            filter=_get_optional(params, "filter", str),
            limit=_get_optional(params, "limit", int),
            cursor=_get_optional(params, "cursor", str),
        )
        return page.as_wire(detail)

    async def _status(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return (await self._jobs.status(_get_job_id(params))).as_wire()

    async def _result(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return (await self._jobs.result(_get_job_id(params))).as_wire()

    async def _cancel(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return (await self._jobs.cancel(_get_job_id(params))).row()

    async def _delete(self, params: Mapping[str, Any]) -> dict[str, Any]:
        id, force = _get_job_id(params, "force"), params.get("force", False)
        if not isinstance(force, bool):
            raise UsageError("force: expected true or false")
        await self._jobs.delete(id, force=force)
        return {"jobId": id, "deleted": True}

    async def _resume(self, params: Mapping[str, Any]) -> dict[str, Any]:
        id, budget = _get_job_id(params, "maxTurns", "maxBudgetUsd"), params.get("maxBudgetUsd")
        if budget is not None and (not isinstance(budget, int | float) or isinstance(budget, bool)):
            raise UsageError("maxBudgetUsd: expected a number")
        return (await self._jobs.resume(id, max_turns=_get_optional(params, "maxTurns", int), budget=budget)).row()

    async def _answer(self, params: Mapping[str, Any]) -> dict[str, Any]:
        id = _get_job_id(params, "question", "answer")
        text, question = _get_required(params, "answer", str), _get_optional(params, "question", str)
        return {"jobId": id, "question": await self._jobs.answer(id, text, question), "answer": text}


def _get_job_id(params: Mapping[str, Any], *more: str) -> str:
    _check_known(params, "jobId", *more)
    return _get_required(params, "jobId", str)


def to_rpc_error(error: GuildError) -> RpcError:
    """Return a GuildError as a JSON-RPC error."""
    where = f"{error.where}: " if error.where else ""
    hint = f". {error.hint}" if error.hint else ""
    message = " ".join(f"{where}{error.message}{hint}".split())
    if isinstance(error, NotFinished):
        return RpcError(SERVER_ERROR, message, {"jobId": error.job, "status": error.status})
    if isinstance(error, UsageError | UnknownJob | NotDeletable):
        return RpcError(INVALID_PARAMS, message)
    return RpcError(SERVER_ERROR, message, error.as_dict())


def _check_known(params: Mapping[str, Any], *known: str) -> None:
    for name in params:
        if name not in known and name != _META:
            raise UsageError(f"unknown parameter {name[:60]!r}", hint=did_you_mean(name[:60], known))


def _get_required(params: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = _get_optional(params, name, kind)
    if value is None:
        raise UsageError(f"{name}: this parameter is required")
    return value


def _get_optional(params: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """Return a parameter, or None if it is missing or null."""
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UsageError(f"{name}: expected {_TYPE_NAMES[kind]}")
    return cast("T", value)


@cache
def _dispatch_tools() -> tuple[Tool, ...]:
    return bind_tools(DispatchTools, DISPATCH_TOOLS)


def worker_offer(jobs: WorkerJobs, name: str) -> Offer:
    """Return the offer of a worker of the hall: the methods `worker/*`, and tools with the same effects."""

    async def call(tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
        return await call_method(
            DispatchTools(lambda: jobs), tool, ToolCall(key="", tool=tool.name, arguments=arguments)
        )

    return Offer(name=name, version=__version__, tools=_dispatch_tools(), call=call, worker=WorkerMethods(jobs))


WORKERS_PREFIX = "/workers/"
_PROJECT_HINT = "The address of a project's worker is /workers/NAME/mcp?project=FOLDER, with an absolute path."
_PATH = re.compile(r"/workers/([A-Za-z0-9][A-Za-z0-9_.-]{0,63})/mcp/?")


def workers_endpoint(
    hall: Hall, client: EmbeddedHall, token: str, *, is_stopping: Callable[[], bool], recovered: asyncio.Event
) -> Endpoint:
    """Return the endpoint of all workers of a hall. `recovered`: set when the runs of an earlier hall are resumed."""

    def find(scope: Message) -> Offer | None:
        path = _PATH.fullmatch(scope["path"])
        if path is None:
            return None
        if is_stopping():
            raise HttpError(503, "the hall is stopping: repeat the request")
        project = _parse_project(scope.get("query_string", b""))
        try:
            frame = _create_frame(hall, project)
            worker = hall.workers.find(path[1], frame)
        except GuildError as error:
            hint = "" if project else f" {_PROJECT_HINT}"
            return Offer(name=path[1], version=__version__, missing=f"{to_rpc_error(error).message}{hint}")
        offer = worker_offer(HallJobs(client, path[1], lambda: frame, name=worker.name), worker.name)

        async def operate(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
            await recovered.wait()
            assert offer.worker is not None
            return await offer.worker(method, params)

        async def call(tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
            await recovered.wait()
            return await offer.call(tool, arguments)

        return replace(offer, worker=operate, call=call)

    return Endpoint(is_valid_token=lambda candidate: is_token(candidate, token), find_offer=find)


def _create_frame(hall: Hall, project: Path | None) -> Frame:
    cwd = project or hall.home.path
    allowed = frozenset(hall.settings(Frame(cwd=cwd, root=project_root(cwd))).env)
    return Frame.here(cwd, hall.environ, allowed=allowed, caller="member")


def _parse_project(query: bytes) -> Path | None:
    """Return the folder in the query string of a request, or None if the query is empty."""
    try:
        values = parse_qs(query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError:
        raise HttpError(400, "invalid query string: expected ?project=FOLDER, percent-encoded") from None
    if not values:
        return None
    folder = Path(values["project"][0]) if set(values) == {"project"} and len(values["project"]) == 1 else None
    if folder is None or "\0" in str(folder) or not folder.is_absolute() or not folder.is_dir():
        raise HttpError(400, "invalid query string: expected ?project= and the absolute path of an existing folder")
    return folder.resolve()
