"""Output schemas of Python models: computed in a confined process from the given sources."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import ToolUnavailable
from guildhall.tools.host.process import schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODEL = """
from pydantic import BaseModel

class Report(BaseModel):
    score: int
"""
LONG = """
from pydantic import BaseModel

class Report(BaseModel):
    score: int

Report.__doc__ = "x" * 2_000_000
"""
ODD = """
from pydantic import BaseModel

class Report(BaseModel):
    x: "Nowhere"
"""


def compute_schema(tmp_path: Path, reference: str, sources: Mapping[str, str]) -> Mapping[str, Any]:
    return asyncio.run(schema_of(reference, sources, tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        MODEL,
        "from dataclasses import dataclass\n@dataclass\nclass Report:\n    score: int\n",
        "from typing_extensions import TypedDict\nclass Report(TypedDict):\n    score: int\n",
    ],
)
def test_models_dataclasses_and_typed_dicts_have_a_schema(tmp_path: Path, text: str) -> None:
    found = compute_schema(tmp_path, "report:Report", {"report.py": text})
    assert found["type"] == "object"
    assert found["properties"]["score"]["type"] == "integer"
    assert "report" not in sys.modules


def test_a_package_imports_its_own_modules_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("x = 1\n")
    package = {
        "pkg/__init__.py": "",
        "pkg/parts.py": "from pydantic import BaseModel\nclass Part(BaseModel):\n    name: str\n",
        "pkg/model.py": "from .parts import Part\nimport pkg.deep.er as er\nclass Report(Part):\n    more: er.Deep\n",
        "pkg/deep/er.py": "from pkg.parts import Part\nclass Deep(Part):\n    pass\n",
    }
    assert set(compute_schema(tmp_path, "pkg.model:Report", package)["properties"]) == {"name", "more"}
    with pytest.raises(ToolUnavailable, match="No module named 'beside'") as caught:
        compute_schema(tmp_path, "pkg.model:Report", {"pkg/model.py": "x = 1\nimport beside\n"})
    assert caught.value.where == "pkg/model.py:2"
    assert "and itself" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown name"),
        ("Report = 1", "is not a model: its type is int"),
        ("from os import system as Report", "is not a model"),
        ("class Report: pass", "another kind of class"),
        ("Report = int", "another kind of class"),
        ("class Report(", "SyntaxError"),
        ("raise SystemExit(3)", "cannot load report:Report: SystemExit"),
        ("1 / 0", "ZeroDivisionError"),
        ("import os; os._exit(0)", "exited before it was ready"),
        (
            "import os\nfor fd in range(3, 1024):\n    try: os.write(fd, b'x' * 99)\n    except OSError: pass\n1 / 0",
            "tool host",
        ),
        (ODD, "cannot load "),
        (LONG, "at most 1,000,000 are allowed"),
    ],
)
def test_an_object_that_is_not_a_model_is_rejected_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ToolUnavailable) as caught:
        compute_schema(tmp_path, "report:Report", {"report.py": text})
    assert message in str(caught.value)


def test_model_code_is_confined(tmp_path: Path) -> None:
    """Reading and writing project files and network access fail."""
    (tmp_path / "secret.txt").write_text("secret")
    for text in (
        f"open({str(tmp_path / 'secret.txt')!r}).read()",
        f"open({str(tmp_path / 'made.txt')!r}, 'w').write('x')",
        "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
    ):
        with pytest.raises(ToolUnavailable, match="cannot load "):
            compute_schema(tmp_path, "report:Report", {"report.py": text + MODEL})
    assert [path.name for path in tmp_path.iterdir()] == ["secret.txt"]


@pytest.mark.parametrize("name", ["json", "pydantic", "guildhall"])
def test_a_module_with_the_name_of_a_loaded_module_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolUnavailable, match="is in use"):
        compute_schema(tmp_path, f"{name}:Report", {f"{name}.py": MODEL})
