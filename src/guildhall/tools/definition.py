"""Tool definition: makes tools from typed functions, validates the arguments of a call, and invokes the handler.

`@tool` derives the name, the description and the input schema from the function. Does not decide if a call is allowed
(see `tools.gate`) or where the handler runs (see `tools.call_router`).

Invariant: invalid arguments and failures of a handler are returned as results, never raised.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, cast, overload

from guildhall.core.errors import GuildError, ToolUnavailable, UsageError
from guildhall.core.ids import canonical
from guildhall.core.text_checks import did_you_mean
from guildhall.core.yaml import describe_problem, field_name
from guildhall.policy.rules import CAPABILITIES
from guildhall.tools.model import Blob, Block, Handler, Place, Text, Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from jsonschema.protocols import Validator
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ErrorDetails


_MAX_REPORTED_ERRORS = 5
_MAX_MESSAGE_CHARS = 400


def _check(tool: Tool, arguments: Any) -> dict[str, Any]:
    """Return the arguments in the types of the handler. Raise UsageError if they are invalid."""
    if not isinstance(arguments, Mapping):
        raise UsageError(f"{tool.name}: the arguments are not an object")
    given = dict(cast("Mapping[str, Any]", arguments))
    if not isinstance(tool.handler, TypedHandler):
        return _check_by_schema(tool, given)
    from pydantic import ValidationError

    try:
        return tool.handler.form.adapter.validate_python(given)
    except ValidationError as error:
        raise _validation_error(tool, error) from None
    except Exception as error:  # noqa: BLE001 - endless nesting, or a broken validator of the tool
        raise UsageError(f"{tool.name}: cannot check the arguments: {type(error).__name__}") from None


def _validation_error(tool: Tool, error: ValidationError) -> UsageError:
    details = error.errors(include_url=False, include_context=False)
    lines = [_describe_error(tool, detail) for detail in details[:_MAX_REPORTED_ERRORS]]
    return UsageError("\n".join(f"{tool.name}: {line}" for line in lines), hint="Correct the arguments and call again.")


def _describe_error(tool: Tool, detail: ErrorDetails) -> str:
    name = field_name(detail["loc"]) or "arguments"
    if detail["type"] == "missing":
        return f"{name}: this argument is required"
    if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
        known = cast("Mapping[str, Any]", tool.input_schema.get("properties", {}))
        return f"{name}: unknown argument. {did_you_mean(name, known) or 'The tool has no arguments.'}"
    return f"{name}: {describe_problem(detail)}"


def _check_by_schema(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    from jsonschema import exceptions

    best_match: Callable[[Iterable[exceptions.ValidationError]], exceptions.ValidationError | None]
    best_match = cast("Any", exceptions).best_match
    try:
        problem = best_match(_validator(canonical(tool.input_schema)).iter_errors(arguments))
    except exceptions.SchemaError as error:
        raise UsageError(f"{tool.name}: invalid input schema of the tool: {_truncate(error.message)}") from None
    except Exception as error:  # noqa: BLE001 - unresolvable references, endless nesting, patterns that do not compile
        raise UsageError(f"{tool.name}: cannot check the arguments: {type(error).__name__}") from None
    if problem is None:
        return arguments
    name = field_name(tuple(problem.absolute_path)) or "arguments"
    raise UsageError(f"{tool.name}: {name}: {_truncate(problem.message)}", hint="Correct the arguments and call again.")


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}..."


@functools.lru_cache(maxsize=512)
def _validator(schema: str) -> Validator:
    """Return the compiled validator of a JSON Schema. The registry is empty, so that nothing is fetched."""
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing.jsonschema import EMPTY_REGISTRY

    parsed = json.loads(schema)
    validator: Any = validator_for(parsed, default=Draft202012Validator)
    validator.check_schema(parsed)
    return validator(parsed, registry=EMPTY_REGISTRY)


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_ARGUMENT = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


@dataclass(frozen=True)
class Form:
    """The input of a typed function: the schema for the model, and the validator of the arguments."""

    schema: Mapping[str, Any]
    adapter: TypeAdapter[dict[str, Any]]


class TypedHandler:
    """Handler that calls a typed function."""

    def __init__(self, function: Handler, form: Form) -> None:
        self.function = function
        self.form = form

    def __call__(self, **arguments: Any) -> Any:
        return self.function(**arguments)


class KeyedHandler(TypedHandler):
    """Handler that needs the key of its call. `bind_key` returns the function for a key."""

    def __init__(self, bind_key: Callable[[str], Handler], form: Form) -> None:
        super().__init__(bind_key(""), form)
        self.bind_key = bind_key


@overload
def tool(function: Handler, /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    capabilities: Iterable[str] = (),
    repeatable: bool = False,
    runs_in: Place = "host",
) -> Callable[[Handler], Tool]: ...


def tool(
    function: Handler | None = None,
    /,
    *,
    name: str | None = None,
    capabilities: Iterable[str] = (),
    repeatable: bool = False,
    runs_in: Place = "host",
) -> Tool | Callable[[Handler], Tool]:
    """Make a tool from a typed function: `@tool`, or `@tool(capabilities={"net"}, repeatable=True)`.

    The docstring's first paragraph is the description; parameters are described under `Args:` or by
    `Annotated[int, Field(description=...)]`.
    """

    def make(function: Handler) -> Tool:
        named = name or getattr(function, "__name__", "")
        return _make(function, name=named, capabilities=capabilities, repeatable=repeatable, runs_in=runs_in)

    return make if function is None else make(function)


def bind_tools(
    owner: object,
    capabilities: Mapping[str, Iterable[str]],
    *,
    repeatable: bool = True,
    runs_in: Place = "run",
) -> tuple[Tool, ...]:
    """Return a tool for each named method of a class or of an instance, with its docstring as the description.

    The tools of an instance call it. The tools of a class need an instance for each call, which the caller
    passes to `call_method` or creates with `with_call_keys`.
    """
    made: list[Tool] = []
    for name, needed in capabilities.items():
        method = getattr(owner, name)
        function = types.MethodType(method, owner) if isinstance(owner, type) else method
        made.append(tool(name=name, capabilities=needed, repeatable=repeatable, runs_in=runs_in)(function))
    return tuple(made)


def with_call_keys(tools: Iterable[Tool], make: Callable[[str], object]) -> tuple[Tool, ...]:
    """Return the tools of a class, called on the instance that `make` returns for the key of a call."""

    def add_key(tool: Tool) -> Tool:
        form = cast("TypedHandler", tool.handler).form
        return replace(tool, handler=KeyedHandler(lambda key: getattr(make(key), tool.name), form))

    return tuple(map(add_key, tools))


async def call_method(tools: object, tool: Tool, call: ToolCall) -> ToolResult:
    """Call the method that has the name of the tool. `tools` is the instance for this call."""
    method = getattr(tools, tool.name)
    # The form is reused, because creating a form takes longer than calling the method.
    handler = TypedHandler(method, tool.handler.form) if isinstance(tool.handler, TypedHandler) else method
    return await invoke(replace(tool, handler=handler), call.arguments or {})


def _make(function: Handler, *, name: str, capabilities: Iterable[str], repeatable: bool, runs_in: Place) -> Tool:
    if not _NAME.fullmatch(name):
        hint = "Start with a letter, then use letters, digits, '_' and '-', at most 64 characters."
        raise ToolUnavailable(f"invalid tool name {name!r}", hint=hint)
    doc = inspect.getdoc(function) or ""
    description = "" if doc.lstrip().startswith("Args:") else " ".join(doc.split("\n\n")[0].split())
    if not description:
        hint = "Describe the tool in the first paragraph of the docstring. The model reads it."
        raise ToolUnavailable(f"the tool {name!r} has no docstring", hint=hint)
    form = _form(getattr(function, "__func__", function), inspect.ismethod(function), name)
    return Tool(
        name=name,
        description=description,
        input_schema=form.schema,
        handler=TypedHandler(function, form),
        capabilities=_check_capabilities(name, capabilities),
        repeatable=repeatable,
        runs_in=runs_in,
    )


def _check_capabilities(name: str, capabilities: Iterable[str]) -> frozenset[str]:
    if isinstance(capabilities, str):
        hint = f'Write capabilities={{"{capabilities}"}}.'
        raise ToolUnavailable(f"the tool {name!r}: capabilities must be a set", hint=hint)
    named = frozenset(capabilities)
    for unknown in sorted(named - CAPABILITIES.keys()):
        hint = did_you_mean(unknown, CAPABILITIES)
        raise ToolUnavailable(f"the tool {name!r}: unknown capability {unknown!r}", hint=hint)
    return named


@functools.lru_cache(maxsize=256)
def _form(function: Handler, bound: bool, name: str) -> Form:
    """Return the form of a function. The result is cached, because every run creates the built-in tools."""
    import typing_extensions
    from pydantic import ConfigDict, Field, TypeAdapter
    from pydantic.errors import PydanticUserError

    def has_schema(kind: Any) -> bool:
        try:
            TypeAdapter(kind).json_schema()
        except PydanticUserError:
            return False
        return True

    parameters = _parameters(function, bound, name)
    hints = _hints(function, parameters, name)
    described = _argument_descriptions(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        kind = hints[key]
        extras = getattr(kind, "__metadata__", ())
        if key in described and not any(getattr(extra, "description", None) for extra in extras):
            kind = Annotated[kind, Field(description=described[key])]
        fields[key] = kind if parameter.default is parameter.empty else NotRequired[kind]
    # Unlike a model, a TypedDict can have fields such as `copy` and `json`.
    shape = cast("Any", typing_extensions).TypedDict("Arguments", fields)
    shape.__pydantic_config__ = ConfigDict(extra="forbid")
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(shape)
        schema = adapter.json_schema()
    except PydanticUserError:
        culprit = next((key for key in parameters if not has_schema(hints[key])), ", ".join(parameters))
        message = f"the tool {name!r}: the type of the parameter {culprit!r} has no JSON schema"
        hint = "Use str, int, float, bool, list, dict, a TypedDict or a pydantic model."
        raise ToolUnavailable(message, hint=hint) from None
    return Form(_clean_schema(schema, parameters), adapter)


def _parameters(function: Handler, bound: bool, name: str) -> dict[str, inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            hint = "Use named parameters: no *args, **kwargs or positional-only parameters."
            raise ToolUnavailable(f"the tool {name!r}: the parameter {str(parameter)!r} is not supported", hint=hint)
        if parameter.annotation is parameter.empty:
            hint = f"Write `{parameter.name}: str`, or its actual type."
            raise ToolUnavailable(f"the tool {name!r}: the parameter {parameter.name!r} has no type", hint=hint)
        if type(parameter.default).__name__ == "FieldInfo":
            hint = f"Write `{parameter.name}: Annotated[..., Field(...)] = default`."
            raise ToolUnavailable(f"the tool {name!r}: {parameter.name!r} has a Field as its default", hint=hint)
    return {parameter.name: parameter for parameter in parameters}


def _hints(function: Handler, parameters: Mapping[str, inspect.Parameter], name: str) -> dict[str, Any]:
    """Return the types of the parameters. The return type may exist only for type checkers, so it is ignored."""
    written = types.SimpleNamespace(__annotations__={key: value.annotation for key, value in parameters.items()})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(written, names, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        hint = "Import it, or define it at the top of the module (not under TYPE_CHECKING)."
        raise ToolUnavailable(f"the tool {name!r}: unknown type of a parameter: {error}", hint=hint) from None


def _clean_schema(schema: dict[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Return the schema with defaults and without pydantic's titles."""
    schema.pop("title", None)
    properties: dict[str, dict[str, Any]] = schema.setdefault("properties", {})
    for key, shape in properties.items():
        shape.pop("title", None)
        default = parameters[key].default
        if isinstance(default, str | int | float | bool) and not isinstance(default, type):
            shape["default"] = default
    return schema


