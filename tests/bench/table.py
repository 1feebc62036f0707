"""Rows of figures, each with its bound if it has one, printed as a table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Row:
    """One figure; its bound is on a ratio to something measured in the same run, or on a share."""

    name: str
    value: float
    unit: str
    bound: float | None = None
    keep: Literal["at least", "at most"] = "at least"
    note: str = ""

    @property
    def kept(self) -> bool:
        """Whether the bound is kept; a row without one keeps everything."""
        if self.bound is None:
            return True
        return self.value >= self.bound if self.keep == "at least" else self.value <= self.bound


def print_table(rows: Iterable[Row]) -> bool:
    """Print the rows; says whether every bound was kept."""
    rows = list(rows)
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        bound = "" if row.bound is None else f"{row.keep} {row.bound:g}"
        verdict = "" if row.bound is None else ("kept" if row.kept else "MISSED")
        print(
            f"{row.name:<{width}}  {row.value:>12,.2f} {row.unit:<12} {bound:<14} {verdict:<7} {row.note}", flush=True
        )
    return all(row.kept for row in rows)
