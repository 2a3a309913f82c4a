"""Program access: registers a program that executes a run, and opens the tool door and the model door for it.

A tool call of the program keeps the id from the model response, so that a repeated call is recognised.

Does not serve HTTP (`hall.doors`) and does not judge calls (`tools.gate`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart

from guildhall.models.passthrough.provider_connection import ConnectionPool
from guildhall.models.passthrough.session import PassthroughSession, RunContent
from guildhall.runs.execution.tokens import RESULT, RunDoor, RunHandle, TokenRegistry, server_tool_name
from guildhall.runtimes.model import Assignment, DoorAccess, ProgramHooks
from guildhall.runtimes.pydantic import output_tool, request_parameters, to_return_part, to_tool_call
from guildhall.tools.model import Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestParameters

    from guildhall.models.passthrough.relay import PassthroughRequest


@dataclass(frozen=True, kw_only=True)
class ProgramAccess:
    """Registers the programs of one run."""

    run: str
    tokens: TokenRegistry
    servers: Mapping[str, tuple[Tool, ...]]
    assignment: Assignment
    pool: ConnectionPool = field(default_factory=ConnectionPool)  # the connection to the provider, closed with the run

    def register(self, handle: RunHandle, program: ProgramHooks) -> DoorAccess:
        """Issue a token that opens the doors of the run for a program."""
        servers = {name: tools for name, tools in self.servers.items() if tools}
        if program.on_result is not None and self.assignment.output_schema is not None:
            servers[RESULT] = (_result_tool(self.assignment.output_schema),)
        names = {
            program.name_tool(server, server_tool_name(server, tool.name)): tool.name
            for server, tools in servers.items()
            for tool in tools
        }
        door = RunDoor(run=self.run, servers=servers, handle=handle)
        results = CallResults(handle, frozenset(names.values()))
        door.on_result = results.add

        def on_response(key: str, response: ModelResponse) -> None:
            calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
            door.add_requested(to_tool_call(key, part) for part in calls)
            results.add_requested(key, calls)
            program.on_answer(response)

        async def submit(call: ToolCall) -> ToolResult:
            assert program.on_result is not None
            return await program.on_result(call.arguments or {})

        async def ask(
            key: str,
            messages: Sequence[ModelMessage],
            parameters: ModelRequestParameters,
            through: PassthroughRequest | None = None,
        ) -> ModelResponse:
            if program.is_finished():  # the program is about to be stopped: never answer
                await asyncio.get_running_loop().create_future()
            return await handle.call_model(key, messages, parameters, through)

        door.submit = submit if RESULT in servers else None
        door.passthrough = passthrough = PassthroughSession(
            ask,
            content=RunContent(
                prompt=self.assignment.system_prompt,
                names=names,
                parameters=request_parameters(self.assignment),
                results=results.known,
                wait_for_results=results.wait_refused,
            ),
            on_error=handle.fail,
            on_answer=on_response,
            has_other_question=handle.is_other_question,
            upstream=handle.upstream,
            pool=self.pool,
        )
        token = self.tokens.issue(door)

        async def wait_calls() -> None:
            while calls := [*(task for _, task in door.calls.values()), *passthrough.active_calls()]:
                await asyncio.wait(calls)

        return DoorAccess(
            token=token,
            servers=tuple(servers),
            has_calls=lambda: bool(door.calls or passthrough.active_calls()),
            wait_for_calls=wait_calls,
            close=lambda: self.tokens.revoke(token),
        )


class CallResults:
    """The results of a program's calls, in the form in which our own runtime reports results to the model.

    The program itself refuses a call of a tool that the run does not have. The gate gets the call too, and records it.
    """

    def __init__(self, handle: RunHandle, tools: frozenset[str]) -> None:
        self.known: dict[str, ToolReturnPart] = {}  # by the ids of the calls in the model responses
        self._handle = handle
        self._tools = tools
        self._calls: dict[str, ToolCallPart] = {}  # by key
        self._ids: set[str] = set()
        self._ambiguous: set[str] = set()  # ids that occur in several model responses
        self._refused: set[asyncio.Task[None]] = set()

    def add_requested(self, key: str, calls: Iterable[ToolCallPart]) -> None:
        """Add the calls of a model response, and have the gate refuse calls of unknown tools."""
        for part in calls:
            call = to_tool_call(key, part)
            self._calls[call.key] = part
            if part.tool_call_id in self._ids:
                self._ambiguous.add(part.tool_call_id)
                self.known.pop(part.tool_call_id, None)
            self._ids.add(part.tool_call_id)
            if part.tool_name not in self._tools:
                self._refused.add(asyncio.create_task(self._refuse(call)))

    def add(self, call: ToolCall, result: ToolResult) -> None:
        part = self._calls.get(call.key)
        if part is not None and part.tool_call_id not in self._ambiguous:
            self.known[part.tool_call_id] = to_return_part(part, result)

    async def wait_refused(self) -> None:
        """Wait until the gate has recorded the calls that the program does not make."""
        for task in tuple(self._refused):
            await asyncio.wait([task])
            self._refused.discard(task)

    async def _refuse(self, call: ToolCall) -> None:
        try:
            self.add(call, await self._handle.call_tool(call))
        except Exception as error:  # noqa: BLE001 - the error ends the run, as for every call
            self._handle.fail(error)


def _result_tool(schema: Mapping[str, Any]) -> Tool:
    """Return the tool with which a program delivers its output. Its calls do not reach the gate."""

    def never(**_: Any) -> None:
        raise AssertionError

    shown = output_tool(schema)
    return Tool(name=shown.name, description=shown.description or "", input_schema=dict(schema), handler=never)
