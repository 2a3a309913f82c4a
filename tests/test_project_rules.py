"""Rules of the project: layers, documentation, module size, and no conditions on texts."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from guildhall.core import errors
from guildhall.core.errors import GuildError
from tests.text_conditions import find_conditions

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "guildhall"
MAX_MODULE_LINES = 700  # every module has fewer
# Folders of one developer's machine, unlike system folders such as /usr.
_MACHINE_PATH = re.compile(r"(?<![\w.~}*$/-])/(root|work|home/\w+|Users/\w+|mnt/\w+)(/|\b(?![.\w-]))")
_TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".json", ".txt", ".j2", ".jinja2", ""}

# Allowed conditions on a text, by module, with the reason.
_ALLOWED = {
    (
        "runs/execution/call_ledger.py",
        "asked.data.message != request_parts(messages[-1])",
    ): "a request to a model, compared as data",
    (
        "runs/replay/replay.py",
        "asked.data.message != request_parts(messages[-1])",
    ): "a request to a model, compared as data",
    ("jobs/queries.py", "hint.replace(run.id, purpose.id)"): "shows the id of the job; decides nothing",
    ("models/dialects/openai_responses.py", "incomplete_reason == 'content_filter'"): "a code of the provider's API",
    ("models/provider_source.py", "_VARIABLE.findall(str(error))"): "pydantic-ai has no field for the missing variable",
}


def layer_names() -> list[str]:
    """Return the layers of the import contract from top to bottom, and `testing`."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ][0]
    named = [name.strip(" ()") for layer in contract["layers"] for name in layer.split("|")]
    return [name for name in [*named, "testing"] if (SOURCE / name / "__init__.py").is_file()]


def find_modules() -> list[Path]:
    return sorted(path for folder in ("src", "tests", "bench", "scripts") for path in (ROOT / folder).rglob("*.py"))


