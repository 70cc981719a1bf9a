#!/usr/bin/env python3
"""Compares what one steady step asked of the device, here and on a real H200: communications, copies and kernels.

    bench/communication.py                          # runs the programs that have a reference (tests/programs), then compares
    bench/communication.py --figures figures.json   # compares what run_matrix.py --output wrote earlier
    bench/communication.py --figures figures.json --differences ddp-2

Bars, for every rank of every program:

| what           | dense programs                                                     | shapes that depend on values |
|----------------|--------------------------------------------------------------------|------------------------------|
| communications | operation, type, counts, group: the same sequence                  | totals over all ranks agree  |
| copies         | direction, kind of host memory, bytes: the same on each stream     | reported                     |
| kernels        | names and grids: the same sequence on each stream, but for LIBRARY | reported                     |

LIBRARY kernels belong to cuBLAS, cuDNN and NCCL: there a call is the kernels that NVIDIA's heuristics pick, here it is one
kernel of another name. They are counted. Fills are not compared: libraries issue most of them. A difference with an entry in
EXPLAINED is printed with its reason and does not count as missed. Exit code: 0, 1 if a program failed, 3 if a bar was missed.
"""

import argparse
import collections
import difflib
import json
import re
import sys
from pathlib import Path

from figures import Outcome, load_reference
from memory import VALUE_DEPENDENT, chosen_outcomes
from provenance import ROOT, provenance

SCHEMA = 1
LIBRARY = re.compile(
    r"^nvjet_|cutlass::Kernel2<|^sm\d+_xmma_|cublas|splitKreduce|gemmSN_|gemvNSP|gemv2|^void scal_kernel|sgemm_largek"
    r"|cudnn|^host(cublas|cublaslt|cudnn|cusolver|cusparse|cufft|curand)|^ncclDevKernel"
)
GRAPH_COPIES = "the driver turns a small copy inside a graph into a kernel of its own (memcpy32_post); here it stays a copy"
HISTOGRAMS = (
    "with computed values bincount and histc are one kernel of the value layer, where a GPU runs fills, reductions and a "
    "histogram and copies the reductions' results to the host"
)
OCCUPANCY = (
    "the grid of CUB's histogram kernel, 924 blocks there and 2112 here, follows from how many blocks fit on a multiprocessor, "
    "which the kernel's registers and static shared memory limit; here only threads and dynamic shared memory do"
)
CLIPPING = (
    "megatron-core scales gradients whose norm is above 1: at the profiled step it was below on the H200; here control makes "
    "the norm up"
)
# Program -> what differs, and why.
EXPLAINED = {
    "cuda-graph": ({"copies", "kernels"}, GRAPH_COPIES),
    "qwen3-moe-grouped": ({"copies", "kernels"}, HISTOGRAMS),
    "qwen3-8b": ({"kernels"}, OCCUPANCY),
    "megatron-data-2": ({"copies", "kernels"}, CLIPPING),
}
# What torch records beside communications proper.
NOT_COMMUNICATIONS = ("wait", "init", None)


def communications(record: dict) -> list[tuple]:
    """Returns a rank's communications in the order in which it issued them."""
    keys = ("operation", "type", "in", "out", "in_split", "out_split", "group_size", "source", "destination")
    return [
        tuple(str(entry.get(key)) for key in keys)
        for entry in record["communications"]
        if entry.get("operation") not in NOT_COMMUNICATIONS
    ]


def totals(records: list[dict]) -> dict[str, list[int]]:
    """Returns, by operation and type, how many elements all ranks put in and took out."""
    sums: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for record in records:
        for entry in record["communications"]:
            if entry.get("operation") not in NOT_COMMUNICATIONS:
                total = sums[f"{entry['operation']} {entry.get('type')}"]
                total[0] += entry.get("in", 0)
                total[1] += entry.get("out", 0)
    return dict(sums)


def by_stream(record: dict, wanted) -> list[list]:
    """Returns one sequence a stream of what `wanted(name, event)` keeps, without regard to the streams' numbers."""
    sequences: dict[int, list] = collections.defaultdict(list)
    for event in record["device_events"]:
        kept = wanted(record["names"][event[1]], event)
        if kept is not None:
            sequences[event[0]].append(kept)
    return sorted(sequences.values())


def copy_of(name: str, event: list) -> list | None:
    """Keeps direction, whether the host's memory is page-locked, and bytes."""
    return [name, event[2]] if name.startswith("Memcpy") else None


