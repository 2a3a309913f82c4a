"""A provider for tests: the scripted model on a loopback port, for real clients of Anthropic and OpenAI.

    with ScriptedServer(Path("review.yaml")) as server:
        client = anthropic.Anthropic(base_url=server.anthropic_url, api_key="script-reviewer")

The key names the worker whose answers are given, `script-WORKER.1` those of its second run.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Self

import uvicorn

from guildhall.core.ids import fingerprint
from guildhall.models.script import ScriptSource, load_script
from guildhall.models.wire import MAX_BODY, Exchange, wire_app

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_PATIENCE = 5.0  # seconds for the server to begin and to end


class ScriptedServer:
    """Serves a script while the `with` block runs, and keeps what it was asked in `requests`."""

    def __init__(self, script: Path, *, max_body: int = MAX_BODY) -> None:
        self.requests: list[Exchange] = []
        source = ScriptSource(script, load_script(script))
        app = wire_app(lambda worker: source, on_exchange=self.requests.append, max_body=max_body)
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._socket = socket.socket()
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="scripted-server")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def anthropic_url(self) -> str:
        """What a client of Anthropic takes as its base URL."""
        return f"{self.url}/anthropic"

    @property
    def openai_url(self) -> str:
        """What a client of OpenAI takes as its base URL."""
        return f"{self.url}/openai/v1"

    @property
    def answered_twice(self) -> list[Exchange]:
        """The requests that were answered although the very same one had been answered before."""
        seen: set[tuple[str | None, str]] = set()
        twice: list[Exchange] = []
        for exchange in self.requests:
            if exchange.answered:
                question = (exchange.key, fingerprint(exchange.body))
                twice += [exchange] if question in seen else []
                seen.add(question)
        return twice

    def __enter__(self) -> Self:
        self._socket.bind(("127.0.0.1", 0))
        self._thread.start()
        deadline = time.monotonic() + _PATIENCE
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                self._stop()
                raise RuntimeError("the scripted server did not start")
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(_PATIENCE)
        self._socket.close()
