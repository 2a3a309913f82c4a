"""Runs real `guild` commands in processes of their own, and stops them at a chosen commit, to be killed there.

It is a fork of the process that has imported what commands import (tests/warm.py), and each command is a fork of it, so
that a sweep over many points does not wait for Python to start. The product does not know of it: the one function that
commits is wrapped here, from outside, and each entry gets a commit of its own, so that no point hides inside a group.

Orders come in as lines of JSON, and what becomes of the process goes out as lines of JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def entry() -> None:
    orders, replies = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")

    def reply(**message: Any) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    reply(state="ready")
    for line in orders:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(order)
        reply(state="started", pid=pid)
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            reply(state="stopped", pid=pid)
            _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            reply(state="killed", signal=os.WTERMSIG(status))
        else:
            reply(state="ended", code=os.WEXITSTATUS(status))


def _child(order: dict[str, Any]) -> NoReturn:
    code = 70
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # one that is stopped must not outlive the tests
        os.setsid()
        for fd, path in enumerate((os.devnull, order["out"], order["err"])):
            opened = os.open(path, os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, fd)
            os.close(opened)
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        code = _command(order)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _command(order: dict[str, Any]) -> int:
    from guildhall.store import engine

    main = importlib.import_module(order.get("program") or "guildhall.cli.main").main
    number = 0 if order["function"] else order["number"]
    commits = Commits(engine._commit, number, order["when"], grouped=order["grouped"])
    engine._commit = commits
    if order["function"]:
        _stop_at(order["function"], order["when"], order.get("call") or order["number"] or 1)
    code = main(order["words"])
    Path(f"{order['out']}.commits").write_text(str(commits.count))
    return code


class Commits:
    """In the place of the store's commit: counts, and stops the process before, inside or after one of them."""

    def __init__(self, commit: Callable[..., Any], number: int, when: str, *, grouped: bool) -> None:
        self.count = 0
        self._grouped = grouped
        self._commit = commit
        self._number = number
        self._when = when

    def __call__(self, connection: Any, batch: list[Any]) -> None:
        for group in [batch] if self._grouped else [[write] for write in batch]:
            self._one(connection, group)

    def _one(self, connection: Any, group: list[Any]) -> None:
        self.count += 1
        here = self._when if self.count == self._number else ""
        if here == "before":
            _halt()
        if here == "inside":
            last = group[-1]
            group = [*group[:-1], type(last)(_and_halt(last.fn), last.is_durable, last.done)]
        self._commit(connection, group)
        if here == "after":
            _halt()


def _stop_at(name: str, when: str, number: int) -> None:
    """Stops before or after a call of a function that makes something on disk, such as the database itself.

    It is named `module:function` or `module:Class.method`. `call` is its number.
    """
    owner: Any = importlib.import_module(name.partition(":")[0])
    *classes, last = name.partition(":")[2].split(".")
    for one in classes:
        owner = getattr(owner, one)
    function, calls = getattr(owner, last), 0

    def stopping(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != number:
            return function(*arguments, **named)
        if when == "after":
            function(*arguments, **named)
        return _halt()

    setattr(owner, last, stopping)


def _and_halt(write: Callable[..., Any]) -> Callable[..., Any]:
    def written(connection: Any) -> Any:
        write(connection)
        _halt()

    return written


def _halt() -> NoReturn:
    """Stop all threads until the process is killed from outside."""
    os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        time.sleep(60)
