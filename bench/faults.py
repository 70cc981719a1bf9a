#!/usr/bin/env python3
"""Plants faults in small jobs and looks whether each is named: which ranks, communicator and call, what both sides did and
where, and how long after the mistake. Then looks whether sound jobs are left alone.

    bench/faults.py                                       # every fault, in PyTorch and in C++; the sound jobs
    bench/faults.py --fault count kill --language c++ --repeats 5 --no-sound --output bench/results/faults.json

The faults are those of examples/faults.py and examples/cpp/faults.cc, made by rank 2 of 4. The time runs from the rank's
announcement to prism's diagnosis on stderr; faults that do not stop a job (overlap, straggler, imbalance) are found by
`prism check` afterwards, and the time is what that takes. The latter two are recorded on hostcuda's virtual clock, on which
kernels, copies and calls have stated times. On a GPU most of these faults hang until a timeout, ten minutes by default.
Bar: everything is named, within 5 s. Exit code: 0, 1 if a run failed or something was not named or a sound job was accused,
3 if the time was missed.
"""

import argparse
import dataclasses
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from provenance import ROOT, provenance
from torchrun import progress

BAR_S = 5.0
SCHEMA = 2
RANKS, RANK = 4, 2
OTHERS = (0, 1, 3)
LANGUAGES = ("python", "c++")


def site(python: str, cpp: str) -> dict[str, str]:
    """Call sites as they must be shown: the innermost frames, separated by ' < '."""

    def chain(frames: str, frame: str) -> str:
        return " < ".join(frame % function for function in frames.split())

    return {"python": chain(python, r"faults\.py:\d+ in %s"), "c++": chain(cpp, r"faults\+0x[0-9a-f]+ in %s")}


AVERAGE = site("average main", "Trainer::Average main")
MISTAKE = site("average average_faulty main", "Trainer::Average Trainer::AverageFaulty main")
LOSS = site("average_loss main", "Trainer::AverageLoss main")
MAIN = site("main", "main")
EXCHANGE = site("exchange main", "Trainer::Exchange main")
LAST_CALL = {language: "its last communication call was Broadcast #5 of communicator 1 at " + where for language, where in MAIN.items()}


@dataclasses.dataclass
class Side:
    """What a diagnosis must say of some ranks: `text` (regular expressions) and where. A string holds for both languages."""

    ranks: tuple[int, ...]
    text: str | dict[str, str]
    site: dict[str, str] | None = None  # None: nothing is known, or the text says it
    call: int | None = None  # where the sides wait in different ones
    communicator: int | None = None  # None: the one that is concerned


@dataclasses.dataclass
class Expected:
    headline: str
    communicator: tuple[int, ...] | None  # the ranks of the one that is concerned
    call: int | None
    sides: tuple[Side, ...]


def disagreement(call: str, number: int, one: str, where: dict[str, str], others: str, others_where: dict[str, str]) -> Expected:
    headline = rf"{call} #{number} of communicator 1: rank 2 disagrees with the other 3"
    return Expected(headline, tuple(range(RANKS)), number, (Side((RANK,), one, where), Side(OTHERS, others, others_where)))


def absence(headline: str, one: str | dict[str, str], where: dict[str, str] | None) -> Expected:
    side = Side(OTHERS, "wait in AllReduce float32 sum, 1000 elements", AVERAGE)
    return Expected(headline, tuple(range(RANKS)), 6, (Side((RANK,), one, where), side))


