"""Instructions: taken as they stand, or rendered where nothing can be broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import InvalidFile
from guildhall.workers import template as rendering
from guildhall.workers.loader import find_prompt, load, prompt_text

if TYPE_CHECKING:
    from tests.workers.conftest import Write

VERBATIM = "{{ not.rendered }} {% include '/etc/passwd' %}\r\n  ${{ env.X }}\n"


def rendered(write: Write, template: str) -> str:
    return prompt_text(write("prompts/w.j2", template), {"name": "w", "description": "d"}, max_cpu_s=1)


@pytest.mark.req("DO-2")
@pytest.mark.parametrize("suffix", ["md", "txt"])
def test_inline_md_and_txt_are_taken_verbatim(write: Write, project: Path, suffix: str):
    inline = load(write("workers/inline.json", json.dumps({"instructions": VERBATIM})))
    assert inline.instructions == VERBATIM
    write("workers/w.yaml", "description: d")
    prompt = project / "prompts" / f"w.{suffix}"
    prompt.parent.mkdir()
    prompt.write_bytes(VERBATIM.encode())
    assert load(project / "workers/w.yaml").instructions == VERBATIM


@pytest.mark.req("DO-2")
@pytest.mark.parametrize("suffix", ["j2", "jinja2"])
def test_templates_are_rendered(write: Write, suffix: str):
    write("prompts/parts/rubric.md", "{{ raw }}")
    write("prompts/tone.j2", "Be {{ tone }}.")
    write("prompts/macros.j2", "{% macro hi() %}{{ file('parts/rubric.md') }}{% endmacro %}")
    write(
        f"prompts/w.{suffix}",
        "{% set tone = 'kind' %}{% from 'macros.j2' import hi %}"
        "I am {{ name }}: {{ description }}. {% include 'tone.j2' %} {{ file('./parts/rubric.md') }} {{ hi() }}\n",
    )
    worker = load(write("workers/w.yaml", "description: what I do"))
    assert worker.instructions == "I am w: what I do. Be kind. {{ raw }} {{ raw }}\n"


@pytest.mark.parametrize("place", ["prompts", "workers/prompts"])
def test_prompts_are_beside_the_workers_folder_or_beside_the_file(write: Write, place: str):
    write(f"{place}/w.md", "here")
    assert load(write("workers/w.yaml", "description: d")).instructions == "here"


def test_prompts_of_generated_and_of_loose_workers(write: Write):
    write("prompts/made.md", "made")
    assert load(write("workers/generated/made.yaml", "description: d")).instructions == "made"
    write("elsewhere/prompts/loose.md", "loose")
    assert load(write("elsewhere/loose.yaml", "description: d")).instructions == "loose"


def test_inline_instructions_win_over_a_file(write: Write):
    write("prompts/w.md", "file")
    assert load(write("workers/w.yaml", "instructions: inline")).instructions == "inline"


def test_two_prompts_for_one_worker_are_an_error(write: Write, project: Path):
    write("prompts/w.md", "one")
    write("prompts/w.j2", "two")
    with pytest.raises(InvalidFile, match=r"several prompt files for one worker: w.md and w.j2\nDelete all but one"):
        load(write("workers/w.yaml", "description: d"))
    assert find_prompt("other", [project / "prompts", project / "nowhere"]) is None


@pytest.mark.req("DO-2")
@pytest.mark.parametrize(
    "name",
    [
        "../secret.md",
        "/etc/passwd",
        "parts/../../secret.md",
        "link.md",
        "folder/secret.md",
        "..\\secret.md",
        "fifo",
        "",
        "no.md",
    ],
)
@pytest.mark.parametrize("how", ["{%% include '%s' %%}", "{{ file('%s') }}", "{%% import '%s' as x %%}"])
def test_nothing_outside_the_prompts_folder_is_read(write: Write, project: Path, name: str, how: str):
    secret = write("secret.md", "TOP SECRET")
    write("prompts/parts/x.md", "x")
    (project / "prompts/link.md").symlink_to(secret)
    (project / "prompts/folder").symlink_to(project)
    os.mkfifo(project / "prompts/fifo")
    template = write("prompts/w.j2", how % name.replace("\\", "\\\\"))
    answer = rendering.render(str(template.parent), "w.j2", {})
    assert "text" not in answer
    assert "SECRET" not in answer["error"]


def test_a_prompt_that_is_a_link_is_not_followed(write: Write, project: Path):
    secret = write("secret.md", "TOP SECRET")
    (project / "prompts").mkdir()
    for suffix in ("md", "j2"):
        link = project / "prompts" / f"w.{suffix}"
        link.symlink_to(secret)
        with pytest.raises(InvalidFile, match="symbolic links are not followed"):
            load(write("workers/w.yaml", "description: d"))
        link.unlink()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("\n{{ missing }}", r"w.j2:2: cannot render the template: 'missing' is undefined"),
        ("\n\n{% for %}", r"w.j2:3: "),
        ("{{ 1 / 0 }}", r"w.j2:1: .*ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", r"w.j2:1: .*unsafe"),
        ("{{ [].append(1) }}", r"unsafe|not safely callable"),
        ("{{ file.func.__globals__ }}", r"unsafe|undefined"),
        ("{{ cycler.__init__.__globals__.os.environ }}", r"unsafe"),
        ("{% include 'bad.j2' %}", r"prompts/bad.j2:2: "),
        ("{% include 'w.j2' %}", r"too much memory"),
        ("{{ 'x' * 5000000 }}", r"longer than 400,000 characters"),
        ("{{ 'x' * 5000000000 }}", r"too much memory"),
        ("{% for i in range(10**9) %}{% endfor %}", r"[Rr]ange too big"),
    ],
)
@pytest.mark.req("DO-2")
def test_a_bad_template_is_an_error_with_a_place(write: Write, template: str, message: str):
    write("prompts/bad.j2", "\n{{ nothing }}")
    with pytest.raises(InvalidFile, match=message):
        rendered(write, template)


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ("{{ no }}", ("w.j2", 1)),
        ("\n{% if %}", ("w.j2", 2)),
        ("{{ 1 / 0 }}", ("w.j2", 1)),
        ("{{ 'x' * 500000 }}", None),
    ],
)
def test_what_the_renderer_says_about_a_bad_template(write: Write, template: str, place: tuple[str, int] | None):
    path = write("prompts/w.j2", template)
    answer = rendering.render(str(path.parent), "w.j2", {})
    assert answer["error"]
    assert (answer.get("file"), answer.get("line")) == (place or (None, None))


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 9 ** (9 ** (9 ** 9)) }}",
    ],
)
def test_an_endless_template_ends(write: Write, template: str):
    with pytest.raises(InvalidFile, match=r"it takes more than . s of CPU time"):
        rendered(write, template)


def test_a_template_sees_no_environment(write: Write, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    assert (
        rendered(write, "{{ name }}{% if environ is defined or env is defined or os is defined %}x{% endif %}") == "w"
    )


def test_files_that_are_no_text_are_not_taken(write: Write, project: Path):
    write("workers/w.yaml", "description: d")
    for content, message in ((b"\xff\xfe", "not UTF-8"), (b"x" * (rendering.MAX_FILE_BYTES + 1), "larger than")):
        (project / "prompts").mkdir(exist_ok=True)
        (project / "prompts/w.md").write_bytes(content)
        with pytest.raises(InvalidFile, match=message):
            load(project / "workers/w.yaml")


def test_the_renderer_speaks_json(write: Write, project: Path):
    write("prompts/w.j2", "Hi {{ name }}")
    request = {
        "path": sys.path,
        "folder": str(project / "prompts"),
        "name": "w.j2",
        "values": {"name": "w"},
        "max_cpu_s": 5,
    }
    script = [sys.executable, "-I", str(Path(rendering.__file__))]
    done = subprocess.run(script, input=json.dumps(request).encode(), capture_output=True, check=True)
    assert json.loads(done.stdout) == {"text": "Hi w"}
