#!/usr/bin/env python3
"""Compares what two jobs communicate, rank by rank: recorded on GPUs, captured on one, captured without any.

    bench/graphs.py recorded-job captured-job

Compared of every call: operation, type, count, reduction, peer or root, bytes, group, stream, communicator (by its first use, with
size and own rank), its number there; and their order on each thread. With --call-sites also where in the program a call is made. With
--kernels also the kernels and copies of each stream in their order, by name. cuBLAS's and cuDNN's kernels have names of their own on each
device: they are compared as what they compute; what those libraries launch beside is left out, and so are memory sets, which are theirs
mostly; all of that is listed.
Exit code: 0 if all ranks agree, 3 if not.
"""

import argparse
import collections
import json
import re
import subprocess
import sys
from pathlib import Path

from provenance import ROOT


# What a library's kernel computes, by its name on a GPU and on hostcuda; None: what it launches beside.
LIBRARY_KERNELS = (
    (re.compile(r"nvjet_|(void )?cutlass.*gemm|cublas.*gemm|.*_gemm_|hostcublas_gemm"), "matrix product"),
    (re.compile(r"cudnn_generated.*sdpa.*fprop|hostcudnn_sdpafwd"), "attention"),
    (re.compile(r"cudnn_generated.*sdpa.*bprop|hostcudnn_sdpabwd"), "attention, backward"),
    (re.compile(r"(void )?cudnn::|(void )?cublasLt::|(void )?cublas|splitKreduce"), None),
    (re.compile(r"set$"), None),  # memory sets, most of them of those libraries
)


def inspect(prism: Path, trace: Path) -> dict:
    done = subprocess.run([prism, "inspect", trace, "--nodes", "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{trace}: {done.stderr}")
    return json.loads(done.stdout)


def communications(trace: dict, with_call_sites: bool) -> list[list[dict]]:
    """Returns what each thread communicates in the order in which it enqueues it, of `prism inspect --nodes --json`.

    Communicators and streams are numbered by their first use: their names differ from run to run.
    """
    members = {c["number"]: (c["size"], c["rank"]) for c in trace["communicators"]}
    communicators: dict[int, int] = {}
    streams: dict[int, int] = {}
    threads = []
    for thread in trace["sequences"]:
        if thread["kind"] != "thread":
            continue
        calls = []
        for kind, stream, first, _ in thread.get("list", []):
            if kind != "enqueue":
                continue
            nodes = trace["sequences"][stream]["list"]
            for i in range(first, len(nodes)):
                kind_of_node, call, sequence, group = nodes[i]
                if kind_of_node != "comm" or (i > first and (group == 0 or group != nodes[first][3])):
                    break
                what = dict(trace["calls"][call])
                if not with_call_sites:
                    del what["call_site"]
                number = what.pop("communicator")
                what["communicator"] = (communicators.setdefault(number, len(communicators)), *members[number])
                what["stream"] = streams.setdefault(stream, len(streams))
                calls.append(what | {"sequence": sequence})
        if calls:
            threads.append(calls)
    return threads


def kernels(trace: dict, renamed: collections.Counter) -> list[list[str]]:
    """Returns the kernels and copies of each stream that has any, streams by their first use; counts in `renamed` which library's there were."""
    streams: dict[int, list[str]] = {}
    for thread in trace["sequences"]:
        for kind, stream, *_ in thread.get("list", []) if thread["kind"] == "thread" else []:
            if kind == "enqueue":
                streams.setdefault(stream, [])
    for stream, names in streams.items():
        for kind, span, *_ in trace["sequences"][stream].get("list", []):
            for name in trace["spans"][span] if kind == "span" else []:
                known = next((entry for entry in LIBRARY_KERNELS if entry[0].match(name)), None)
                if known:
                    renamed[f"{known[1] or 'left out'}: {name}"] += 1
                    name = known[1]
                if name:
                    names.append(name)
    return [names for names in streams.values() if names]


def first_kernel_difference(one: list[list[str]], other: list[list[str]]) -> str:
    if len(one) != len(other):
        return f"{len(one)} and {len(other)} streams have kernels"
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            return f"stream {number} with {len(a)} and {len(b)} kernels, number {at}: {a[at:at + 1]} and {b[at:at + 1]}"
    return ""


def first_difference(one: list[list[dict]], other: list[list[dict]]) -> str:
    if len(one) != len(other):
        return f"{len(one)} and {len(other)} threads communicate"
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        for i, (x, y) in enumerate(zip(a, b)):
            if x != y:
                return f"call {i} of thread {number}: {x} and {y}"
        if len(a) != len(b):
            return f"thread {number}: {len(a)} and {len(b)} calls"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path, nargs=2)
    parser.add_argument("--call-sites", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--rank", type=int, metavar="RANK", help="compare this rank alone (an emulated job has no other)")
    parser.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism", metavar="FILE")
    options = parser.parse_args()
    names = [sorted(file.name for file in (job / "trace").glob("rank-*.prt")) for job in options.jobs]
    if options.rank is not None:
        names = [[name for name in of if name == f"rank-{options.rank:05}.prt"] for of in names]
    if names[0] != names[1] or not names[0]:
        parser.error(f"the jobs have traces of different ranks: {names[0]} and {names[1]}")
    differ = False
    for name in names[0]:
        traces = [inspect(options.prism, job / "trace" / name) for job in options.jobs]
        one, other = (communications(trace, options.call_sites) for trace in traces)
        difference = first_difference(one, other)
        differ = differ or bool(difference)
        print(f"{name}: {difference or f'{sum(map(len, one))} communications, identical'}")
        if not options.kernels:
            continue
        renamed = [collections.Counter(), collections.Counter()]
        one, other = (kernels(trace, counts) for trace, counts in zip(traces, renamed))
        difference = first_kernel_difference(one, other)
        differ = differ or bool(difference)
        print(f"{name}: {difference or f'{sum(map(len, one))} kernels and copies on {len(one)} streams, identical'}")
        for job, counts in zip(options.jobs, renamed) if name == names[0][0] else ():  # the other ranks' are alike
            print(f"  of libraries in {job}:", *(f"{count:>7} {which[:120]}" for which, count in sorted(counts.items())), sep="\n    ")
    return 3 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
