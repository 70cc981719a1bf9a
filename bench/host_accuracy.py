#!/usr/bin/env python3
"""Predicts drawn jobs on hostcuda's virtual clock from runs of single ranks, and holds the predictions against the jobs.

    bench/host_accuracy.py predict --seed 1 --cases 6 --out runs
    bench/host_accuracy.py truth --out runs
    bench/host_accuracy.py evaluate --out runs --output FILE
    bench/host_accuracy.py ablate --out runs --output FILE

No GPU is involved, and no time is the machine's: kernels and host work take stated times, communications those of hostnccl's links.
A seed draws configurations of examples/cpp/moe_trainer (parallel sizes, model, micro-batches, jitter, a straggler, imbalanced
experts) and clusters (nodes, links); a job whose true run would cost more than WAKEUPS is made smaller (`affordable`). `predict` measures the links (prism netprofile, at most 16 ranks), captures the job,
calibrates it, and predicts by `simulate` and by `emulate` of rank 0. `truth` runs all ranks. An iteration time is the mean of the
iterations after the first two.

predictions.json is written with its SHA-256 before `truth` runs anything; `truth` refuses to run without it and keeps the hash.
Jitter is of hostcuda's table of times (HOSTCUDA_TIMES) and of the links, which have seeds of their own: the job has others than its
prediction, but the same routing. Of the trainer's own `--jitter` that cannot be had: its seed is that of the routing, too.

`ablate` predicts the cases again, each time with one thing done otherwise (ABLATIONS), and holds that against the same truth.

Every phase goes on where it stopped: what is there is not run again. `--jobs` cases run at the same time: what comes out is the same. Exit code: 0, 1 if a run failed, 3 if a bar was missed
(error of `emulate` and of `simulate`: mean 0.3 %, each 1 %).
"""

import argparse
import dataclasses
import hashlib
import json
import os
import random
import re
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from predictions import completed_verb, read_predictions, write_predictions
from provenance import ROOT, provenance
from torchrun import RunFailed, last_error, progress, run_to_end, torchrun

SCHEMA = 1
TORCHLESS = ROOT / "bench/torchless"  # the trainer has no use for PyTorch, whose import took most of the time of a slice
WARM_UP = 2  # iterations that do not count
MEAN_BAR, MAXIMUM_BAR = 0.003, 0.01
PROFILED_RANKS = 16
EXACT_PAYLOAD = "16KiB"  # that moves in the captured job: counts of rows and summaries do, most rows do not
EVENT_NS = 1000  # what cudaEventRecord takes: a step lies between two of them, of which one is in simulate's period
STEP_LINE = re.compile(r"^step \d+ +([\d.]+) ms", re.M)
CLASSES = ("pipeline", "interleave", "nodes", "jitter", "straggler", "imbalance")
BY = ("simulate", "emulate")
TRUE_STEPS = 50
WAKEUPS = 14_000_000  # of processes, in a true run: some 11 us of a processor each
DRAWN_RANKS = 3200  # draws of what was measured, for the 90 % interval of the mean iteration, times the job's ranks,
DRAWS = (20, 100)  # at least and at most


@dataclasses.dataclass(frozen=True)
class Ablation:
    """What is done otherwise; flags of the verbs. None: what was done before is used (`capture`, `calibrate`), or nothing is predicted so."""

    capture: tuple[str, ...] | None = None
    calibrate: tuple[str, ...] | None = None
    simulate: tuple[str, ...] | None = ()
    emulate: tuple[str, ...] | None = ()
    plays: str = "calibrated"
    network: bool = True