def tracked_files() -> list[Path]:
    """Return all text files of the project: tracked by git, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and path.suffix in _TEXT]


def error_codes() -> list[str]:
    def below(kind: type[GuildError]) -> list[type[GuildError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in below(child))]

    return sorted(kind.code for kind in below(GuildError) if kind.__module__ == errors.__name__)


@pytest.mark.parametrize("layer", layer_names())
def test_a_layer_documents_its_neighbours_and_limits(layer: str):
    text = ast.get_docstring(ast.parse((SOURCE / layer / "__init__.py").read_text(encoding="utf-8")))
    assert text is not None
    assert len(text.splitlines()[0]) > 20, "the first line does not state the purpose"
    # Nothing is above the command line, and testing is not a layer of the contract.
    for word in {"cli": ["Below:"], "testing": []}.get(layer, ["Above:", "Below:"]):
        assert word in text, f"{layer} does not say what is {word[:-1].lower()} it"
    assert re.search(r"\b(not|Not|nothing|Nothing|no|never|Pure)\b", text), f"{layer} does not say what it is not"


def test_every_package_is_a_layer_of_the_contract():
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(layer_names())


@pytest.mark.parametrize("code", error_codes())
def test_every_error_code_is_documented(code: str):
    assert re.search(rf"`{code}`", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"))


def test_the_wheel_has_the_marker_of_a_typed_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/guildhall"]}, "the wheel has all files that git does not ignore"
    marker = SOURCE / "py.typed"
    assert marker.read_bytes() == b""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ignored = subprocess.run(["git", "check-ignore", "-q", marker], cwd=ROOT, env=env)
    assert ignored.returncode != 0


def test_no_module_is_too_long():
    lengths = {
        path.relative_to(SOURCE): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")
    }
    assert {path: length for path, length in lengths.items() if length >= MAX_MODULE_LINES} == {}


def test_every_module_has_a_docstring():
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in find_modules()}
    assert [path for path, text in texts.items() if text.strip() and not ast.get_docstring(ast.parse(text))] == []


def test_every_page_is_in_the_index_and_every_link_works():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    missing = [
        page.name
        for page in (ROOT / "docs").glob("*.md")
        if page.name != "README.md" and f"]({page.name})" not in index
    ]
    assert missing == [], "docs/README.md lists every page"
    pages = [path for path in tracked_files() if path.suffix == ".md"]
    broken = [
        f"{page.relative_to(ROOT)} -> {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert broken == []


def test_no_file_contains_a_path_of_one_machine():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked_files()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _MACHINE_PATH.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("line", ['p = "/ro' + 'ot/x"', "cd /wo" + "rk/main", "see /home/ada/notes", "(/Users/ada)"])
def test_a_machine_path_is_recognised(line: str):
    assert _MACHINE_PATH.search(line)


@pytest.mark.parametrize("line", ["~/work/x", "tests/root/x", "/rooted", "GET /api/work/", "$HOME/root", "a/home/ada"])
def test_other_paths_are_allowed(line: str):
    assert not _MACHINE_PATH.search(line)


def test_no_condition_on_a_text_for_people():
    found = {
        (path.relative_to(SOURCE).as_posix(), code): line
        for path in sorted(SOURCE.rglob("*.py"))
        for line, code in find_conditions(path.read_text(encoding="utf-8"))
    }
    wrong = [f"{name}:{line}: {code}" for (name, code), line in found.items() if (name, code) not in _ALLOWED]
    assert not wrong, "use a column, an enum or an error class:\n" + "\n".join(wrong)
    assert not _ALLOWED.keys() - found.keys(), "these conditions no longer exist"


@pytest.mark.parametrize(
    "body",
    [
        # found in earlier code
        "return self.status == 'in_progress' and self.reason != working(self.worker)",
        "return next(moment for moment in timeline if moment.reason == 'the result was submitted')",
        "return [one.at for one in timeline if one.reason.endswith(GONE)]",
        "return any(GONE in str(one.data['result']['content']) for one in ended)",
        "if found.reason == said:\n        return",
        "told = f'{error.message}. {error.hint}'\n    return told if 'guild commission edit' not in told else ''",
        "raise HallUnavailable(error.message.replace(\"the hall's\", 'its'))",
        "said = error.hint or ''\n    return said if 'GUILDHALL_HOME' not in said else OTHER",
        "if 'in use by' not in error.message:\n        raise error",
        "said = str((one.error or {}).get('message'))\n    return said.startswith('the script ')",
        "return any(problem.message.startswith('output_schema_ref') for problem in found.problems)",
        "told = {problem.message for problem in found.problems}\n    return [one for one in said if one not in told]",
        "return [problem for problem in plan.problems if problem.partition(':')[0] in toolboxes]",
        "name, _, wrong = error.message.partition(':')",
        "hint, job = error.hint, run.job\n    return str(hint).replace(run.id, job)",
        # similar conditions
        "late = (run.reason or '').removeprefix(LATE) or None",
        "try:\n        go()\n    except ValueError as error:\n        return 'disk' in str(error)",
        "try:\n        go()\n    except OSError as error:\n        return error.args[0] == 'full'",
        "if (hint := error.get('hint')) and 'guild resume' in hint:\n        return",
        "status = PATTERN.search(str(entry.data.get('message')))",
        "if re.match('HTTP', error.message):\n        return",
        "match stretch.reason:\n        case 'limit':\n            return",
        "return (run.status, run.reason) == ('paused', 'because')",
        "return path not in changed and result.startswith('Made ')",
        "text = result.text\n    return 'Replaced' in text",
        "return _CUT.search(result.text)",
        "return TEXTS[error.message]",
        "query = select(runs).where(runs.c.reason == 'the hall stopped')",
        "reason = error.message if error else run.reason\n    return reason in KNOWN",
    ],
)
def test_a_condition_on_a_text_is_recognised(body: str):
    assert find_conditions(f"async def function(self):\n    {body}\n"), body


@pytest.mark.parametrize(
    "body",
    [
        "return error.code == 'hall_in_use' or isinstance(error, HallInUse)",
        "return entry.kind == 'submit' and entry.reason is not None",
        "return f'{error.message.rstrip(\".\")}. {error.hint}' if error.hint else error.message",
        "return [problem.text for problem in plan.problems if problem.kind == 'toolbox']",
        "return mail.message.id in known and mail.message.content.startswith('#')",
        "return deliveries.c.message == number",
        "return ' '.join(error.message.split())",
        "return len(entry.reason) > 80",
        "return result.file_before == 'absent' and len(result.text) < 9",
        "return 'tools' in result or result != entry.result",
    ],
)
def test_other_conditions_are_allowed(body: str):
    assert find_conditions(f"async def function(self):\n    {body}\n") == [], body


def test_every_module_on_the_architecture_page_exists():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.(?:py|tsv))`", page)
    steps = re.findall(r"(?m)^\d+\. `([\w/]+\.py)`", page)
    assert len(steps) == 20
    assert [path for path in named if "/" in path and not (SOURCE / path).is_file()] == []


def test_no_folder_has_more_than_twenty_modules():
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    counts = {
        str(folder.relative_to(SOURCE)): len([path for path in folder.glob("*.py") if path.name != "__init__.py"])
        for folder in folders
    }
    assert {folder: count for folder, count in counts.items() if count > 20} == {}


def exporting_packages() -> list[str]:
    """Return the packages that offer lazy exports."""
    found = [
        path for path in SOURCE.rglob("__init__.py") if "lazy_exports(__name__" in path.read_text(encoding="utf-8")
    ]
    return sorted(".".join(path.parent.relative_to(SOURCE.parent).parts) for path in found)


@pytest.mark.parametrize("package", exporting_packages())
def test_a_package_resolves_its_exports_and_imports_none_of_them_early(package: str):
    code = f"""
import sys
import {package} as package
early = [name for name in sys.modules if name.startswith("{package}.") and not name.startswith("guildhall.core")]
assert not early, early
assert package.__all__ and package.__all__ == dir(package)
for name in package.__all__:
    assert getattr(package, name) is not None
try:
    package.unknown_name
except AttributeError as error:
    assert "unknown_name" in str(error)
else:
    raise AssertionError("an unknown name is an AttributeError")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_layer_exports_its_public_names():
    missing = [name for name in layer_names() if name != "testing" and f"guildhall.{name}" not in exporting_packages()]
    assert not missing