ALL_REDUCE = "call AllReduce float32 sum, 1000 elements"
EXPECTED = {
    "count": disagreement("AllReduce", 6, "calls AllReduce float32 sum, 1001 elements", MISTAKE, ALL_REDUCE, AVERAGE),
    "type": disagreement("AllReduce", 6, "calls AllReduce float16 sum, 1000 elements", MISTAKE, ALL_REDUCE, AVERAGE),
    "root": disagreement("Broadcast", 5, "calls Broadcast float32 from member 2", MAIN, "call Broadcast float32 from member 0", MAIN),
    "op": disagreement("call", 6, "calls AllGather float32, 1000 elements", site("average_faulty main", "Trainer::AverageFaulty main"), ALL_REDUCE, AVERAGE),
    "missing": disagreement("call", 6, "calls Broadcast float32 from member 0", MAIN, ALL_REDUCE, AVERAGE),
    "message": Expected(r"Send #3 from rank 2 to rank 3 on communicator \d+: ranks 2,3 disagree", (2, 3), 3, (
        Side((2,), "calls Send float32 to member 1, 2097153 elements", EXCHANGE),
        Side((3,), "calls Recv float32 from member 0, 2097152 elements", EXCHANGE))),
    "absent": absence("AllReduce #6 of communicator 1: rank 2 did not come",
                      {language: "is blocked outside prism's communications; " + last for language, last in LAST_CALL.items()},
                      {"python": site("average_faulty main", "")["python"], "c++": ""}),
    "order": Expected("ranks 0-3 wait for each other in a cycle: ranks 0,1,3 in AllReduce #6 of communicator 1, rank 2 in AllReduce #3 of communicator 2", None, None, (
        Side((RANK,), "waits in AllReduce #3 of communicator 2 .* for ranks 0,1,3", LOSS, communicator=2, call=3),
        Side(OTHERS, "wait in AllReduce #6 of communicator 1 .* for rank 2", AVERAGE, communicator=1, call=6))),
    "cycle": Expected(r"ranks 2,3 wait for each other in a cycle: rank 2 in Send #3 from rank 3 to rank 2 on communicator \d+, rank 3 in Send #3 from rank 2", (2, 3), 3, (
        Side((2,), "waits in Send #3 from rank 3 to rank 2 .* for rank 3", EXCHANGE, call=3),
        Side((3,), "waits in Send #3 from rank 2 to rank 3 .* for rank 2", EXCHANGE, call=3))),
    "exit": absence("rank 2 exited with code 0, while AllReduce #6 of communicator 1 needs it",
                    {language: "exited with code 0; " + last for language, last in LAST_CALL.items()}, None),
    "raise": absence("rank 2 exited with code 1(: RuntimeError: rank 2 met a bad sample)?, while AllReduce #6 of communicator 1 needs it",
                     {"python": "RuntimeError: rank 2 met a bad sample; " + LAST_CALL["python"], "c++": "exited with code 1; " + LAST_CALL["c++"]},
                     {"python": site("average_faulty main", "")["python"], "c++": ""}),
    "kill": absence(r"rank 2 was killed by SIGKILL \(9\), while AllReduce #6 of communicator 1 needs it",
                    {language: r"killed by SIGKILL \(9\); " + last for language, last in LAST_CALL.items()}, None),
}

# What `prism check` must say of jobs that end well. The numbers of communicators of recorded jobs are hashes.
BOTH = site("<lambda> <listcomp> average_both", "Trainer::Average Trainer::AverageBoth main")
BOTH_LOSS = site("<lambda> <listcomp> average_both", "Trainer::AverageBoth main")
STRAGGLER = r"straggler: rank 2: others wait [\d.e-]+ ms a step for it \([\d.]+ % of the step, in (\d+) of \1 steps\): {why}\n" \
            r" *most in AllReduce #\d+ of communicator \d+ \(ranks 0-3\) at {site}.*: ranks 0-1, 3 wait at {site}"
FOUND_LATER = {
    "overlap": {language: rf"communicators 1 and 2 are used in different orders: rank 0 launches AllReduce #6 of communicator 1 \({BOTH[language]}.*\) before "
                          rf"AllReduce #3 of communicator 2 \({BOTH_LOSS[language]}.*\); rank 2 launches AllReduce #3 of communicator 2 \({BOTH_LOSS[language]}.*\) "
                          rf"before AllReduce #6 of communicator 1 \({BOTH[language]}.*\)" for language in LANGUAGES},
    "straggler": {language: STRAGGLER.format(why=r"its streams wait for the host \([\d.e-]+ ms\)", site=AVERAGE[language]) for language in LANGUAGES},
    "imbalance": {language: STRAGGLER.format(why=r"its kernels take ([2-9]|\d\d+)\.\d+ times as long as on rank 0, for ([2-9]|\d\d+)\.\d+ times the work.*", site=AVERAGE[language])
                  for language in LANGUAGES},
}
FAULTS = (*EXPECTED, *FOUND_LATER)

