"""The documentation of models matches the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from guildhall.core.config import ModelTimeouts
from guildhall.models.catalog import AUTO_MODELS
from guildhall.models.credentials import KEY_VARIABLES, URL_VARIABLES
from guildhall.models.scripted.source import Answer, Price, Script, ScriptedUsage, ScriptSource, load_script
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.workers.definition import ModelSettings
from tests.models.scripts import write_script

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTED = (DOCS / "scripted-model.md").read_text()
MODELS = (DOCS / "models.md").read_text()


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", SCRIPTED, re.DOTALL))
def test_every_script_in_the_documentation_loads(tmp_path: Path, text: str) -> None:
    path = write_script(tmp_path, text)
    assert ScriptSource(path, load_script(path)).script.workers


@pytest.mark.parametrize("model", [Script, Answer, Price, ScriptedUsage])
def test_every_field_of_a_script_is_documented(model: type[Script]) -> None:
    for name, info in model.model_fields.items():
        assert re.search(rf"`[^`]*\b{info.alias or name}\b[^`]*`", SCRIPTED), name


def test_the_example_in_python_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", SCRIPTED, re.DOTALL)
    (tmp_path / "answers.yaml").write_text(re.findall(r"```yaml\n(.*?)```", SCRIPTED, re.DOTALL)[0])
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/scripted-model.md", "exec"), {})


def test_the_models_of_auto_are_documented() -> None:
    for provider, model in AUTO_MODELS.items():
        row = next(line for line in MODELS.splitlines() if line.endswith(f"| `{model}` |"))
        assert all(f"`{variable}`" in row for variable in KEY_VARIABLES[provider])


def test_the_variables_of_servers_are_documented() -> None:
    assert all(f"`{variable}`" in MODELS for variable in set(URL_VARIABLES.values()))


def test_the_model_settings_and_the_runtimes_that_apply_them_are_documented() -> None:
    assert all(f"| `{name}` |" in MODELS for name in ModelSettings.model_fields)
    for row in RUNTIMES.values():
        if row.settings is not None:
            names = ", ".join(f"`{name}`" for name in row.settings) or "none"
            assert f"| `{row.name}` | {names} |" in MODELS


def test_the_timeouts_and_their_defaults_are_documented() -> None:
    (block,) = (text for text in re.findall(r"```yaml\n(.*?)```", MODELS, re.DOTALL) if "model_timeouts" in text)
    assert ModelTimeouts.model_validate(yaml.safe_load(block)["model_timeouts"]) == ModelTimeouts()
