"""Metric: runs a floor and the measured function alternately and compares the medians.

Noise of the machine affects both, so a ratio is more reliable than milliseconds.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A measurement. `floor` and `measured` return seconds, bytes if the unit is MB, or characters."""

    name: str  # "1 guild --help"; the number is that of the table in bench/README.md
    floor_name: str
    floor: Callable[[], float]
    measured: Callable[[], float]
    target: float | None  # the highest good ratio; None: only reported
    rounds: int = 15
    note: str = ""
    unit: Literal["ms", "MB", "chars"] = "ms"

    def convert(self, value: float) -> float:
        """Convert seconds, bytes or characters to the unit of the metric."""
        return value * {"ms": 1000, "MB": 1 / 1024**2, "chars": 1}[self.unit]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The medians of a metric."""

    metric: Metric
    floor: float
    measured: float

    @property
    def ratio(self) -> float:
        return self.measured / self.floor

    @property
    def verdict(self) -> str:
        target = self.metric.target
        if target is None:
            return "reported"
        return "good" if self.ratio <= target else "slow" if self.ratio <= 2 * target else "too slow"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.metric.name,
            "floor": self.metric.floor_name,
            f"floor_{self.metric.unit.lower()}": round(self.metric.convert(self.floor), 3),
            f"measured_{self.metric.unit.lower()}": round(self.metric.convert(self.measured), 3),
            "ratio": round(self.ratio, 2),
            "target": self.metric.target,
            "verdict": self.verdict,
            "note": self.metric.note,
        }


def seconds(do: Callable[[], object]) -> float:
    """Return how long a call takes."""
    before = time.perf_counter()
    do()
    return time.perf_counter() - before


def measure(metric: Metric) -> Result:
    """Run the floor and the measured function alternately, after a warm-up round. Change the order each round."""
    metric.floor()
    metric.measured()
    floors: list[float] = []
    measured: list[float] = []
    for turn in range(metric.rounds):
        order = [(floors, metric.floor), (measured, metric.measured)]
        for times, do in order if turn % 2 else reversed(order):
            times.append(do())
    return Result(metric=metric, floor=statistics.median(floors), measured=statistics.median(measured))