SOUND = {
    "faults.py without a fault": ("torchrun", "--nproc-per-node", 4, "examples/faults.py"),
    "faults without a fault": ("torchrun", "--no-python", "--nproc-per-node", 4, "{examples}/faults"),
    **{f"train_gpt {parallel}": ("torchrun", "--nproc-per-node", 4, "examples/train_gpt.py", "--parallel", parallel) for parallel in ("ddp", "fsdp2", "tp", "pp")},
    "train_gpt fsdp2 with tensor groups": ("torchrun", "--nproc-per-node", 4, "examples/train_gpt.py", "--parallel", "fsdp2", "--tensor-size", 2),
    "train_moe": ("torchrun", "--nproc-per-node", 4, "examples/train_moe.py"),
    **{f"moe_trainer {name}": ("torchrun", "--no-python", "--nnodes", nodes, "--nproc-per-node", ranks, "{examples}/moe_trainer", "--timed", *layout.split())
       for name, nodes, ranks, layout in (("tensor", 1, 4, "--dp 2 --tp 2"), ("pipeline", 1, 4, "--pp 4 --layers 4"), ("interleaved", 1, 4, "--pp 2 --dp 2 --interleave 2 --layers 4"),
                                   ("experts", 1, 4, "--dp 4 --ep 4"), ("all together", 2, 8, "--dp 2 --tp 2 --pp 4 --ep 4 --interleave 2 --layers 8 --imbalance 0.5"))},
}  # fmt: skip
# Recorded on the virtual clock: nobody is a straggler there, though ranks wait for each other, and kernels jitter.
LARGE = "--timed --hidden 4096 --heads 32 --expert-hidden 8192 --sequence 4096"
SOUND_TIMED = {
    f"moe_trainer {name}, timed": ("torchrun", "--standalone", "--no-python", "--nproc-per-node", 4, "{examples}/moe_trainer", *LARGE.split(), *layout.split())
    for name, layout in (("tensor, data, experts", "--dp 2 --tp 2 --ep 4 --layers 3 --micro-batches 2"), ("pipeline", "--dp 2 --pp 2 --ep 2 --layers 4"),
                         ("with jitter", "--dp 2 --tp 2 --ep 4 --layers 3 --micro-batches 2 --jitter 0.1"))
}  # fmt: skip
SLOWER = r"straggler: rank 3: others wait .* in 4 of 4 steps\): its kernels take 1\.[23]\d times as long as on ranks 0-2, for (0\.9|1\.0)\d times the work"


def environment(options: argparse.Namespace, timed: bool = False) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRISM_", "HOSTCUDA_"))}
    kept["PATH"] = f"{options.python.absolute().parent}:{kept['PATH']}"
    return kept | ({"HOSTCUDA_CLOCK": "virtual", "PRISM_RECORD_TIMES": "1"} if timed else {})


def program(fault: str, language: str, options: argparse.Namespace) -> list[str]:
    command = ["torchrun", "--standalone", "--nproc-per-node", str(RANKS)]
    command += [str(ROOT / "examples/faults.py")] if language == "python" else ["--no-python", str(options.examples / "faults")]
    return [*command, "--fault", fault, "--fault-rank", str(RANK)]


def not_named(diagnosis: dict, matching: dict, expected: Expected, language: str) -> list[str]:
    """Returns what `diagnosis` (diagnosis.json) does not say of what it must."""
    lacks = []
    if not re.match(expected.headline, diagnosis["headline"]):
        lacks.append(f"headline: {diagnosis['headline']}")
    if expected.communicator is not None:
        communicator = diagnosis.get("communicator", {})
        known = {entry["number"]: tuple(entry["ranks"]) for entry in matching["communicators"]}
        if tuple(communicator.get("ranks", ())) != expected.communicator or known.get(communicator.get("number")) != expected.communicator:
            lacks.append(f"communicator: {communicator}")
        if diagnosis.get("call") != expected.call:
            lacks.append(f"call: {diagnosis.get('call')}")
    for side in expected.sides:
        party = next((party for party in diagnosis["parties"] if tuple(party["ranks"]) == side.ranks), None)
        if party is None:
            lacks.append(f"ranks {side.ranks}")
            continue
        text = side.text if isinstance(side.text, str) else side.text[language]
        if not re.search(text, party["text"]):
            lacks.append(f"ranks {side.ranks}: {party['text']}")
        if side.site is not None and not re.match(side.site[language], party["call_site"]):
            lacks.append(f"ranks {side.ranks}: at {party['call_site']}")
        number = side.communicator or diagnosis.get("communicator", {}).get("number")
        if side.call is not None and (number, side.call) != (party.get("communicator"), party.get("call")):
            lacks.append(f"ranks {side.ranks}: call {party.get('call')} of communicator {party.get('communicator')}")
    return lacks


