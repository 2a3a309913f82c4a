"""Template renderer: a program that renders the jinja2 template of a prompt.

`workers.loader` starts it as a script, writes a request as JSON to its standard input, and reads the response as JSON
from its standard output. A template that loops forever, exhausts memory or escapes the jinja2 sandbox harms only this
process, which has an empty environment and strict limits.

Invariant: the program reads files only below the prompts folder. It imports no module of Guildhall.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import stat
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

MAX_CHARACTERS = 400_000
MAX_FILE_BYTES = 1_000_000
_MAX_MEMORY_BYTES = 512 * 1024 * 1024


class UnreadableFile(Exception):
    """A file outside of the prompts folder, or a file that is not plain text."""


def read_inside(folder: str, name: str, label: str = "the prompts folder") -> str:
    """Return the text of a regular file below the folder. Raise UnreadableFile for `..`, absolute paths and links.

    `label`: the name of the folder in error messages.
    """
    parts = [part for part in name.split("/") if part != "."]
    if not parts or any(part in {"", ".."} for part in parts) or "\\" in name or "\0" in name:
        raise UnreadableFile(f"{name!r} is outside of {label}")
    with contextlib.ExitStack() as opened:
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, here)
        try:
            for part in parts[:-1]:
                here = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                opened.callback(os.close, here)
            file = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
        except FileNotFoundError:
            raise UnreadableFile(f"{name!r} does not exist in {label}") from None
        except OSError as error:
            raise UnreadableFile(f"cannot read {name!r} (symbolic links are not followed): {error.strerror}") from None
        opened.callback(os.close, file)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise UnreadableFile(f"{name!r} is not a regular file")
        data = bytearray()
        while len(data) <= MAX_FILE_BYTES and (chunk := os.read(file, MAX_FILE_BYTES + 1)):
            data += chunk
    if len(data) > MAX_FILE_BYTES:
        raise UnreadableFile(f"cannot read {name!r}: larger than {MAX_FILE_BYTES:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableFile(f"{name!r} is not UTF-8 text") from None


def render(folder: str, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rendered text as `text`, or an `error` with its `file` and `line` if known."""
    from jinja2 import FunctionLoader, StrictUndefined, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def load(part: str) -> tuple[str, str, None]:
        return _read_part(folder, part), f"{folder}/{part}", None

    environment = ImmutableSandboxedEnvironment(
        loader=FunctionLoader(load), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    cast("dict[str, Any]", environment.globals)["file"] = partial(_read_part, folder)
    pieces: list[str] = []
    length = 0
    try:
        for piece in environment.get_template(name).generate(values):
            length += len(piece)
            if length > MAX_CHARACTERS:
                return {"error": f"the rendered text is longer than {MAX_CHARACTERS:,} characters"}
            pieces.append(piece)
    except (MemoryError, RecursionError):
        return {"error": "the template needs too much memory"}
    except (TemplateError, UnreadableFile) as error:
        return {"error": str(error.args[0]) if error.args else str(error), **_error_location(error, folder)}
    except Exception as error:  # noqa: BLE001 - a template can raise anything: it is a program
        return {"error": f"{type(error).__name__}: {error}", **_error_location(error, folder)}
    return {"text": "".join(pieces)}


def _read_part(folder: str, name: str) -> str:
    """Return the text of a file that a template includes, relative to the prompts folder or to the project."""
    return read_inside(folder, name.removeprefix("prompts/"))


def _error_location(error: Exception, folder: str) -> dict[str, Any]:
    """Return the template and the line of an error, from the traceback that jinja2 provides."""
    line: int | None = getattr(error, "lineno", None)
    if line is not None:
        return {"file": str(getattr(error, "name", "")), "line": line}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(f"{folder}/")]
    return {"file": frames[-1].filename[len(folder) + 1 :], "line": frames[-1].lineno} if frames else {}


def main() -> None:
    """Read the request, limit this process, render the template, and write the response."""
    request = json.load(sys.stdin.buffer)
    sys.path[:] = request["path"]
    for kind, limit in ((resource.RLIMIT_CPU, int(request["max_cpu_s"])), (resource.RLIMIT_AS, _MAX_MEMORY_BYTES)):
        with contextlib.suppress(OSError, ValueError):  # not supported by every system
            resource.setrlimit(kind, (limit, limit))
    response = render(request["folder"], request["name"], request["values"])
    sys.stdout.buffer.write(json.dumps(response).encode())


if __name__ == "__main__":
    main()
