"""Figures of the programs in tests/programs: what tests/programs/run_matrix.py measures, here or on a real H200."""

import collections
import dataclasses
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from provenance import ROOT

REFERENCE = ROOT / "bench/results/h200"


@dataclasses.dataclass
class Outcome:
    """What came of one run of a program. `records` holds what each rank wrote: its RESULT line and, where it was
    profiled, its steady step (see tests/programs/steady_step.py)."""

    status: str  # ok, failed, skipped
    seconds: float = 0.0
    reason: str = ""
    missing_call: str | None = None
    records: list[dict] = dataclasses.field(default_factory=list)
    search: list[dict] = dataclasses.field(default_factory=list)

    def peaks(self, figure: str) -> list[int]:
        """Returns one of the RESULT line's figures, by rank."""
        return [record["result"][figure] for record in self.records]

    def search_entries(self) -> dict[int, dict]:
        """Returns what rank 0 reported of a micro-batch search, by micro-batch."""
        return {entry["micro_batch"]: entry for entry in self.search if entry["rank"] == 0}


def read_figures(path: Path) -> dict[str, Outcome]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return {name: Outcome(**outcome) for name, outcome in json.loads(text)["programs"].items()}


def load_reference() -> dict[str, list[Outcome]]:
    """Returns the H200's outcomes of each program, one for each repeat."""
    reference: dict[str, list[Outcome]] = collections.defaultdict(list)
    for path in sorted(REFERENCE.glob("figures*.json.gz")):
        for name, outcome in read_figures(path).items():
            if outcome.status == "ok":
                reference[name].append(outcome)
    return reference


def outside(ours: int, theirs: Sequence[int]) -> float:
    """Returns how far `ours` lies below or above the range of `theirs`, as a share of its nearer end."""
    if ours < min(theirs):
        return ours / min(theirs) - 1
    return ours / max(theirs) - 1 if ours > max(theirs) else 0.0