def check(job: Path, options: argparse.Namespace, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run([options.prism, "check", job, *flags], capture_output=True, text=True, env=environment(options), check=False)


def measure(fault: str, language: str, options: argparse.Namespace) -> dict:
    """Runs a job that ends with a diagnosis; returns seconds from the mistake to it and to the end, and what was said."""
    with tempfile.TemporaryDirectory() as directory:
        job = Path(directory) / "job"
        command = [options.prism, "capture", "--tee", "all", "--job", job, "--", *program(fault, language, options)]
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(options))
        seen: dict[str, float] = {}

        def watch(stream, name: str, pattern: str) -> None:
            for line in stream:
                if re.search(pattern, line):
                    seen.setdefault(name, time.monotonic())

        watchers = [
            threading.Thread(target=watch, args=(process.stdout, "mistake", rf"rank {RANK} makes the mistake")),
            threading.Thread(target=watch, args=(process.stderr, "diagnosis", "^prism: " + EXPECTED[fault].headline)),
        ]
        for watcher in watchers:
            watcher.start()
        try:
            code = process.wait(options.timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                code = process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
        end = time.monotonic()
        for watcher in watchers:
            watcher.join()
        if not (job / "diagnosis.json").exists():
            return {"failed": f"exit code {code}, no diagnosis"}
        diagnosis = json.loads((job / "diagnosis.json").read_text())
        lacks = not_named(diagnosis, json.loads((job / "matching.json").read_text()), EXPECTED[fault], language)
        if set(seen) != {"mistake", "diagnosis"} or code == 0:
            lacks.append(f"exit code {code}, seen: {', '.join(seen) or 'nothing'}")
        checked = check(job, options)
        if checked.returncode != 1 or diagnosis["headline"] not in checked.stdout:
            lacks.append(f"prism check: code {checked.returncode}: {checked.stdout}")
        if lacks:
            return {"failed": lacks}
        return {
            "diagnosis_s": round(seen["diagnosis"] - seen["mistake"], 3),
            "end_s": round(end - seen["mistake"], 3),
            "exit_code": code,
            "said": diagnosis["headline"],
        }


def run_job(command: tuple | list, job: Path, options: argparse.Namespace, timed: bool) -> str:
    """Captures a job, or records it on the virtual clock; returns what went wrong."""
    words = [str(word).format(examples=options.examples) for word in command]
    verb = ["record", "--device", "host"] if timed else ["capture"]
    # Values by which programs decide (of experts, how many tokens go where) are computed.
    target = () if timed else ("--target", "h200x8:2", "--values", "control")
    try:
        done = subprocess.run([str(word) for word in (options.prism, *verb, *target, "--job", job, "--", *words)], cwd=ROOT,
                              env=environment(options, timed), capture_output=True, text=True, timeout=options.timeout, check=False)
    except subprocess.TimeoutExpired:
        return f"no end after {options.timeout:g} s"  # prism's guard ends the ranks
    return "" if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr[-2000:]}"


def measure_later(fault: str, language: str, options: argparse.Namespace) -> dict:
    """Runs a job that ends well; returns the seconds that `prism check` took to find what is wrong with it."""
    timed = fault != "overlap"
    with tempfile.TemporaryDirectory() as directory:
        job = Path(directory) / "job"
        command = program(fault, language, options) + (["--fault-step", "0", "--steps", "8"] if timed else [])
        if problem := run_job(command, job, options, timed):
            return {"failed": problem}
        started = time.monotonic()
        checked = check(job, options)
        seconds = time.monotonic() - started
        found = re.search(FOUND_LATER[fault][language], checked.stdout)
        # Communicators in different orders are unsound; waiting is not.
        if found is None or checked.returncode != (0 if timed else 1):
            return {"failed": f"prism check: code {checked.returncode}: {checked.stdout}"}
        return {"diagnosis_s": round(seconds, 3), "exit_code": checked.returncode, "said": found[0].partition("\n")[0]}