ABLATIONS = {
    "one-pass": Ablation(simulate=None, emulate=("--peers", "instant"), plays="captured"),  # nobody was calibrated: peers are always there
    "one-regime": Ablation(calibrate=("--spans", "launched")),
    "medians": Ablation(simulate=("--samples", "all"), emulate=("--samples", "all")),
    "draws": Ablation(simulate=("--draws", str(DRAWS[1])), emulate=None),  # the mean of steps that are drawn
    "formulas": Ablation(network=False),
    "control": Ablation(capture=("--values", "control"), calibrate=("--values", "control"), emulate=("--values", "control")),
    "exact": Ablation(capture=("--values", "cpu"), calibrate=("--values", "cpu"), emulate=("--values", "cpu")),
}


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """A group of ranks: `ranks` on each of `nodes` nodes, every `stride`-th GPU of every `apart`-th node."""

    nodes: int
    ranks: int
    stride: int
    apart: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where netprofile has ranks: these GPUs of these nodes."""

    nodes: tuple[int, ...]
    gpus: tuple[int, ...]

    def group(self, shape: Shape) -> str | None:
        """The shape as netprofile takes it, NODESxRANKS a node, /N for every N-th; None: it is not there."""
        gpus, nodes = range(0, shape.ranks * shape.stride, shape.stride), range(0, shape.nodes * shape.apart, shape.apart)
        if self.nodes[: shape.nodes] != tuple(nodes) or not {*gpus} <= {*self.gpus}:
            return None
        places = [self.gpus.index(gpu) for gpu in gpus]
        stride = places[1] - places[0] if len(places) > 1 else 1
        return f"{shape.nodes}x{shape.ranks}/{stride}" if places == [*range(0, shape.ranks * stride, stride)] else None


@dataclasses.dataclass(frozen=True)
class Case:
    """`options` of the trainer, by name; `links` as hostnccl reads them, without jitter."""

    name: str
    world: int
    nodes: int
    options: dict[str, str]
    links: dict
    jitter: float  # standard deviation of the logarithm of a kernel's duration
    link_jitter: float

    @property
    def per_node(self) -> int:
        return self.world // self.nodes

    def size(self, name: str) -> int:
        return int(self.options.get(name, 1))

    def classes(self) -> list[str]:
        has = {
            "pipeline": self.size("pp") > 1, "interleave": self.size("interleave") > 1, "nodes": self.nodes > 1,
            "jitter": self.jitter > 0 or self.link_jitter > 0, "straggler": "straggler" in self.options,
            "imbalance": "imbalance" in self.options,
        }  # fmt: skip
        return [name for name in CLASSES if has[name]]

    def flags(self, steps: int) -> list[str]:
        return ["--timed", "--steps", str(steps), *(word for name, value in self.options.items() for word in (f"--{name}", value))]

    def groups(self) -> list[Shape]:
        """Shapes of the job's communicators that can be measured."""
        pp, dp, tp, ep = (self.size(name) for name in ("pp", "dp", "tp", "ep"))
        stage = dp * tp
        members = [(first, tp, 1) for first in range(0, self.world, tp)]  # (first rank, ranks, distance): tensor
        for start in range(0, self.world, stage):
            members += [(start + t, dp, tp) for t in range(tp)]  # data
            members += [(start + first, ep, 1) for first in range(0, stage, ep)]  # expert
            members += [(start + e, stage // ep, ep) for e in range(ep)]  # expert data
            members.append((start, stage, 1))
        members.append((0, self.world, 1))
        shapes = set()
        for first, ranks, distance in members:
            if ranks < 2:
                continue
            nodes = [rank // self.per_node for rank in range(first, first + ranks * distance, distance)]
            each = {nodes.count(node) for node in nodes}
            if len(each) == 1 and ranks <= PROFILED_RANKS:
                each, distinct = each.pop(), sorted(set(nodes))
                shapes.add(Shape(len(distinct), each, distance if each > 1 else 1, distinct[1] - distinct[0] if len(distinct) > 1 else 1))
        return sorted(shapes)


@dataclasses.dataclass
class Sizes:
    """What a job costs depends on: layers are those of a chunk, rounds the micro-batches a stage of the pipeline."""

    world: int
    pp: int
    tp: int
    ep: int
    interleave: int
    layers: int
    rounds: int

    def wakeups(self) -> float:
        """Of a true run of TRUE_STEPS, within a fifth or so: fitted to how often processes of seven jobs of 64 ranks slept, and what they
        took of the processors where messages that share links retime each other."""
        layer = 130 + (40 if self.tp > 1 else 0) + 14 * self.ep * (1 + self.ep / 100)  # a pass through it, forward and backward
        return TRUE_STEPS * self.world * (160 + layer * self.layers * self.interleave * self.pp * self.rounds)

    def affordable(self) -> None:
        """Makes it smaller until it is, at first by what changes its kind least: the experts' groups, the pipeline and the tensor's
        come last."""
        while self.wakeups() > WAKEUPS:
            if self.rounds > 1:
                self.rounds -= 1
            elif self.layers > 1:
                self.layers -= 1
            elif self.interleave > 1:
                self.interleave = 1
            elif self.ep > 4:
                self.ep //= 2
            elif self.pp > 1:
                self.pp //= 2
            elif self.ep > 1:
                self.ep //= 2
            elif self.tp > 1:
                self.tp //= 2
            else:
                break


def draw(seed: int, number: int, most_ranks: int, without: list[str]) -> Case:
    """Everything is drawn whether it is then used or not, so that a case without a class is otherwise the same."""
    chance = random.Random(f"host accuracy {seed} {number}")
    world = chance.choice([2**i for i in range(2, most_ranks.bit_length())])
    pp = chance.choice([1, 1, 2, 4])
    tp = chance.choice([1, 2, 4])
    interleave = chance.choice([1, 2])
    ep_share = chance.choice([1, 2, 4])
    layers, rounds = chance.choice([1, 2]), chance.choice([1, 2, 3])
    hidden, heads = chance.choice([512, 1024, 2048]), 16
    wide, experts_each, top_k = chance.choice([1, 2]), chance.choice([1, 2, 4]), chance.choice([1, 2])
    sequence, vocabulary = chance.choice([512, 1024, 2048]), chance.choice([2048, 8192])
    bucket_mib = chance.choice([4, 16, 64])
    jitter, link_jitter = chance.choice([0, 0, 0.02, 0.05]), chance.choice([0, 0, 0.02])
    straggler, factor = chance.random() < 0.25, chance.choice([1.1, 1.25, 1.5])
    slow_rank = chance.randrange(world)
    imbalance = chance.choice([0, 0, 0.2, 0.5])
    nodes = chance.choice([1, 1, 2, 4])
    base_ns = chance.choice([4000, 6000, 9000])
    port = {"latency_ns": chance.choice([500, 700, 1000]), "bytes_per_s": chance.choice([1.5e11, 2.5e11, 3.7e11])}
    rail = {"latency_ns": chance.choice([2000, 2500, 4000]), "bytes_per_s": chance.choice([2.4e10, 4.8e10, 9.6e10])}
    shared_nic = chance.random() < 0.25
    spine = {"nodes_per_leaf": chance.choice([1, 2, 32]), "latency_ns": chance.choice([500, 1500]), "oversubscription": chance.choice([1, 1, 2])}

    if "pipeline" in without:
        pp = 1
    pp = min(pp, world // 2)
    tp = min(tp, world // pp)
    if pp == 1 or "interleave" in without:
        interleave = 1
    sizes = Sizes(world, pp, tp, max(world // pp // ep_share, 1), interleave, layers, rounds)
    sizes.affordable()
    pp, tp, ep, interleave, layers, rounds = sizes.pp, sizes.tp, sizes.ep, sizes.interleave, sizes.layers, sizes.rounds
    stage = world // pp
    if "nodes" in without:
        nodes = 1
    nodes = max(min(nodes, world // 2), world // 8)  # a node has 2 to 8 GPUs
    per_node = world // nodes
    options = {
        "dp": stage // tp, "tp": tp, "pp": pp, "ep": ep, "interleave": interleave, "layers": pp * interleave * layers,
        "micro-batches": pp * rounds, "hidden": hidden, "heads": heads, "expert-hidden": hidden * wide,
        "experts": max(ep * experts_each, 2), "top-k": top_k, "sequence": sequence, "vocabulary": vocabulary,
        "bucket-mib": bucket_mib, "seed": seed,
    }  # fmt: skip
    if straggler and "straggler" not in without:
        options["straggler"] = f"{slow_rank}:{factor}"
    if imbalance > 0 and "imbalance" not in without:
        options["imbalance"] = imbalance
    if "jitter" in without:
        jitter = link_jitter = 0
    rail["nics_per_node"] = max(per_node // 2, 1) if shared_nic else per_node
    links = {"schema": 1, "gpus_per_node": per_node, "base_ns": base_ns, "port": port, "rail": rail, "spine": spine}
    return Case(f"s{seed}-{number:02}", world, nodes, {name: str(value) for name, value in options.items()}, links, jitter, link_jitter)


class Runner:
    """Of one case, which has `time_limit` seconds for all that it runs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ends = time.monotonic() + (getattr(options, "time_limit", None) or float("inf"))
        self.threads = max((os.cpu_count() or 1) // getattr(options, "jobs", 1), 1)  # of this case
        self.prism = options.build / "bin/prism"
        self.trainer = options.build / "examples/moe_trainer"
        self.hostcuda = options.build / "hostcuda/bin/hostcuda"

    def run(self, command: list, log: Path, environment: dict[str, str]) -> str:
        # Runs of one session would share a clock.
        session = {"HOSTCUDA_SESSION": f"accuracy-{uuid.uuid4().hex[:12]}", "HOSTCUDA_MEMORY_LIMIT": "0", "PYTHONPATH": str(TORCHLESS)}
        timeout = min(self.options.timeout, self.ends - time.monotonic())
        if timeout <= 0:
            raise RunFailed(f"{log.parent.name}/{log.name}: the case's {self.options.time_limit:g} s were over before")
        code, text, seconds = run_to_end(command, session | environment, timeout)
        log.write_text(text)
        progress(f"host_accuracy: {log.parent.name}/{log.stem}: {seconds:.0f} s, code {code}")
        if code is None:
            raise RunFailed(f"{log.parent.name}/{log.name}: no end after {timeout:.0f} s: {last_error(text)}")
        if code != 0:
            raise RunFailed(f"{log.parent.name}/{log.name}: code {code}: {last_error(text)}")
        return text

    def verb(self, name: str, folder: Path, job: str, environment: dict[str, str], *arguments) -> str:
        return completed_verb(lambda command, log: self.run(command, log, environment), self.prism, name, folder, job, arguments)


def each(options: argparse.Namespace, cases: list, work: Callable) -> list:
    """What `work` answers for the cases, in their order; `--jobs` at the same time."""
    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(work, cases))


def iteration(times_ns: list[float], steps: int, source: str) -> dict:
    """Mean and standard error of what counts."""
    if len(times_ns) != steps:
        raise RunFailed(f"{source} tells of {len(times_ns)} iterations instead of {steps}")
    counted = times_ns[WARM_UP:]
    return {"mean_ns": statistics.mean(counted), "error_ns": statistics.stdev(counted) / len(counted) ** 0.5, "steps_ns": times_ns}


def printed_steps(text: str) -> list[float]:
    return [round(float(ms) * 1e6) for ms in STEP_LINE.findall(text)]


def write_tables(case: Case, folder: Path, purpose: str, jitter_seed: int) -> tuple[Path, Path]:
    """Links and times, with the jitter that `purpose` has."""
    links, times = folder / f"links-{purpose}.json", folder / f"times-{purpose}.json"
    links.write_text(json.dumps(case.links | {"jitter": {"sigma": case.link_jitter, "seed": jitter_seed}}, indent=1))
    times.write_text(json.dumps({"schema": 1, "jitter": {"sigma": case.jitter, "seed": jitter_seed}}))
    return links, times


def jitter_seed(case: Case, purpose: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{case.name} {purpose}".encode()).digest()[:4], "little")


def capture(runner: Runner, case: Case, folder: Path, job: str, steps: int, *flags) -> None:
    command = [*torchrun(runner.options.python, case.per_node), f"--nnodes={case.nodes}", "--no-python", runner.trainer, *case.flags(steps)]
    # By their parameters launches of a straggler are told from others'.
    runner.verb("capture", folder, job, {"PRISM_KERNEL_PARAMETERS": "1"}, "--target", f"h200x{case.per_node}:{case.nodes}", *flags, "--", *command)


def clock_of(case: Case, folder: Path) -> dict[str, str]:
    """The environment of what is measured for a prediction."""
    links, times = write_tables(case, folder, "prediction", jitter_seed(case, "prediction"))
    return {"HOSTCUDA_CLOCK": "virtual", "HOSTNCCL_TOPOLOGY": str(links), "HOSTCUDA_TIMES": str(times)}


def layouts(shapes: list[Shape], nodes: int, per_node: int) -> list[Layout]:
    """Places of netprofile's ranks: whole nodes; what tells all nodes apart; the shapes that these have not."""
    whole = min(nodes, max(PROFILED_RANKS // per_node, 1))
    found = [Layout(tuple(range(whole)), tuple(range(per_node)))]
    if whole == nodes:
        return found
    near = range(min(nodes, PROFILED_RANKS // 2))
    found.append(Layout(tuple(sorted({*near, *range(0, nodes, max(nodes * 2 // PROFILED_RANKS, 1))})), (0,)))
    for shape in sorted(shapes, key=lambda shape: -shape.ranks):
        if not any(layout.group(shape) for layout in found):
            found.append(Layout(tuple(range(0, shape.nodes * shape.apart, shape.apart)), tuple(range(0, shape.ranks * shape.stride, shape.stride))))
    return found


def measure_links(runner: Runner, cases: list[Case], folder: Path, network: Path, clock: dict[str, str]) -> None:
    """The links' profile for all of these, which differ in nodes and groups alone."""
    case, shapes = cases[0], sorted({shape for case in cases for shape in case.groups()})
    profiles = []
    for number, layout in enumerate(layouts(shapes, max(case.nodes for case in cases), case.per_node)):
        profiles.append(folder / f"netprofile-{number}.json")
        if profiles[-1].exists():
            continue
        runner.run(
            [runner.prism, "netprofile", "--device", "host", "--ranks", len(layout.nodes) * len(layout.gpus), "--nodes", len(layout.nodes),
             "--node-numbers", ",".join(map(str, layout.nodes)), "--gpus", ",".join(map(str, layout.gpus)),
             "--groups", ",".join(sorted(filter(None, map(layout.group, shapes)))), "--types", "bf16,fp32",
             "--operations", "AllReduce,AllGather,ReduceScatter,AlltoAll,Send", "--sizes", runner.options.sizes,
             "--repeats", 20 if case.link_jitter > 0 else 1, "--iterations", 1, "--out", profiles[-1]],
            folder / f"netprofile-{number}.log", clock)  # fmt: skip
    if len(profiles) == 1:
        network.write_bytes(profiles[0].read_bytes())
    else:
        runner.run([runner.prism, "netprofile", "--merge", *profiles, "--out", network], folder / "netprofile.log", {})


def predict_case(runner: Runner, case: Case, steps: int) -> dict:
    options, folder = runner.options, runner.options.out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    clock = clock_of(case, folder)
    network = folder / "netprofile.json"
    if not network.exists():
        measure_links(runner, [case], folder, network, clock)
    capture(runner, case, folder, "captured", steps, "--exact-payload", EXACT_PAYLOAD)
    runner.verb("calibrate", folder, "calibrated", clock, folder / "captured", "--clock", "virtual", "--network", network)
    draws = min(max(DRAWN_RANKS // case.world, DRAWS[0]), DRAWS[1])
    answer = simulated(runner, folder, "calibrated", folder / "simulated.log", "--network", network, "--draws", draws,
                       "--threads", runner.threads)  # fmt: skip
    result = {"retimed": retimed(folder / "calibrated"), "simulate": iteration([step["ns"] - EVENT_NS for step in answer["steps"]], steps, "simulate")}
    result["simulate"]["interval_ns"] = [answer["mean_interval_ns"][end] - EVENT_NS for end in ("low", "high")]
    result["simulate"]["interval_sources"] = answer["mean_interval_ns"]["sources"]
    text = runner.verb("emulate", folder, "emulated", clock, folder / "calibrated", "--clock", "virtual", "--network", network, "--rank", 0)
    result["emulate"] = iteration(printed_steps(text), steps, "emulate")
    return result


def simulated(runner: Runner, folder: Path, job: str, log: Path, *flags) -> dict:
    text = runner.run([runner.prism, "simulate", folder / job, "--json", "--timeline", "none", *flags], log, {})
    return json.JSONDecoder().raw_decode(text, max(text.find("{"), 0))[0]


def retimed(job: Path) -> dict:
    """How many ranks did not run, and how far the kernels of those that were run for a check are off."""
    found = json.loads((job / "job.json").read_text())["retimed"]
    return {"ranks": len(found["ranks"]), "refused": len(found["refused"]), "checked": found["checked"],
            "largest_difference": found["largest_difference"]}  # fmt: skip


def predict(options: argparse.Namespace) -> int:
    cases = [draw(options.seed, number, options.ranks, options.without) for number in options.only or range(options.cases)]
    options.out.mkdir(parents=True, exist_ok=True)
    drawn = json.dumps({"seed": options.seed, "steps": options.steps, "cases": [dataclasses.asdict(case) for case in cases]}, indent=1)
    file = options.out / "drawn.json"
    if file.exists() and file.read_text() != drawn:
        sys.exit(f"{options.out} holds other cases: give another --out, or the options with which it was made")
    file.write_text(drawn)

    def predicted(case: Case) -> dict:
        row = dataclasses.asdict(case) | {"classes": case.classes()}
        try:
            return row | predict_case(Runner(options), case, options.steps)
        except RunFailed as failure:
            progress(f"host_accuracy: {case.name}: {failure}")
            return row | {"failure": str(failure)}

    predictions = each(options, cases, predicted)
    write_predictions(options.out, {**provenance(), "seed": options.seed, "ranks": options.ranks, "without": options.without,
                                    "steps": options.steps, "cases": predictions})  # fmt: skip
    return 1 if any("failure" in row for row in predictions) else 0


def case_of(row: dict) -> Case:
    return Case(**{field.name: row[field.name] for field in dataclasses.fields(Case)})


def truth_of(folder: Path, digest: str, steps: int | None = None) -> dict | None:
    """What `truth` found for these predictions; None where there is nothing, or it is of fewer steps."""
    file = folder / "truth.json"
    found = json.loads(file.read_text()) if file.exists() else None
    if found is None or found["predictions_sha256"] != digest or (steps is not None and found["steps"] != steps):
        return None
    return found


def run_truth(options: argparse.Namespace, case: Case, digest: str, **head) -> dict:
    """What the job's true run gives, which is not made again where it succeeded for these predictions; `head` goes into its file, too."""
    folder = options.out / case.name
    result = truth_of(folder, digest, options.steps)
    if result is not None and "failure" not in result:
        return result
    folder.mkdir(parents=True, exist_ok=True)
    links, times = write_tables(case, folder, "truth", jitter_seed(case, "truth"))
    runner = Runner(options)
    result = {"predictions_sha256": digest, **head, "steps": options.steps, **provenance()}
    try:
        text = runner.run([runner.hostcuda, "run", "--clock", "virtual", "--links", links, "--times", times, "--", runner.trainer,
                           "--launch", case.world, "--gpus-per-node", case.per_node, *case.flags(options.steps)], folder / "truth.log", {})  # fmt: skip
        result |= iteration(printed_steps(text), options.steps, "the job")
    except RunFailed as failure:
        result["failure"] = str(failure)
        progress(f"{Path(sys.argv[0]).stem}: {case.name}: {failure}")
    (folder / "truth.json").write_text(json.dumps(result, indent=1))
    return result


def truth(options: argparse.Namespace) -> int:
    predictions, digest = read_predictions(options.out)
    results = each(options, predictions["cases"], lambda row: run_truth(options, case_of(row), digest))
    return 1 if any("failure" in result for result in results) else 0


def describe(row: dict) -> str:
    """A case in a line: what its options are, and its cluster."""
    o, links = row["options"], row["links"]
    words = [f"dp{o['dp']} tp{o['tp']} pp{o['pp']}" + (f"x{o['interleave']}" if o["interleave"] != "1" else "") + f" ep{o['ep']}",
             f"{o['layers']} layers of {o['hidden']}, {o['micro-batches']} x {o['sequence']} tokens",
             f"{row['nodes']} x {row['world'] // row['nodes']} GPUs, {links['port']['bytes_per_s'] / 1e9:.0f} GB/s"]  # fmt: skip
    if row["nodes"] > 1:
        words.append(f"{links['rail']['nics_per_node']} x {links['rail']['bytes_per_s'] / 1e9:.0f} GB/s a node")
    words += [f"{name} {o[name]}" for name in ("straggler", "imbalance") if name in o]
    words += [f"{name.replace('_', ' ')} {row[name]}" for name in ("jitter", "link_jitter") if row[name]]
    return ", ".join(words)


def evaluate(options: argparse.Namespace) -> int:
    predictions, digest = read_predictions(options.out)
    rows, failures = [], []
    for predicted in predictions.pop("cases"):
        true = truth_of(options.out / predicted["name"], digest)
        row = {name: predicted[name] for name in ("name", "world", "nodes", "options", "links", "jitter", "link_jitter", "classes")}
        print(f"{row['name']}  {describe(predicted)}")
        why = predicted.get("failure") or ("there is no truth" if true is None else true.get("failure"))
        if why:
            failures.append(row | {"failure": why})
            print(f"    failed: {why}")
            continue
        row["retimed"] = predicted.get("retimed")
        row |= {"truth_ns": true["mean_ns"], "truth_error_ns": true["error_ns"], "truth_steps": true["steps"]}
        for by in BY:
            row[f"{by}_ns"], row[f"{by}_error"] = predicted[by]["mean_ns"], predicted[by]["mean_ns"] / true["mean_ns"] - 1
        # Without jitter an iteration is the same in both, and comparing one by one leaves the draws of the routing out.
        both = min(len(true["steps_ns"]), len(predicted["emulate"]["steps_ns"]))
        row["same_iterations"] = {
            by: statistics.mean(predicted[by]["steps_ns"][WARM_UP:both]) / statistics.mean(true["steps_ns"][WARM_UP:both]) - 1 for by in BY
        }
        if interval := predicted["simulate"].get("interval_ns"):
            row["interval_ns"], row["interval_holds"] = interval, interval[0] <= true["mean_ns"] <= interval[1]
            row["interval_sources"] = predicted["simulate"].get("interval_sources")
            row["interval_width"] = (interval[1] - interval[0]) / predicted["simulate"]["mean_ns"]
        rows.append(row)
        shown = "  ".join(f"{by} {row[f'{by}_ns'] / 1e6:.6f} ({row[f'{by}_error']:+.3%}, same iterations {row['same_iterations'][by]:+.3%})" for by in BY)
        print(f"    truth {row['truth_ns'] / 1e6:.6f} +- {row['truth_error_ns'] / 1e6:.6f} ms  {shown}")
    result = {"schema": SCHEMA, "benchmark": "host_accuracy", "predicted": predictions, "predictions_sha256": digest, **provenance(),
              "bars": {"mean": MEAN_BAR, "maximum": MAXIMUM_BAR}, "cases": rows, "failures": failures}  # fmt: skip
    intervals = [row for row in rows if "interval_ns" in row]
    if intervals:
        width = statistics.median(row["interval_width"] for row in intervals)
        print(f"90 % interval of the mean: holds {sum(row['interval_holds'] for row in intervals)} of {len(intervals)}, median width {width:.2%}")
    missed = False
    for by in BY if rows else ():
        errors = {row["name"]: abs(row[f"{by}_error"]) for row in rows}
        mean, most = statistics.mean(errors.values()), max(errors.values())
        beyond = [name for name, error in errors.items() if error > MAXIMUM_BAR]
        missed = missed or mean > MEAN_BAR or bool(beyond)
        result[by] = {"mean_error": mean, "maximum_error": most, "beyond": beyond}
        print(f"{by}: mean {mean:.3%}{' (bar ' + format(MEAN_BAR, '.1%') + ')' if mean > MEAN_BAR else ''}, maximum {most:.3%}; "
              f"beyond {MAXIMUM_BAR:.0%}: {', '.join(beyond) or 'none'}")  # fmt: skip
    # A case is in all the classes that it has, so these overlap.
    result["classes"] = {}
    for name in (*CLASSES, "none") if rows else ():
        of_class = [row for row in rows if (name in row["classes"] if name != "none" else not row["classes"])]
        if not of_class:
            continue
        errors_of = {by: [abs(row[f"{by}_error"]) for row in of_class] for by in BY}
        result["classes"][name] = {"cases": len(of_class), **{by: {"mean_error": statistics.mean(e), "maximum_error": max(e)} for by, e in errors_of.items()}}
        shown = ", ".join(f"{by} mean {statistics.mean(e):.3%} maximum {max(e):.3%}" for by, e in errors_of.items())
        print(f"  {name:10} {len(of_class):3} cases: {shown}")
    print(f"{len(rows)} cases, {len(failures)} failed")
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failures or not rows else 3 if missed else 0


def ablated(runner: Runner, case: Case, folder: Path, name: str, steps: int) -> dict:
    """Mean iterations of the job with one thing done otherwise, by `simulate` and `emulate` where they do it."""
    ablation, clock = ABLATIONS[name], clock_of(case, folder)
    captured, plays, result = "captured", ablation.plays, {}
    network = ["--network", folder / "netprofile.json"] if ablation.network else []
    if ablation.capture is not None:
        captured = f"captured-{name}"
        capture(runner, case, folder, captured, steps, *ablation.capture)
    if ablation.calibrate is not None:
        plays = f"calibrated-{name}"
        runner.verb("calibrate", folder, plays, clock, folder / captured, "--clock", "virtual", *network, *ablation.calibrate)
    if ablation.simulate is not None:
        answer = simulated(runner, folder, plays, folder / f"simulated-{name}.log", *network, *ablation.simulate)
        drawn = answer.get("mean_interval_ns")
        counted = iteration([step["ns"] for step in answer["steps"]], steps, "simulate")["mean_ns"]
        result["simulate"] = (drawn["mean"] if drawn else counted) - EVENT_NS
    if ablation.emulate is not None:
        text = runner.verb("emulate", folder, f"emulated-{name}", clock, folder / plays, "--clock", "virtual", *network, "--rank", 0, *ablation.emulate)
        result["emulate"] = iteration(printed_steps(text), steps, "emulate")["mean_ns"]
    return result


def ablate(options: argparse.Namespace) -> int:
    rows, failures = [], []
    for out in options.out:
        options_of_out = argparse.Namespace(**vars(options) | {"out": out})
        runner, (predictions, digest) = Runner(options_of_out), read_predictions(out)
        for predicted in predictions["cases"]:
            case, folder = case_of(predicted), out / predicted["name"]
            true = truth_of(folder, digest)
            if options.only and case.name not in options.only:
                continue
            if "failure" in predicted or true is None or "failure" in true:
                failures.append({"name": case.name, "failure": "it was not predicted, or there is no truth"})
                continue
            means = {"all": {by: predicted[by]["mean_ns"] for by in BY}}
            for name in options.ablations:
                try:
                    means[name] = ablated(runner, case, folder, name, predictions["steps"])
                except RunFailed as failure:
                    failures.append({"name": case.name, "ablation": name, "failure": str(failure)})
                    progress(f"host_accuracy: {case.name}: {name}: {failure}")
            errors = {name: {by: ns / true["mean_ns"] - 1 for by, ns in of.items()} for name, of in means.items()}
            rows.append(dataclasses.asdict(case) | {"classes": case.classes(), "truth_ns": true["mean_ns"], "truth_error_ns": true["error_ns"], "errors": errors})
            print(f"{case.name}  {describe(predicted)}\n    truth +- {true['error_ns'] / true['mean_ns']:.3%}")
            for name, of in errors.items():
                print(f"    {name:11}" + "".join(f"  {by} {error:+.3%}" for by, error in of.items()))
    result = {"schema": SCHEMA, "benchmark": "host_accuracy ablations", **provenance(), "mean_error": {}, "cases": rows, "failures": failures}
    for name in ("all", *options.ablations):
        of_name = {by: [abs(row["errors"][name][by]) for row in rows if by in row["errors"].get(name, {})] for by in BY}
        result["mean_error"][name] = {by: statistics.mean(errors) for by, errors in of_name.items() if errors}
        print(f"{name:11}" + "".join(f"  {by} mean {error:.3%}" for by, error in result["mean_error"][name].items()))
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failures or not rows else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    prediction, true, evaluation, ablation = (verbs.add_parser(name) for name in ("predict", "truth", "evaluate", "ablate"))
    for verb in (prediction, true, evaluation):
        verb.add_argument("--out", type=lambda path: Path(path).absolute(), required=True, metavar="DIR")
    ablation.add_argument("--out", type=lambda path: Path(path).absolute(), required=True, nargs="+", metavar="DIR")
    ablation.add_argument("--only", nargs="+", metavar="CASE", help="of the cases; all by default")
    ablation.add_argument("--ablations", nargs="+", choices=ABLATIONS, default=list(ABLATIONS))
    for verb in (prediction, true, ablation):
        verb.add_argument("--build", type=lambda path: Path(path).absolute(), default=ROOT / "build/ci", metavar="DIR")
        verb.add_argument("--timeout", type=float, default=600, metavar="S", help="of a run")
    for verb in (prediction, true):
        verb.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at the same time")
        verb.add_argument("--time-limit", type=float, metavar="S", help="of a case's runs together")
    prediction.add_argument("--seed", type=int, default=1)
    prediction.add_argument("--cases", type=int, default=6, metavar="K")
    prediction.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these of the cases, counted from 0, instead of the first K")
    prediction.add_argument("--ranks", type=int, default=8, metavar="MAX", help="largest world; the smallest has 4 ranks")
    prediction.add_argument("--without", nargs="+", choices=CLASSES, default=[], help="leave these out of what is drawn")
    prediction.add_argument("--steps", type=int, default=22, help="iterations that are predicted")
    prediction.add_argument("--sizes", default="4B:256MiB:2", metavar="MIN:MAX:FACTOR", help="that netprofile measures")
    for verb in (prediction, ablation):
        verb.add_argument("--python", type=Path, default=Path(sys.executable), metavar="FILE", help="runs torchrun's stand-in")
    true.add_argument("--steps", type=int, default=TRUE_STEPS)
    for verb in (evaluation, ablation):
        verb.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.verb == "predict" and options.ranks < 4:
        parser.error(f"--ranks {options.ranks}: the smallest world has 4")
    if options.verb in ("predict", "truth") and options.steps < WARM_UP + 2:
        parser.error(f"--steps {options.steps}: {WARM_UP} do not count, and a spread takes two more")
    if options.verb in ("predict", "truth") and options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least one")
    if options.verb == "predict" and options.cases < 1:
        parser.error(f"--cases {options.cases}: at least one")
    if options.verb == "predict" and options.only and (min(options.only) < 0 or len(set(options.only)) < len(options.only)):
        parser.error(f"--only {' '.join(map(str, options.only))}: numbers from 0, each once")
    if options.verb in ("predict", "truth", "ablate") and not (options.build / "bin/prism").exists():
        parser.error(f"--build {options.build}: there is no bin/prism")
    return options


def main() -> int:
    options = parse_arguments()
    return {"predict": predict, "truth": truth, "evaluate": evaluate, "ablate": ablate}[options.verb](options)


if __name__ == "__main__":
    sys.exit(main())