def kernel_of(name: str, event: list) -> list | None:
    """Keeps name and grid; of Triton's kernels the name alone, since its autotuner chooses the grid by timing."""
    if name.startswith(("Memcpy", "Memset")) or LIBRARY.search(name):
        return None
    return [name] if name.startswith("triton_") else [name, event[2]]


def library_kernels(record: dict) -> int:
    names = (record["names"][event[1]] for event in record["device_events"])
    return sum(1 for name in names if LIBRARY.search(name) and not name.startswith("ncclDevKernel"))


def compare(name: str, ours: Outcome, theirs: Outcome) -> dict:
    row: dict = {"program": name, "missed": [], "failed": ours.reason if ours.status != "ok" else ""}
    if row["failed"]:
        return row
    depends_on_values = name.startswith(VALUE_DEPENDENT)
    row["kind"] = "values" if depends_on_values else "dense"
    pairs = list(zip(ours.records, theirs.records, strict=True))
    same = {
        "communications": all(communications(a) == communications(b) for a, b in pairs),
        "copies": all(by_stream(a, copy_of) == by_stream(b, copy_of) for a, b in pairs),
        "kernels": all(by_stream(a, kernel_of) == by_stream(b, kernel_of) for a, b in pairs),
    }
    first = ours.records[0]
    row["counts"] = {
        "communications": len(communications(first)),
        "copies": sum(map(len, by_stream(first, copy_of))),
        "kernels": sum(map(len, by_stream(first, kernel_of))),
    }
    row["library_kernels"] = [library_kernels(first), library_kernels(theirs.records[0])]
    row["same"] = same
    if depends_on_values:
        row["totals"] = [totals(ours.records), totals(theirs.records)]
        same = {"totals": row["totals"][0] == row["totals"][1]}
    row["missed"] = [what for what, equal in same.items() if not equal]
    known, reason = EXPLAINED.get(name, (set(), ""))
    if row["missed"] and known.issuperset(row["missed"]):
        row["explained"] = reason
    return row


def shown(row: dict) -> list[str]:
    if row["failed"]:
        return [row["program"], "", "", "", "", "", f"failed: {row['failed']}"]
    cells = [f"{row['counts'][what]} {'the same' if equal else 'differ'}" for what, equal in row["same"].items()]
    library = " / ".join(map(str, row["library_kernels"]))
    verdict = "ok" if not row["missed"] else "explained" if "explained" in row else f"MISSED: {', '.join(row['missed'])}"
    return [row["program"], row["kind"], *cells, library, verdict]


def print_table(rows: list[dict]) -> None:
    head = ["program", "kind", "communications", "copies", "kernels", "library: here / H200", ""]
    lines = [head, *map(shown, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        if "explained" in row:
            print(f"{row['program']}: {', '.join(row['missed'])}: {row['explained']}")


def print_differences(name: str, ours: Outcome, theirs: Outcome) -> None:
    """Prints a unified diff of each differing sequence of rank 0, H200 first."""
    here, there = ours.records[0], theirs.records[0]
    sequences = [("communications", communications(there), communications(here))]
    for what, wanted in (("copies", copy_of), ("kernels", kernel_of)):
        for number, (a, b) in enumerate(zip(by_stream(there, wanted), by_stream(here, wanted), strict=False)):
            sequences.append((f"{what} of stream {number}", a, b))
    for what, a, b in sequences:
        lines = ([str(entry)[:200] for entry in side] for side in (a, b))
        for line in difflib.unified_diff(*lines, f"{name} {what}, H200", f"{name} {what}, here", n=0, lineterm=""):
            print(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names (default: all with a profiled step)")
    parser.add_argument("--figures", type=Path, action="append", metavar="FILE", help="compare these, do not run anything")
    parser.add_argument("--differences", action="store_true", help="print what differs, line by line")
    parser.add_argument("--python", type=Path, default=ROOT / ".env/bin/python", metavar="FILE")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds a program may take (default: 300)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, not as a table")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON here, e.g. bench/results/communication.json")
    options = parser.parse_args()
    reference = {
        name: repeats[0]
        for name, repeats in load_reference().items()
        if repeats[0].records and "device_events" in repeats[0].records[0]
    }
    names, ours = chosen_outcomes(parser, options, reference)
    rows = [compare(name, ours[name], reference[name]) for name in names if ours[name].status != "skipped"]
    result = {"schema": SCHEMA, "benchmark": "communication", **provenance(), "programs": rows}
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print_table(rows)
    if options.differences:
        for name in names:
            print_differences(name, ours[name], reference[name])
    if any(row["failed"] for row in rows):
        return 1
    return 3 if any(row["missed"] and "explained" not in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
