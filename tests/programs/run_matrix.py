"""Runs the programs of catalogue.py and says which of them work here, and with what figures.

    .env/bin/python tests/programs/run_matrix.py                                 # all of them; a table on stdout
    .env/bin/python tests/programs/run_matrix.py 'mlp-*' ddp-2                   # some
    .env/bin/python tests/programs/run_matrix.py --markdown docs/matrix.md       # the page in docs
    python3 tests/programs/run_matrix.py --output figures.json                   # everything measured, e.g. on a GPU

A program fails if it exits non-zero, does not end in time, or does not report from every rank. The page says which call
of which library was missing, if one was, and shows the figures beside those of a real H200 from bench/results/h200/.
Exit code: 0 if all passed, 1 if one failed.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import fnmatch
import importlib.util
import itertools
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

from catalogue import PROGRAMS, Program

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from figures import Outcome, load_reference, outside  # noqa: E402
from provenance import ROOT, provenance  # noqa: E402
from torchrun import last_error, run_to_end, torchrun  # noqa: E402

SCHEMA = 1

MISSING_CALL = re.compile(r"hostcuda: (?:\S+: )?(\S+) is not implemented|not implemented by hostcuda: (\S+)")
SEARCH_LINE = re.compile(
    r"^rank (\d+) micro_batch (\d+) (?:max_memory_allocated (\d+) max_memory_reserved (\d+)|out of memory: (.*))", re.M
)


def command_of(program: Program, python: str) -> list[str]:
    launcher = [python] if program.ranks == 1 else torchrun(python, program.ranks)
    return [*launcher, str(program.path), *program.arguments]


def run(program: Program, python: str, timeout: float, profile: bool) -> tuple[Outcome, str]:
    """Runs one program to its end or its time-out. Returns what came of it and its output."""
    if program.needs and importlib.util.find_spec(program.needs) is None:
        return Outcome("skipped", reason=f"the package {program.needs} is not installed"), ""
    with tempfile.TemporaryDirectory(prefix="matrix-") as directory:
        environment = {
            "HOSTCUDA_VALUES": program.values,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            # Compiling takes memory of the device too, so everybody starts without a cache.
            "TORCHINDUCTOR_CACHE_DIR": f"{directory}/inductor",
            "TRITON_CACHE_DIR": f"{directory}/triton",
        }
        if program.ranks == 1 and "CUDA_VISIBLE_DEVICES" not in os.environ:
            environment["CUDA_VISIBLE_DEVICES"] = "0"  # else transformers' Trainer replicates its model on all there are
        if profile:
            environment["PROGRAM_OUTPUT"] = directory
        code, text, seconds = run_to_end(command_of(program, python), environment, timeout, Path(directory))
        outcome = Outcome("ok", round(seconds, 1))
        profiles = {record["result"]["rank"]: record for record in map(read_json, Path(directory).glob("*.rank*.json"))}
    results = [json.loads(line.partition("RESULT ")[2]) for line in text.splitlines() if "RESULT {" in line]
    outcome.records = [profiles.get(result["rank"], {"result": result}) for result in results]
    outcome.records.sort(key=lambda record: record["result"]["rank"])
    if program.searches_micro_batch:
        outcome.search = [search_entry(match) for match in SEARCH_LINE.finditer(text)]
        reported = program.ranks if any("out_of_memory" in entry for entry in outcome.search) else 0  # rank 0 speaks for all
    else:
        reported = len(outcome.records)
    if code is None:
        outcome.status, outcome.reason = "failed", f"did not end within {timeout:.0f} s"
    elif code != 0:
        outcome.status, outcome.reason = "failed", f"exit code {code}: {last_error(text)}"
    elif reported != program.ranks:
        outcome.status, outcome.reason = "failed", f"{reported} of {program.ranks} ranks reported"
    if outcome.status == "failed" and (match := MISSING_CALL.search(text)):
        outcome.missing_call = match[1] or match[2]
    return outcome, text


def read_json(path: Path) -> dict:
    return json.loads(path.read_text())


def search_entry(match: re.Match) -> dict:
    rank, micro_batch, allocated, reserved, error = match.groups()
    entry: dict = {"rank": int(rank), "micro_batch": int(micro_batch)}
    if error is not None:
        return entry | {"out_of_memory": error}
    return entry | {"max_memory_allocated": int(allocated), "max_memory_reserved": int(reserved)}


def counts(record: dict) -> str:
    """Formats a steady step as kernels, copies, collectives. Fills are left out: libraries issue most of them."""
    if "device_events" not in record:
        return ""
    names = [record["names"][event[1]] for event in record["device_events"]]
    copies = sum(name.startswith("Memcpy") for name in names)
    kernels = sum(not name.startswith(("Memcpy", "Memset")) for name in names)
    operations = [entry.get("operation") for entry in record["communications"]]
    collectives = sum(1 for operation in operations if operation not in ("wait", "init", None))
    return f"{kernels}, {copies}, {collectives}"


def shown_bytes(here: list[int], there: list[list[int]]) -> str:
    """Formats peaks in MiB, "here / H200". Each of `there` is one repeat on the H200, whose own repeats differ where
    buffers pass between streams; says by how much ours lie outside all of them, if they do."""

    def mib(values: Iterable[int]) -> str:
        return " ".join(f"{value / 2**20:.1f}" for value in sorted(set(values))) or "-"

    there = [repeat for repeat in there if len(repeat) == len(here)]
    if not there:
        return f"{mib(here)} / -"
    if here in there:
        return f"{mib(here)} / the same"
    worst = max((outside(ours, theirs) for ours, theirs in zip(here, zip(*there, strict=True), strict=True)), key=abs)
    return f"{mib(here)} / {mib(itertools.chain(*there))} ({f'{worst:+.2%}' if worst else 'within its repeats'})"


def table(outcomes: dict[str, Outcome], reference: dict[str, list[Outcome]]) -> str:
    rows = [
        "| program | ranks | values | here | missing call | allocated MiB: here / H200 | reserved MiB: here / H200 "
        "| kernels, copies, collectives of a steady step: here / H200 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    programs = {program.name: program for program in PROGRAMS}
    for name, outcome in outcomes.items():
        program, there = programs[name], reference.get(name, [])
        ours = counts(outcome.records[0]) if outcome.records else ""
        theirs = counts(there[0].records[0]) if there and there[0].records else ""
        result = outcome.status if outcome.status == "ok" else f"{outcome.status}: {outcome.reason}"
        cells = [
            name,
            str(program.ranks),
            program.values,
            result.replace("|", "\\|"),
            f"`{outcome.missing_call}`" if outcome.missing_call else "",
            *(
                shown_bytes(outcome.peaks(figure), [repeat.peaks(figure) for repeat in there])
                for figure in ("max_memory_allocated", "max_memory_reserved")
            ),
            f"{ours or '-'} / {theirs or '-'}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def search_table(outcomes: dict[str, Outcome], reference: dict[str, list[Outcome]]) -> str:
    """Formats the micro-batch searches: peaks of rank 0 at each size, then where memory ran out."""
    rows = []
    for name, outcome in outcomes.items():
        if not outcome.search:
            continue
        repeats = [repeat.search_entries() for repeat in reference.get(name, [])]
        rows += ["", f"`{name}`: here / H200", "", "| micro-batch | allocated MiB | reserved MiB |", "|---|---|---|"]
        for size, entry in outcome.search_entries().items():
            others = [repeat[size] for repeat in repeats if size in repeat]
            if "out_of_memory" in entry:
                same = all("out_of_memory" in other for other in others) and others
                rows.append(f"| {size} | out of memory / {'the same' if same else 'no such failure' if repeats else '-'} | |")
                continue
            cells = (
                shown_bytes([entry[figure]], [[other[figure]] for other in others if figure in other])
                for figure in ("max_memory_allocated", "max_memory_reserved")
            )
            rows.append(f"| {size} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n" if rows else ""


def page(outcomes: dict[str, Outcome], reference: dict[str, list[Outcome]]) -> str:
    tally = collections.Counter(outcome.status for outcome in outcomes.values())
    return f"""# What runs

