"""Members for tests: real folders, a real program."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

TOY = Path(__file__).with_name("toy_member.py")


def put_member(top: Path, name: str, way: str = "", /, *, work: bool = True, **fields: Any) -> Path:
    """Write a member into `guild-members` of a folder. `fields` replace fields of its manifest."""
    folder = top / "guild-members" / name
    folder.mkdir(parents=True)
    shutil.copy(TOY, folder / "server.py")
    manifest: dict[str, Any] = {
        "name": name,
        "displayName": name.title(),
        "description": f"Does what {name} does.",
        "version": "1.0.0",
        "transport": "http",
        "mcp": {"command": "${PYTHON}", "args": ["server.py", "${PORT}", way]},
        **({"capabilities": ["worker"]} if work else {}),
        **fields,
    }
    (folder / "guild-member.json").write_text(json.dumps(manifest, indent=2))
    return folder
