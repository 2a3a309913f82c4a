"""Run typical commands once in a process before commands are forked from it.

The first run of a process costs five times as much as the next one: statements are compiled, pydantic models are built
and caches are filled. Nothing else remains: the folder is deleted, no thread is running and no file is open.
"""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
from pathlib import Path

from guildhall.core.paths import HOME_VARIABLE
from guildhall.hall.client.discovery import EMBEDDED_VARIABLE

_FILES = {
    "workers/clerk.yaml": """
instructions: Be brief.
model: script:answers.yaml
sandboxes: {desk: {path: desk, mode: rw}}
""",
    "pair.yaml": """
agents:
  ann: {model: "script:answers.yaml", system_prompt: Be brief.}
  bob: {model: "script:answers.yaml", system_prompt: Be brief.}
context: {documentOwner: none}
kickoff: "@ann begin"
""",
    "answers.yaml": """
repeat: true
workers:
  clerk: [[{call: sandbox_write_text, with: {sandbox: desk, path: a.txt, content: a}}, {say: done}]]
  ann: [[{call: channel_send, with: {message: "@bob now you"}}, {call: no_action}]]
  bob: [[{call: document_write, with: {content: text}}, {call: no_action}]]
""",
    "workers/caller.yaml": "{instructions: Be brief., model: 'anthropic:claude-sonnet-4-5', base: false}",
    "wire.yaml": "{repeat: true, workers: {caller: [[{say: done}]]}}",
}


def warm_up() -> None:
    """Run the parts of which most commands of the tests consist."""
    from guildhall.cli.main import main
    from guildhall.testing.scripted_server import ScriptedServer

    before, folder_before = dict(os.environ), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as devnull:
        for name, text in _FILES.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        os.environ.update({HOME_VARIABLE: f"{folder}/home", EMBEDDED_VARIABLE: "1"})
        os.chdir(folder)
        try:
            with (
                contextlib.redirect_stdout(devnull),
                contextlib.redirect_stderr(devnull),
                ScriptedServer(Path("wire.yaml")) as server,
            ):
                os.environ.update({"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": "script-caller"})
                for words in ("run clerk hello", "run pair.yaml", "run caller hello", "ls", "plan clerk"):
                    if code := main(words.split()):
                        raise RuntimeError(f"guild {words}: {code}")
        finally:
            os.chdir(folder_before)
            os.environ.clear()
            os.environ.update(before)
    gc.collect()
    gc.freeze()
