#!/usr/bin/env python3
"""Compares peaks of device memory here with those of a real H200, program by program.

    bench/memory.py                          # runs the programs that have a reference (tests/programs), then compares
    bench/memory.py --figures figures.json   # compares what run_matrix.py --output wrote earlier
    bench/memory.py --explain ddp-2          # what was held at the peak there and not here, and the other way round

Bars, on max_memory_allocated and max_memory_reserved of every rank, against the nearest of the H200's own repeats:

| programs                                                        | allocated | reserved |
|-----------------------------------------------------------------|-----------|----------|
| shapes do not depend on values or on other streams              | equal     | equal    |
| buffers pass between streams (several ranks)                    | 0.2 %     | 0.5 %    |
| shapes depend on values, which `control` makes up               | 2 %       | 2 %      |
| micro-batch search                                              | 0.2 %     | 0.5 %, and out of memory at the same size |

A difference with an entry in EXPLAINED is printed with its reason and does not count as missed, up to the share that the
entry allows. Exit code: 0, 1 if a program failed, 3 if a bar was missed.
"""

import argparse
import collections
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import Outcome, load_reference, outside, read_figures
from provenance import ROOT, provenance

SCHEMA = 1
FIGURES = ("max_memory_allocated", "max_memory_reserved")
BARS = {"static": (0.0, 0.0), "streams": (0.002, 0.005), "values": (0.02, 0.02)}
# Programs whose tensors' sizes follow from values: routing of tokens to experts.
VALUE_DEPENDENT = ("moe-", "qwen3-moe-eager")



@dataclasses.dataclass(frozen=True)
class Difference:
    """Why a program's peaks lie beyond the bars, and how far they may: what lies beyond these shares is missed."""

    reason: str
    allocated: float = 0.0
    reserved: float = 0.0


# Each reason rests on the allocators' histories of both sides (--explain).
WATCHDOG = (
    "PyTorch holds a bucket until its NCCL watchdog, which looks every 100 ms, has seen the all-reduce complete; a step takes "
    "longer here than on a GPU, so it is a matter of milliseconds whether DDP's first buckets still exist when it makes the "
    "next ones. The H200's own repeats of ddp-2 differ too"
)
NCCL_ADDRESSES = (
    "the requests are equal; NCCL's own allocations, which hostnccl does not make, lie among the program's and decide at which "
    "address the next region begins. The same history replayed with {} MiB of them takes every segment at the request at which "
    "the H200 took it"
)
IN_FLIGHT = (
    "at its peak the H200's last stage still had two micro-batches' buffers (512 KiB) in use by the communication stream: one "
    "segment of 2 MiB"
)
CONVOLUTIONS = "cuDNN's heuristics choose the algorithms of convolutions and with them their workspaces"
EXPLAINED = {
    "ddp-2": Difference(WATCHDOG, allocated=0.091, reserved=0.046),
    "gpt-ddp-2": Difference(WATCHDOG, allocated=0.158, reserved=0.11),
    "gpt-pp-2": Difference(NCCL_ADDRESSES.format("144 to 216"), reserved=0.042),
    "megatron-pipeline-2": Difference(NCCL_ADDRESSES.format("64 to 88"), reserved=0.007),
    "megatron-interleaved-2": Difference(NCCL_ADDRESSES.format("168 to 240"), reserved=0.0125),
    "pipeline-2": Difference(IN_FLIGHT, reserved=0.0094),
    "loader": Difference(CONVOLUTIONS, allocated=0.03),
}


def kind_of(name: str, outcome: Outcome) -> str:
    if name.startswith(VALUE_DEPENDENT):
        return "values"
    return "streams" if outcome.search or outcome.records[0]["result"]["world"] > 1 else "static"


def compare(name: str, ours: Outcome, theirs: list[Outcome]) -> dict:
    """Returns a program's row: the peaks, how far ours lie outside the H200's, and what was missed."""
    row: dict = {"program": name, "missed": [], "failed": ours.reason if ours.status != "ok" else ""}
    if row["failed"]:
        return row
    row["kind"] = kind_of(name, ours)
    if ours.search:
        compare_search(row, ours, theirs)
        return row
    known = EXPLAINED.get(name, Difference(""))
    within = True
    for figure, bar, bound in zip(FIGURES, BARS[row["kind"]], (known.allocated, known.reserved), strict=True):
        here, there = ours.peaks(figure), [repeat.peaks(figure) for repeat in theirs]
        worst = max((outside(*pair) for pair in zip(here, zip(*there, strict=True), strict=True)), key=abs)
        row[figure] = {"here": here, "h200": there, "outside": worst}
        if abs(worst) > bar:
            row["missed"].append(f"{figure} {worst:+.2%}" + (f", known up to {bound:.1%}" if known.reason else ""))
            within = within and abs(worst) <= bound
    row["requested_equal"] = any(ours.peaks("peak_requested") == repeat.peaks("peak_requested") for repeat in theirs)
    if row["missed"] and within:
        row["explained"] = known.reason
    return row


