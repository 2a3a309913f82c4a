"""The log of a process that serves: lines on standard error, without secrets."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from guildhall.core.redaction import Secrets

if TYPE_CHECKING:
    from collections.abc import Mapping


class Log(logging.Formatter):
    """Lines for the log, without secrets: the environment's, and those that requests bring."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._secrets = Secrets(environ)

    def learn(self, variables: Mapping[str, str]) -> None:
        self._secrets.learn(variables)

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets(super().format(record))


def log_to_stderr(environ: Mapping[str, str]) -> Log:
    """From now on this process writes its log to standard error, without the secrets of its environment."""
    log = Log(environ)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("guildhall").setLevel(logging.INFO)
    return log
