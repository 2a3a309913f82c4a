"""Measure the language of Python trees: docstrings, names and phrases that docs/style.md rules out.

scripts/language.py             check src, tests and bench; exit with 1 if a limit is exceeded
scripts/language.py --list DIR  print file, line, rule and text of every finding in a tree
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]

_FIRST_WORDS = re.compile(
    r"`*(What|Whether|Who|How|Where|When|Which|The|A|An|All|Those|That|Whatever|Whoever|One|So|It|Each|Every)`*(\s|$)"
)
_VAGUE = re.compile(
    r"\b(who|what|whoever|whatever|those|somebody|nobody|anybody|others)\b|\bones\b|\bone that\b", re.IGNORECASE
)
_PARTICIPLE = re.compile(r"[a-z]+(ed|en|own|old|ught|ept|een|ade|one|iven|ent)")
_NOT_PARTICIPLE = re.compile(
    r"content|event|agent|client|parent|document|environment|argument|segment|comment|statement|"
    r"assignment|component|element|experiment|fragment|open|token|screen|len|listen|feed|embed|"
    r"seed|need|speed|phone|clone|zone|present|current|recent|student|sent|accept|except|concept|"
    r"intent|extent|increment|implement|prevent|represent|golden|hidden|done|down|shutdown|"
    r"breakdown|own|hold|fold|threshold|bold|scaffold|between|kitchen|trade|upgrade|cascade|made|"
    r"grade|even|given|seven|then|when|children"
)
_GERUNDS_OF_THE_FIELD = {"testing", "pricing", "routing", "string", "logging"}
_STOP_PHRASES = re.compile(
    r"how-manieth|\bput away\b|\b(?:is|are|was|were) told\b|\bcomes? to (?:it|them|nothing)\b|\bgoes on\b"
    r"|\bgo on with\b|\bhas left\b|\bno more of\b|\banew\b|\breads? along\b|(?-i:\b(?:is|are) none\b)|\bwhat came of\b"
    r"|\bis at it\b|\blets? live\b|\bmerely say\b|\bthis very\b|\bthe three together\b",
    re.IGNORECASE,
)

# Percent of docstrings, docstrings and function names; number of modules and phrases.
LIMITS = {
    "clause_docstring": 8.0,
    "vague_first_line": 3.0,
    "participle_name": 2.0,
    "gerund_module": 3,
    "stop_phrase": 5,
}
_PER_DOCSTRING = {"clause_docstring", "vague_first_line"}


@dataclass(frozen=True)
class Finding:
    """A place that breaks a rule."""

    rule: str
    path: Path
    line: int
    text: str


@dataclass(frozen=True)
class Report:
    """The findings in a tree, and how many docstrings and functions it has."""

    findings: list[Finding]
    docstrings: int
    functions: int

    def rates(self) -> dict[str, float]:
        """Return the value of each rule, in the unit of its limit."""
        counts = Counter(finding.rule for finding in self.findings)
        rates: dict[str, float] = {}
        for rule in LIMITS:
            if rule in _PER_DOCSTRING:
                rates[rule] = 100 * counts[rule] / max(self.docstrings, 1)
            elif rule == "participle_name":
                rates[rule] = 100 * counts[rule] / max(self.functions, 1)
            else:
                rates[rule] = counts[rule]
        return rates


def measure(root: Path) -> Report:
    """Measure every module below a directory."""
    findings: list[Finding] = []
    docstrings = functions = 0
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.stem.endswith("ing") and path.stem not in _GERUNDS_OF_THE_FIELD:
            findings.append(Finding("gerund_module", path, 1, path.stem))
        findings += _find_stop_phrases(path, text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                functions += not isinstance(node, ast.ClassDef)
                docstrings += bool((ast.get_docstring(node) or "").strip())
                findings += [Finding(rule, path, node.lineno, what) for rule, what in _check_definition(node)]
    return Report(findings, docstrings, functions)


def _find_stop_phrases(path: Path, text: str) -> Iterator[Finding]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}:
            for match in _STOP_PHRASES.finditer(token.string):
                yield Finding("stop_phrase", path, token.start[0], match.group(0))


def _check_definition(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[tuple[str, str]]:
    is_function = not isinstance(node, ast.ClassDef)
    name = node.name.strip("_")
    if (
        is_function
        and _PARTICIPLE.fullmatch(name)
        and not _NOT_PARTICIPLE.fullmatch(name)
        and not node.name.startswith("__")
    ):
        yield "participle_name", node.name
    docstring = (ast.get_docstring(node) or "").strip()
    if docstring:
        first_line = docstring.splitlines()[0]
        if is_function and _FIRST_WORDS.match(docstring):
            yield "clause_docstring", first_line
        if _VAGUE.search(first_line):
            yield "vague_first_line", first_line


def check(root: Path, factor: int) -> bool:
    """Print the values of a tree, list the findings of each exceeded rule, and return True if none is exceeded."""
    report = measure(root)
    rates = report.rates()
    print(root.relative_to(ROOT), " ".join(f"{rule}={rate:.1f}" for rule, rate in rates.items()))
    exceeded = {rule for rule, rate in rates.items() if rate > LIMITS[rule] * factor}
    for finding in report.findings:
        if finding.rule in exceeded:
            print(f"{finding.path.relative_to(ROOT)}:{finding.line}: {finding.rule}: {finding.text}")
    return not exceeded


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="DIR", type=Path)
    directory = parser.parse_args().list
    if directory is not None:
        for finding in measure(directory).findings:
            print(f"{finding.path}:{finding.line}: {finding.rule}: {finding.text}")
        return 0
    results = [check(ROOT / "src" / "guildhall", 1), check(ROOT / "tests", 2), check(ROOT / "bench", 2)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
