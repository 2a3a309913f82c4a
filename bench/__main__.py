"""Run the metrics, print a table and write bench/results/latest.json. Exit with 1 if a ratio exceeds twice its target.

Arguments are parts of module names: `python -m bench cold` runs bench/m01_cold_start.py.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.frame import Result, measure

FOLDER = Path(__file__).parent
LATEST = FOLDER / "results" / "latest.json"


def main(wanted: list[str]) -> int:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # imports would look slower than they are
    names = sorted(path.stem for path in FOLDER.glob("m[0-9]*.py"))
    chosen = [name for name in names if not wanted or any(part in name for part in wanted)]
    if not chosen:
        print(f"Unknown metric. Known: {', '.join(names)}.", file=sys.stderr)
        return 2
    results: list[Result] = []
    failures: list[str] = []
    print(f"{'metric':28} {'floor':>24} {'measured':>12} {'ratio':>8} {'target':>8}  verdict")
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="guildhall-bench-") as scratch:
            for metric in importlib.import_module(f"bench.{name}").metrics(Path(scratch)):
                try:
                    results.append(measure(metric))
                except Exception as error:  # noqa: BLE001 - a broken metric must not hide the others
                    failures.append(f"{metric.name}: {error}")
                else:
                    print(_line(results[-1]), flush=True)
    _save(results)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures or any(result.verdict == "too slow" for result in results) else 0


def _line(result: Result) -> str:
    metric = result.metric
    floor = f"{metric.floor_name} {metric.convert(result.floor):.2f} {metric.unit}"
    measured = f"{metric.convert(result.measured):.2f} {metric.unit}"
    target = f"{metric.target:.2f}x" if metric.target is not None else "-"
    line = f"{metric.name:28} {floor:>24} {measured:>12} {result.ratio:>7.2f}x {target:>8}"
    return f"{line}  {result.verdict}{f' ({metric.note})' if metric.note else ''}"


def _save(results: list[Result]) -> None:
    """Save the results. Rows of metrics that did not run stay as they are."""
    rows_by_name: dict[str, Any] = {}
    if LATEST.is_file():
        rows_by_name = {row["name"]: row for row in json.loads(LATEST.read_text(encoding="utf-8"))["results"]}
    rows_by_name.update({result.metric.name: result.as_dict() for result in results})
    rows = [rows_by_name[name] for name in sorted(rows_by_name, key=lambda name: (int(name.split()[0]), name))]
    machine = {"python": platform.python_version(), "system": platform.system(), "cores": os.cpu_count()}
    LATEST.parent.mkdir(exist_ok=True)
    LATEST.write_text(json.dumps({"machine": machine, "results": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