def compare_search(row: dict, ours: Outcome, theirs: list[Outcome]) -> None:
    here, there = ours.search_entries(), theirs[0].search_entries()
    row["sizes"] = {}
    for size in sorted(here.keys() | there.keys()):
        a, b = here.get(size, {}), there.get(size, {})
        if ("out_of_memory" in a) != ("out_of_memory" in b) or not a or not b:
            row["missed"].append(f"micro-batch {size}: out of memory on one side only")
        elif "out_of_memory" not in a:
            differences = [a[figure] / b[figure] - 1 for figure in FIGURES]
            row["sizes"][size] = {figure: [a[figure], b[figure]] for figure in FIGURES}
            row["missed"] += [
                f"micro-batch {size}: {figure} {difference:+.2%}"
                for figure, difference, bar in zip(FIGURES, differences, BARS["streams"], strict=True)
                if abs(difference) > bar
            ]
        else:
            row["out_of_memory_at"] = size


def shown(row: dict) -> list[str]:
    if row["failed"]:
        return [row["program"], "", "", "", "", f"failed: {row['failed']}"]
    if "sizes" in row:
        here = " ".join(f"{size}:{peaks[FIGURES[0]][0] / 2**20:.1f}" for size, peaks in row["sizes"].items())
        cells = [here, "", f"out of memory at {row.get('out_of_memory_at', '?')}"]
    else:

        def cell(figure: str) -> str:
            mib = " ".join(f"{value / 2**20:.1f}" for value in sorted(set(row[figure]["here"])))
            return f"{mib} ({row[figure]['outside']:+.2%})" if row[figure]["outside"] else mib

        cells = [*map(cell, FIGURES), "equal" if row["requested_equal"] else "differ"]
    verdict = "ok" if not row["missed"] else "explained" if "explained" in row else "MISSED: " + "; ".join(row["missed"])
    return [row["program"], row["kind"], *cells, verdict]


def print_table(rows: list[dict]) -> None:
    head = ["program", "kind", "allocated MiB", "reserved MiB", "requests", ""]
    lines = [head, *map(shown, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        if "explained" in row:
            print(f"{row['program']}: {'; '.join(row['missed'])}: {row['explained']}")


def held_at_peak(events: list[list]) -> collections.Counter:
    """Replays an allocator's history and returns how many blocks of which size were held when most was."""
    held: collections.Counter = collections.Counter()
    total = most = 0
    at_peak: collections.Counter = collections.Counter()
    for what, size, _ in events:
        if what not in "af":
            continue
        sign = 1 if what == "a" else -1
        held[size] += sign
        total += sign * size
        if total > most:
            most, at_peak = total, held.copy()
    return at_peak


def explain(name: str, ours: Outcome, theirs: list[Outcome]) -> None:
    """Prints, rank by rank, which blocks one side held at its peak and the other did not, and which it asked for."""
    for repeat in theirs:
        for here, there in zip(ours.records, repeat.records, strict=True):
            if "memory_events" not in here or "memory_events" not in there:
                continue
            rank, a, b = here["result"]["rank"], here["memory_events"], there["memory_events"]
            asked_a, asked_b = (collections.Counter(e[1] for e in events if e[0] == "a") for events in (a, b))
            for title, more, less in (
                ("held at the peak on the H200 only", held_at_peak(b), held_at_peak(a)),
                ("held at the peak here only", held_at_peak(a), held_at_peak(b)),
                ("asked for on the H200 only", asked_b, asked_a),
                ("asked for here only", asked_a, asked_b),
            ):
                extra = sorted((more - less).items(), reverse=True)
                print(f"{name} rank {rank}: {title}: " + (", ".join(f"{n} x {size} B" for size, n in extra) or "nothing"))


def measure(names: list[str], python: Path, timeout: float) -> dict[str, Outcome]:
    """Runs the programs through the matrix's runner."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "figures.json")
        runner = [python, ROOT / "tests/programs/run_matrix.py", *names, "--output", file, "--timeout", str(timeout)]
        subprocess.run(list(map(str, runner)), check=False, stdout=subprocess.DEVNULL)  # failures are in the file
        return read_figures(file)


def chosen_outcomes(
    parser: argparse.ArgumentParser, options: argparse.Namespace, reference: dict
) -> tuple[list[str], dict[str, Outcome]]:
    """Names of the programs to compare and our outcomes of them, from --figures or measured now. A program without a
    reference ends the parser with an error."""
    if unknown := [name for name in options.programs if name not in reference]:
        parser.error(f"no H200 figures of {', '.join(unknown)}; there are some of {', '.join(reference)}")
    names = options.programs or list(reference)
    if options.figures:
        ours = {name: outcome for file in options.figures for name, outcome in read_figures(file).items()}
        names = [name for name in names if name in ours]
    else:
        ours = measure(names, options.python, options.timeout)
    return names, ours


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names (default: all that have a reference)")
    parser.add_argument("--figures", type=Path, action="append", metavar="FILE", help="compare these, do not run anything")
    parser.add_argument("--explain", action="store_true", help="compare the allocators' histories too")
    parser.add_argument("--python", type=Path, default=ROOT / ".env/bin/python", metavar="FILE")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds a program may take (default: 300)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, not as a table")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON here, e.g. bench/results/memory.json")
    options = parser.parse_args()
    reference = load_reference()
    names, ours = chosen_outcomes(parser, options, reference)
    rows = [compare(name, ours[name], reference[name]) for name in names if ours[name].status != "skipped"]
    result = {"schema": SCHEMA, "benchmark": "memory", **provenance(), "programs": rows}
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print_table(rows)
    if options.explain:
        for name in names:
            explain(name, ours[name], reference[name])
    if any(row["failed"] for row in rows):
        return 1
    return 3 if any(row["missed"] and "explained" not in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
