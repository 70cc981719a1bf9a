#!/usr/bin/env python3
"""Holds `prism simulate --what-if` against true runs of the changed jobs, on hostcuda's virtual clock.

    bench/what_if.py predict --seed 60 --out runs
    bench/what_if.py predict --cases s5-00 s34-00 --out runs
    bench/what_if.py truth --out runs
    bench/what_if.py evaluate --out runs --output FILE

A case is one that bench/host_accuracy.py draws, without a straggler: s5-00 is the first of seed 5. The job is captured and calibrated once, as it is, and every
change is predicted from that: none; a rank of which kernels take 1.3 times as long; the first NIC of every node at half its bandwidth; twice the replicas of
data parallelism, on twice the nodes; twice the micro-batches; a rank that failed, so that its replica is gone. The network is measured
by `prism netprofile` on the larger cluster, with the groups that the jobs have. A change that prism refuses is listed with its reason, and counts
neither for nor against it.

predictions.json is written with its SHA-256 before `truth` runs the changed jobs. Every phase goes on where it stopped. Exit code: 0, 1 if a run
failed, 3 if a bar was missed (error: mean 0.5 %, each 2 %).
"""

import argparse
import dataclasses
import json
import re
import statistics
import sys
from pathlib import Path

from host_accuracy import (EVENT_NS, EXACT_PAYLOAD, TRUE_STEPS, WARM_UP, Case, Runner, capture, case_of, clock_of, draw, each, iteration,
                           measure_links, run_truth, simulated, truth_of)  # fmt: skip
from predictions import read_predictions, write_predictions
from provenance import ROOT, provenance
from torchrun import RunFailed, progress

SCHEMA = 1
MEAN_BAR, MAXIMUM_BAR = 0.005, 0.02
SLOWER, NARROWER = 1.3, 0.5
CHANGES = ("none", "rank", "nic", "replicas", "micro-batches", "failed")
NARROW_SWITCHES = "nic, narrow switches"  # what a NIC at half its bandwidth is where the switches above let no more through as it is
LAST_REPLICA = "failed, one is left"  # the trainer then makes no group of replicas, and its host calls none


def with_options(case: Case, change: str, nodes: int | None = None, links: dict | None = None, **options) -> Case:
    """The job that `change` leads to."""
    changed = case.options | {name.replace("_", "-"): str(value) for name, value in options.items()}
    nodes = nodes or case.nodes
    return dataclasses.replace(case, name=f"{case.name}/{change}", options=changed, links=links or case.links, nodes=nodes, world=case.per_node * nodes)


