"""`worker/*` of one worker, carried out by a hall: parameters are checked, verbs asked, answers put into their shape.

The same for a member's own hall, for a worker of the person's hall, and for `guild serve`, which asks a hall elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from guildhall.core.errors import GuildError, NotDeletable, NotFinished, UnknownJob, UsageError
from guildhall.core.nearest import did_you_mean
from guildhall.jobs.model import Dispatch, detail_of
from guildhall.rpc.endpoint import ANSWER, CANCEL, DELETE, DISPATCH, LIST, RESULT, STATUS
from guildhall.rpc.jsonrpc import INVALID_PARAMS, SERVER_ERROR, RpcError
from guildhall.runs.model import Answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.jobs.model import JobShown

    Carry = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]

T = TypeVar("T")
_META = "_meta"  # of MCP: it may be in any parameters
_TYPES: Mapping[type, str] = {str: "text", dict: "an object", int: "a whole number"}


class Operations:
    """The operations of one worker."""

    def __init__(self, hall: HallClient, worker: str, frame: Callable[[], Frame], *, name: str | None = None) -> None:
        """`worker`: as the hall finds it; `name`: what its file calls it. `frame`: what new work is done in."""
        self._hall = hall
        self._worker = worker
        self._name = name or worker
        self._frame = frame
        self._methods: dict[str, Carry] = {
            DISPATCH: self._dispatch,
            LIST: self._list,
            STATUS: self._status,
            RESULT: self._result,
            CANCEL: self._cancel,
            DELETE: self._delete,
            ANSWER: self._answer,
        }

    async def __call__(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._methods[method](params)
        except GuildError as error:
            raise refusal(error) from None

    async def _dispatch(self, params: Mapping[str, Any]) -> dict[str, Any]:
        _only(params, "description", "task", "config")
        config = cast("dict[str, Any] | None", _given(params, "config", dict))
        asked = Dispatch(
            description=_needed(params, "description", str), task=_needed(params, "task", str), config=config or {}
        )
        job = await self._hall.jobs.dispatch(self._worker, asked, self._frame())
        return {"jobId": job.id}

    async def _list(self, params: Mapping[str, Any]) -> dict[str, Any]:
        _only(params, "detail", "filter", "limit", "cursor")
        detail = detail_of(_given(params, "detail", str) or "simple")
        page = await self._hall.jobs.list(
            worker=self._name,
            filter=_given(params, "filter", str),
            limit=_given(params, "limit", int),
            cursor=_given(params, "cursor", str),
        )
        return page.as_wire(detail)

    async def _status(self, params: Mapping[str, Any]) -> dict[str, Any]:
        shown = await self._shown(params)
        return {**shown.as_wire(), "waiting": True} if shown.waiting else shown.as_wire()

    async def _result(self, params: Mapping[str, Any]) -> dict[str, Any]:
        shown = await self._shown(params)
        return (await self._hall.jobs.result(shown.job.id)).as_wire()

    async def _cancel(self, params: Mapping[str, Any]) -> dict[str, Any]:
        shown = await self._shown(params)
        return (await self._hall.jobs.cancel(shown.job.id)).row()

    async def _delete(self, params: Mapping[str, Any]) -> dict[str, Any]:
        shown = await self._shown(params)
        await self._hall.jobs.delete(shown.job.id)
        return {"jobId": shown.job.id, "deleted": True}

    async def _answer(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Beyond the six: the words of a person on what the worker has asked. Approvals are not given here."""
        shown = await self._shown(params, "question", "answer")
        words, question = _needed(params, "answer", str), _given(params, "question", str)
        open_ones = [one for one in shown.asked if one.answer is None]
        meant = [one for one in open_ones if question in (None, one.question)]
        if not meant:
            raise UsageError(f"the job {shown.job.id} has no such open question", hint="`worker/status` has them.")
        if question is None and len(meant) > 1:
            raise UsageError(f"question: {len(meant)} are open; give the text of the one that is meant")
        await self._hall.asks.answer(meant[0].ask, Answer(choice=words))
        return {"jobId": shown.job.id, "question": meant[0].question, "answer": words}

    async def _shown(self, params: Mapping[str, Any], *more: str) -> JobShown:
        """The job that is meant, if it is this worker's: of others' nothing is known here."""
        _only(params, "jobId", *more)
        id = _needed(params, "jobId", str)
        shown = await self._hall.jobs.get(id)
        if shown.job.worker != self._name:
            raise UnknownJob(f"there is no job {id[:60]!r}")
        return shown


def refusal(error: GuildError) -> RpcError:
    """An error of the hall as the wire has it: a wrong parameter, or a state that does not permit it."""
    if isinstance(error, NotFinished):
        return RpcError(SERVER_ERROR, _said(error), {"jobId": error.job, "status": error.status})
    if isinstance(error, UsageError | UnknownJob | NotDeletable):
        return RpcError(INVALID_PARAMS, _said(error))
    return RpcError(SERVER_ERROR, _said(error), error.as_dict())


def _said(error: GuildError) -> str:
    """What was wrong and what to do, in a line."""
    where = f"{error.where}: " if error.where else ""
    hint = f". {error.hint}" if error.hint else ""
    return " ".join(f"{where}{error.message}{hint}".split())


def _only(params: Mapping[str, Any], *known: str) -> None:
    for name in params:
        if name not in known and name != _META:
            hint = did_you_mean(name[:60], known)
            raise UsageError(f"{name[:60]!r} is no parameter of this method", hint=hint)


def _needed(params: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = _given(params, name, kind)
    if value is None:
        raise UsageError(f"{name}: this parameter is required")
    return value


def _given(params: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """A parameter; null is as if it were not there."""
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UsageError(f"{name}: expected {_TYPES[kind]}")
    return cast("T", value)