def _argument_descriptions(doc: str) -> dict[str, str]:
    """Return the descriptions of parameters in the `Args:` section."""
    found: dict[str, str] = {}
    inside, indent, current = False, 0, ""
    for line in doc.splitlines():
        text, depth = line.strip(), len(line) - len(line.lstrip())
        if text == "Args:":
            inside, indent = True, 0
            continue
        if not inside or not text:
            continue
        if depth == 0:
            inside = False
            continue
        indent = indent or depth
        if depth == indent and (match := _ARGUMENT.fullmatch(text)):
            current = match[1]
            found[current] = match[2]
        elif current:
            found[current] = f"{found[current]} {text}"
    return found


def clean(text: str) -> str:
    """Replace lone surrogates in a text by U+FFFD, so that it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def to_result(value: Any) -> ToolResult:
    """Convert the return value of a handler to a result: text, blocks, None or JSON."""
    if isinstance(value, ToolResult):
        return replace(value, content=tuple(map(_clean_block, value.content)))
    if isinstance(value, str):
        return ToolResult.of(clean(value))
    if isinstance(value, Text | Blob):
        return ToolResult(content=(_clean_block(value),))
    if value is None:
        return ToolResult.of("done")
    if isinstance(value, list | tuple) and value:
        items = tuple(cast("Iterable[Any]", value))
        if all(isinstance(item, Text | Blob) for item in items):
            return ToolResult(content=tuple(map(_clean_block, items)))
    return _as_json(value)


def _clean_block(block: Block) -> Block:
    return Text(clean(block.text)) if isinstance(block, Text) else block


def _as_json(value: Any) -> ToolResult:
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return ToolResult.of(to_json(value).decode())
    except (PydanticSerializationError, ValueError, RecursionError):
        pass
    try:  # the standard library escapes what pydantic refuses, such as lone surrogates
        return ToolResult.of(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        kind = type(value).__name__
        return ToolResult.error(f"The tool returned a {kind}, which cannot be converted to JSON.")


async def invoke(tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
    """Call the handler of a tool. Return invalid arguments and failures of the handler as error results."""
    import asyncio

    given = validate_arguments(tool, arguments)
    if isinstance(given, ToolResult):
        return given
    handler = _function(tool)
    call = functools.partial(handler, **given)
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return await _await_result(call())
    outcome = await asyncio.to_thread(_call_function, call)
    return await _await_result(outcome) if inspect.isawaitable(outcome) else outcome


def invoke_here(tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
    """Call the handler of a tool in this thread. Start an event loop only if the handler needs it."""
    given = validate_arguments(tool, arguments)
    return given if isinstance(given, ToolResult) else perform(_function(tool), given)


def perform(handler: Handler, arguments: Mapping[str, Any]) -> ToolResult:
    """Call a handler with valid arguments in this thread."""
    outcome = _call_function(lambda: handler(**arguments))
    if not inspect.isawaitable(outcome):
        return outcome
    import asyncio

    return asyncio.run(_await_result(outcome))


def validate_arguments(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any] | ToolResult:
    """Return the typed arguments for the handler, or an error result."""
    try:
        return _check(tool, arguments)
    except UsageError as error:
        return ToolResult.error(clean(str(error)))


def _function(tool: Tool) -> Handler:
    return tool.handler.function if isinstance(tool.handler, TypedHandler) else tool.handler


def argument_problem(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Return why the arguments are invalid, or None if they are valid."""
    given = validate_arguments(tool, arguments)
    return given.text if isinstance(given, ToolResult) else None


def _call_function(call: Callable[[], Any]) -> Any:
    """Return the result or awaitable of a function. Exceptions become results, because not all can leave a thread."""
    try:
        value = call()
        return value if inspect.isawaitable(value) else to_result(value)
    except BaseException as error:  # noqa: BLE001 - a handler can raise anything
        return _error_result(error)


async def _await_result(awaitable: Any) -> ToolResult:
    import asyncio

    try:
        return to_result(await awaitable)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return _error_result(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a handler can raise anything
        return _error_result(error)


def _error_result(error: BaseException) -> ToolResult:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the __str__ of an exception can fail
        message = ""
    if isinstance(error, GuildError):
        return ToolResult.error(clean(message))
    return ToolResult.error(clean(f"{type(error).__name__}: {message}" if message else type(error).__name__))