def accused(name: str, command: tuple, timed: bool, options: argparse.Namespace) -> dict:
    """Runs a sound job; returns what was said against it."""
    with tempfile.TemporaryDirectory() as directory:
        job = Path(directory) / "job"
        if problem := run_job(command, job, options, timed):
            return {"job": name, "failed": problem}
        checked = check(job, options, "--json")
        found = json.loads(checked.stdout)
        said = found["findings"] + ([found["diagnosis"]["headline"]] if "diagnosis" in found else [])
        said += [f"straggler: rank {straggler['rank']}" for straggler in found.get("waits", {}).get("stragglers", [])]
        if timed and "stragglers" not in found["waits"]:
            said.append(f"waits are not known: {found['waits']}")
        if checked.returncode != 0 or not found["sound"]:
            said.append(f"not sound, code {checked.returncode}")
        return {"job": name, "said": said}


def slower_kernels(options: argparse.Namespace) -> dict:
    """A rank whose kernels take 1.3 times as long, which only moe_trainer's stated times can have."""
    name = "moe_trainer --straggler 3:1.3"
    with tempfile.TemporaryDirectory() as directory:
        job = Path(directory) / "job"
        command = (*SOUND_TIMED["moe_trainer tensor, data, experts, timed"], "--straggler", "3:1.3")
        if problem := run_job(command, job, options, timed=True):
            return {"job": name, "failed": problem}
        started = time.monotonic()
        checked = check(job, options)
        found = re.search(SLOWER, checked.stdout)
        if found is None or checked.returncode != 0:
            return {"job": name, "failed": f"prism check: code {checked.returncode}: {checked.stdout}"}
        return {"job": name, "diagnosis_s": round(time.monotonic() - started, 3), "said": found[0]}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--language", nargs="+", choices=LANGUAGES, default=list(LANGUAGES))
    parser.add_argument("--no-sound", action="store_true", help="leave the sound jobs out")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="of each fault")
    parser.add_argument("--timeout", type=float, default=240, metavar="S", help="seconds a job may take (default: 240)")
    parser.add_argument("--python", type=Path, default=ROOT / ".env/bin/python", metavar="FILE")
    parser.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism", metavar="FILE")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write JSON here, e.g. bench/results/faults.json")
    options = parser.parse_args()
    options.examples = options.prism.absolute().parents[1] / "examples"
    for name, file in (("python", options.python), ("prism", options.prism)):
        if not shutil.which(file):
            parser.error(f"--{name} {file} does not exist: run `make build`, or say where it is")
    return options


def main() -> int:
    options = parse_arguments()
    cases, slow, sound = [], None, []
    for fault in options.fault:
        for language in options.language:
            runs = [(measure if fault in EXPECTED else measure_later)(fault, language, options) for _ in range(options.repeats)]
            case = {"fault": fault, "language": language, "ranks": RANKS, "runs": runs}
            cases.append(case)
            if any("failed" in run for run in runs):
                progress(f"{fault:9} {language:6} failed: {[run['failed'] for run in runs if 'failed' in run]}")
                continue
            for figure in ("diagnosis_s", "end_s"):
                if figure in runs[0]:
                    case[figure] = {"median": statistics.median(run[figure] for run in runs), "largest": max(run[figure] for run in runs)}
            print(f"{fault:9} {language:6} {case['diagnosis_s']['median']:5.2f} s (largest {case['diagnosis_s']['largest']:.2f}): {runs[0]['said']}", flush=True)
    if not options.no_sound:
        slow = slower_kernels(options)
        print(f"{slow['job']}: {slow.get('said', slow)}", flush=True)
        for timed, jobs in ((False, SOUND), (True, SOUND_TIMED)):
            for name, command in jobs.items():
                sound.append(accused(name, command, timed, options))
                print(f"{name}: {sound[-1].get('failed') or '; '.join(sound[-1]['said']) or 'nothing is said'}", flush=True)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        result = {"schema": SCHEMA, "benchmark": "faults", **provenance(), "bar_s": BAR_S, "cases": cases, "slower_kernels": slow, "sound": sound}
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    if any("diagnosis_s" not in case for case in cases) or (slow and "failed" in slow) or any("failed" in job or job["said"] for job in sound):
        return 1
    return 3 if any(case["diagnosis_s"]["largest"] > BAR_S for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