Written by `tests/programs/run_matrix.py --markdown docs/matrix.md`; do not edit. Each program is in `tests/programs/` and
knows nothing of prism or hostcuda. "Here" is a machine without a GPU. The H200's figures are from `bench/results/h200/`.

{tally["ok"]} ok, {tally["failed"]} failed, {tally["skipped"]} skipped.

{table(outcomes, reference)}{search_table(outcomes, reference)}"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=["*"], help="names or patterns (default: all)")
    parser.add_argument("--list", action="store_true", help="print the programs' names and stop")
    parser.add_argument("--ranks", type=int, action="append", metavar="N", help="only programs of N ranks (repeatable)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="programs at a time (default: 1)")
    parser.add_argument("--python", default=sys.executable, help="interpreter for the programs (default: this one)")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds a program may take (default: 300)")
    parser.add_argument("--no-profile", action="store_true", help="do not profile a steady step")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write everything measured, as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page with the table")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep each program's output in DIR/NAME.txt")
    arguments = parser.parse_args()
    for pattern in arguments.programs:
        if not any(fnmatch.fnmatch(program.name, pattern) for program in PROGRAMS):
            parser.error(f"no program matches {pattern!r}; --list names them all")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    chosen = [
        program
        for program in PROGRAMS
        if any(fnmatch.fnmatch(program.name, pattern) for pattern in arguments.programs)
        and (not arguments.ranks or program.ranks in arguments.ranks)
    ]
    if arguments.list:
        print("\n".join(program.name for program in chosen))
        return 0
    figures = {
        "schema": SCHEMA,
        **provenance(),
        "programs": {},
    }
    finished: dict[str, Outcome] = {}

    def run_one(program: Program) -> None:
        outcome, text = run(program, arguments.python, arguments.timeout, not arguments.no_profile)
        if arguments.logs:
            arguments.logs.mkdir(parents=True, exist_ok=True)
            (arguments.logs / f"{program.name}.txt").write_text(text)
        with lock:
            finished[program.name] = outcome
            line = f"[{len(finished)}/{len(chosen)}] {program.name}: {outcome.status} {outcome.seconds} s {outcome.reason}"
            print(line, file=sys.stderr, flush=True)
            if arguments.output:  # after each program, so that an interrupted run keeps what it has
                figures["programs"][program.name] = dataclasses.asdict(outcome)
                arguments.output.parent.mkdir(parents=True, exist_ok=True)
                arguments.output.write_text(json.dumps(figures, separators=(",", ":")))

    lock = threading.Lock()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(run_one, chosen))
    outcomes = {program.name: finished[program.name] for program in chosen}
    reference = load_reference()
    if arguments.markdown:
        arguments.markdown.write_text(page(outcomes, reference))
    print(table(outcomes, reference) + search_table(outcomes, reference), end="")
    return 1 if any(outcome.status == "failed" for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