def changed_job(case: Case, change: str) -> Case | None:
    """None: this job has nothing that could be changed so, or no true run would be its equal."""
    dp, tp, pp, ep = (case.size(name) for name in ("dp", "tp", "pp", "ep"))
    if change == "none":
        return with_options(case, change)
    if change == "rank":
        return with_options(case, change, straggler=f"{case.world - 1}:{SLOWER}")
    if change == "nic":
        slow = [{"node": node, "rail": 0, "factor": NARROWER} for node in range(case.nodes)]
        return with_options(case, change, links=case.links | {"slow": slow}) if case.nodes > 1 else None
    if change == "micro-batches":
        return with_options(case, change, micro_batches=2 * case.size("micro-batches"))
    if dp == 1:
        return None
    if change == "replicas":
        return with_options(case, change, nodes=2 * case.nodes, dp=2 * dp)
    # The trainer numbers what is left from 0: that leaves all in their places where the last replicas of the only stage go, and whole nodes.
    gone = max(ep // tp, 1)
    left = (dp - gone) * tp
    if pp > 1 or left < ep or left % case.per_node:
        return None
    return with_options(case, change, nodes=left // case.per_node, dp=dp - gone)


def kind_of(row: dict) -> str:
    spine = row["job"]["links"]["spine"]
    if row["change"] == "nic" and row["job"]["nodes"] > spine["nodes_per_leaf"] == 1 and spine["oversubscription"] > 1:
        return NARROW_SWITCHES
    return LAST_REPLICA if row["change"] == "failed" and row["job"]["options"]["dp"] == "1" else row["change"]


def what_ifs(case: Case, change: str, data_parallel: int | None) -> list[str]:
    spine, narrower = case.links["spine"], f"{NARROWER}"
    if spine["nodes_per_leaf"] == 1 and spine["oversubscription"] > 1:
        # Every message that was measured crosses switches that let less through than a NIC: half of that is not half a NIC. Its data sheet says what is.
        narrower = f"{NARROWER * case.links['rail']['bytes_per_s'] / 1e9:g}GB/s"
    return {
        "none": [],
        "rank": [f"rank:{case.world - 1}={SLOWER}"],
        "nic": [f"nic:{node}.0={narrower}" for node in range(case.nodes)],
        "replicas": [f"replicas:{data_parallel}=2"],
        "micro-batches": ["micro-batches=2"],
        "failed": [f"failed:{case.world - 1}.{data_parallel}"],
    }[change]


def data_parallel_group(case: Case, groups: list[dict]) -> int | None:
    """Number of the communicator of rank 0's shard of the attention weights, which is replicated."""
    tp, dp = case.size("tp"), case.size("dp")
    members = list(range(0, dp * tp, tp))
    return next((group["communicator"] for group in groups if group["world_ranks"] == members), None)


def predict_case(runner: Runner, case: Case, changes: dict[str, Case], steps: int) -> dict:
    folder = runner.options.out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    clock = clock_of(case, folder)
    network = folder / "netprofile.json"
    if not network.exists():
        measure_links(runner, [*changes.values()], folder, network, clock)
    capture(runner, case, folder, "captured", steps, "--exact-payload", EXACT_PAYLOAD)
    # All ranks run: a change may make one critical that was not, so each one's own times count.
    runner.verb("calibrate", folder, "calibrated", clock, folder / "captured", "--clock", "virtual", "--network", network, "--slices", "0")
    inspected = runner.run([runner.prism, "inspect", folder / "calibrated", "--json"], folder / "inspected.log", {})
    group = data_parallel_group(case, json.JSONDecoder().raw_decode(inspected, inspected.find("{"))[0]["groups"])
    results = {}
    for change in changes:
        log = folder / f"simulated-{change}.log"
        words = [word for what in what_ifs(case, change, group) for word in ("--what-if", what)]
        try:
            answer = simulated(runner, folder, "calibrated", log, "--network", network, "--threads", runner.threads, *words)
        except RunFailed:
            refused = re.search(r"^(?:prism: )?error: (.*)", log.read_text(), re.M)
            if change not in ("replicas", "micro-batches", "failed") or refused is None:
                raise
            results[change] = {"what_if": words[1::2], "refused": refused.group(1)}
            continue
        results[change] = {"what_if": words[1::2], **iteration([step["ns"] - EVENT_NS for step in answer["steps"]], steps, "simulate")}
    return results


def predict(options: argparse.Namespace) -> int:
    def predicted(name: str) -> dict:
        seed, number = (int(part) for part in re.fullmatch(r"s(\d+)-(\d+)", name).groups())
        case = draw(seed, number, options.ranks, ["straggler"])
        changes = {change: job for change in options.changes if (job := changed_job(case, change)) is not None}
        row = {"case": dataclasses.asdict(case), "changed": {change: dataclasses.asdict(job) for change, job in changes.items()}}
        try:
            return row | {"predicted": predict_case(Runner(options), case, changes, options.steps)}
        except RunFailed as failure:
            progress(f"what_if: {name}: {failure}")
            return row | {"failure": str(failure)}

    rows = each(options, options.cases or [f"s{options.seed}-{number:02}" for number in range(options.count)], predicted)
    write_predictions(options.out, {**provenance(), "steps": options.steps, "cases": rows})
    return 1 if any("failure" in row for row in rows) else 0


def digest_of(job: dict) -> str:
    """The job is what counts: predictions may be made anew, by a better prism, and be held against its truth again."""
    return json.dumps(job)


def truth(options: argparse.Namespace) -> int:
    predictions, predictions_sha256 = read_predictions(options.out)
    jobs = [row["changed"][change] for row in predictions["cases"] for change, prediction in row.get("predicted", {}).items() if "refused" not in prediction]

    results = each(options, jobs, lambda row: run_truth(options, case_of(row), digest_of(row), predicted=predictions_sha256))
    return 1 if any("failure" in result for result in results) else 0


def evaluate(options: argparse.Namespace) -> int:
    rows, refused, failures, heads = [], [], [], []
    for out in options.out:
        predictions, digest = read_predictions(out)
        judge(out, predictions, rows, refused, failures)
        heads.append({"folder": out.name, "sha256": digest, "cases": [row["case"]["name"] for row in predictions.pop("cases")], **predictions})
    result = {"schema": SCHEMA, "benchmark": "what_if", "predicted": heads, **provenance(), "bars": {"mean": MEAN_BAR, "maximum": MAXIMUM_BAR},
              "changes": {}, "rows": rows, "refused": refused, "failures": failures}  # fmt: skip
    missed = False
    for change in (*CHANGES, NARROW_SWITCHES, LAST_REPLICA):
        errors = [abs(row["error"]) for row in rows if kind_of(row) == change]
        if not errors:
            continue
        mean, most = statistics.mean(errors), max(errors)
        missed = missed or mean > MEAN_BAR or most > MAXIMUM_BAR
        result["changes"][change] = {"cases": len(errors), "mean_error": mean, "maximum_error": most}
        alone = [abs(row["error_of_change"]) for row in rows if kind_of(row) == change and row["error_of_change"] is not None]
        if alone:
            result["changes"][change] |= {"mean_error_of_change": statistics.mean(alone), "maximum_error_of_change": max(alone)}
        print(f"{change:20} {len(errors):3} cases: mean {mean:.3%}, maximum {most:.3%}"
              + (f"; of the change mean {statistics.mean(alone):.3%}, maximum {max(alone):.3%}" if alone else ""))  # fmt: skip
    print(f"{len(rows)} comparisons, {len(refused)} refused, {len(failures)} failed; the first {WARM_UP} iterations do not count")
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failures or not rows else 3 if missed else 0


def judge(out: Path, predictions: dict, rows: list[dict], refused: list[dict], failures: list[dict]) -> None:
    """Appends what is to be said of a folder's cases."""
    for row in predictions["cases"]:
        name = row["case"]["name"]
        if "failure" in row:
            failures.append({"case": name, "failure": row["failure"]})
        for change, predicted in row.get("predicted", {}).items():
            entry = {"case": name, "change": change, "what_if": predicted["what_if"], "job": row["changed"][change]}
            if "refused" in predicted:
                refused.append(entry | {"refused": predicted["refused"]})
                print(f"{name}  {change:13}  refused: {predicted['refused']}")
                continue
            true = truth_of(out / entry["job"]["name"], digest_of(entry["job"]))
            if true is None or "failure" in true:
                failures.append(entry | {"failure": "there is no truth" if true is None else true["failure"]})
                continue
            error = predicted["mean_ns"] / true["mean_ns"] - 1
            # What is left where the prediction of the job as it is was right: of the change alone.
            base_error = next((r["error"] for r in rows if r["case"] == name and r["change"] == "none"), None)
            of_change = None if base_error is None or change == "none" else (1 + error) / (1 + base_error) - 1
            rows.append(entry | {"predicted_ns": predicted["mean_ns"], "truth_ns": true["mean_ns"], "truth_error_ns": true["error_ns"], "error": error,
                                 "error_of_change": of_change})  # fmt: skip
            print(f"{name}  {change:13}  truth {true['mean_ns'] / 1e6:.6f} +- {true['error_ns'] / 1e6:.6f} ms  predicted {error:+.3%}"
                  + (f" (of the change {of_change:+.3%})" if of_change is not None else ""))  # fmt: skip


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    prediction, true, evaluation = (verbs.add_parser(name) for name in ("predict", "truth", "evaluate"))
    for verb in (prediction, true):
        verb.add_argument("--out", type=lambda path: Path(path).absolute(), required=True, metavar="DIR")
    evaluation.add_argument("--out", type=lambda path: Path(path).absolute(), required=True, nargs="+", metavar="DIR")
    for verb in (prediction, true):
        verb.add_argument("--build", type=lambda path: Path(path).absolute(), default=ROOT / "build/ci", metavar="DIR")
        verb.add_argument("--timeout", type=float, default=600, metavar="S", help="of a run")
    for verb in (prediction, true):
        verb.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at the same time")
    drawn = prediction.add_mutually_exclusive_group(required=True)
    drawn.add_argument("--cases", nargs="+", metavar="sSEED-NUMBER")
    drawn.add_argument("--seed", type=int, help="its first --count cases")
    prediction.add_argument("--count", type=int, default=12, metavar="K")
    prediction.add_argument("--changes", nargs="+", choices=CHANGES, default=CHANGES)
    prediction.add_argument("--ranks", type=int, default=8, metavar="MAX", help="largest world that is drawn")
    prediction.add_argument("--steps", type=int, default=22, help="iterations that are predicted, of which the first two do not count")
    true.add_argument("--steps", type=int, default=TRUE_STEPS)
    prediction.add_argument("--sizes", default="4B:256MiB:2", metavar="MIN:MAX:FACTOR", help="that netprofile measures")
    prediction.add_argument("--python", type=Path, default=Path(sys.executable), metavar="FILE", help="runs torchrun's stand-in")
    evaluation.add_argument("--output", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    return {"predict": predict, "truth": truth, "evaluate": evaluate}[options.verb](options)


if __name__ == "__main__":
    sys.exit(main())
