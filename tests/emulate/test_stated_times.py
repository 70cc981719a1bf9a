"""A job on hostcuda's virtual clock, predicted from runs of single ranks, against the job itself. Times are stated ones, so nothing is left to chance."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("nothing_left")

RANKS = 4
JOB = ["--timed", "--steps", "5", "--micro-batches", "2"]
WIDE = ("--dp", "2", "--tp", "2", "--ep", "4", "--layers", "3")
EVENT_NS = 1000  # what cudaEventRecord takes: a step lies between two of them, of which one is in the period


def step_times(output):
    """Nanoseconds of each step, as the trainer prints them."""
    return [round(float(ms) * 1e6) for ms in re.findall(r"^step \d+ +([\d.]+) ms", output, re.M)]


def true_run(prism, trainer, links, *options, job=JOB, ranks=RANKS, nodes=2):
    """On two nodes where `links` are given (a file)."""
    hostcuda = prism.path.parents[1] / "hostcuda/bin/hostcuda"
    cluster, place = (["--links", links], ["--gpus-per-node", str(ranks // nodes)]) if links else ([], [])
    run = subprocess.run([hostcuda, "run", "--clock", "virtual", *cluster, "--", trainer, "--launch", str(ranks), *place, *job, *options],
                         capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"HOSTCUDA_MEMORY_LIMIT": "0", "HOSTCUDA_SESSION": f"true-run-{os.getpid()}"})
    assert run.returncode == 0, run.stderr
    return step_times(run.stdout)


# Two nodes of two GPUs that share a NIC, which is slow: groups over the nodes reduce while the experts' messages cross. Sizes are
# measured closely, for on these links a time between two sizes is not on a straight line where the protocol changes.
SHARED = {"schema": 1, "gpus_per_node": 2, "port": {"bytes_per_s": 1.5e11}, "rail": {"nics_per_node": 1, "bytes_per_s": 2.4e10}}
# A second stage whose host has enqueued how many tokens go where before the first stage's message comes.
DEEP = ("--tp", "2", "--pp", "2", "--ep", "2", "--layers", "4")
# A profile's times are whole nanoseconds; at least so many communications of a step of this job come one after the other.
ROUNDED = 40
SLOWER = 1.3
WHAT_IF_BAR = 0.0001
LARGER_JOB_BAR = 0.005  # groups that the job did not have: their sizes are between measured ones


def check_what_if(prism, job, profile, truth, *what_ifs, bar=WHAT_IF_BAR):
    """A changed job is predicted from the one that was calibrated, not from itself."""
    simulated = prism("simulate", job, "--network", profile, *(word for what in what_ifs for word in ("--what-if", what)), "--json", "--timeline", "none")
    assert simulated.code == 0, simulated.err
    periods = [step["ns"] - EVENT_NS for step in json.loads(simulated.out)["steps"]]
    assert periods[1:] == pytest.approx(truth[1:], rel=bar)


@pytest.mark.parametrize(
    "layout, options, links, sizes, off_ns",
    [(WIDE, (), None, "4B:4MiB:8", 0), (WIDE, ("--jitter", "0.1", "--straggler", "3:1.3", "--imbalance", "0.5"), None, "4B:4MiB:8", 0),
     (DEEP, (), None, "4B:64MiB:2", ROUNDED), (WIDE, (), SHARED, "4B:64MiB:2", 0), (WIDE, ("--straggler", "3:1.3"), SHARED, "4B:64MiB:2", 0)],
    ids=["plain", "uneven", "pipeline", "shared", "shared-straggler"])  # fmt: skip
def test_ranks_that_run_alone_predict_the_job(prism, trainer, tmp_path, layout, options, links, sizes, off_ns):
    nodes, file, clock = 2 if links else 1, None, {"HOSTCUDA_CLOCK": "virtual"}
    if links:
        file = tmp_path / "links.json"
        file.write_text(json.dumps(links))
        clock["HOSTNCCL_TOPOLOGY"] = str(file)
    truth = true_run(prism, trainer, file, *layout, *options)
    torchrun = pathlib.Path(sys.executable).parent / "torchrun"
    captured, profile = tmp_path / "captured", tmp_path / "netprofile.json"
    command = [torchrun, "--no-python", "--nnodes", nodes, "--nproc-per-node", RANKS // nodes, trainer, *JOB, *layout, *options]
    assert prism("capture", "--target", f"h200x{RANKS // nodes}:{nodes}", "--job", captured, "--", *command).code == 0
    measured = prism("netprofile", "--device", "host", "--ranks", RANKS, "--nodes", nodes, "--groups", "2x1,1x2" if links else "2", "--sizes", sizes,
                     "--repeats", 1, "--iterations", 1, "--out", profile, env=clock)
    assert measured.code == 0, measured.err
    calibrated = prism("calibrate", captured, "--clock", "virtual", "--network", profile, "--job", prism.job)
    assert calibrated.code == 0, calibrated.err
    assert "of another size" not in calibrated.err  # each rank was given the splits that it had been given

    simulated = prism("simulate", prism.job, "--network", profile, "--json")
    assert simulated.code == 0, simulated.err
    periods = [step["ns"] for step in json.loads(simulated.out)["steps"]]
    assert len(periods) == len(truth)
    assert [period - EVENT_NS for period in periods[1:]] == pytest.approx(truth[1:], rel=0, abs=off_ns)

    if not options:
        straggler = true_run(prism, trainer, file, *layout, "--straggler", f"3:{SLOWER}")
        check_what_if(prism, prism.job, profile, straggler, f"rank:3={SLOWER}")
        if links:
            for factor in (0.5, 2):
                file.write_text(json.dumps(links | {"slow": [{"node": node, "rail": 0, "factor": factor} for node in (0, 1)]}))
                check_what_if(prism, prism.job, profile, true_run(prism, trainer, file, *layout), f"nic:0.0={factor}", f"nic:1.0={factor}")
            file.write_text(json.dumps(links))

    emulated = prism("emulate", prism.job, "--clock", "virtual", "--network", profile, "--rank", 0, "--job", tmp_path / "emulated")
    assert emulated.code == 0, emulated.err
    assert step_times(emulated.out) == pytest.approx(truth, rel=0, abs=off_ns)


# Every token goes to every expert: nothing is drawn, so a larger job differs by its size alone.
CERTAIN = ["--timed", "--tp", "2", "--ep", "2", "--experts", "4", "--top-k", "4", "--layers", "2", "--steps", "5"]


def test_another_job_is_predicted(prism, trainer, tmp_path):
    """Twice the micro-batches, and twice the replicas on twice the nodes, against true runs."""
    links, profile = tmp_path / "links.json", tmp_path / "netprofile.json"
    links.write_text(json.dumps({"schema": 1, "gpus_per_node": 2}))
    clock = {"HOSTCUDA_CLOCK": "virtual", "HOSTNCCL_TOPOLOGY": str(links)}
    torchrun = pathlib.Path(sys.executable).parent / "torchrun"
    command = [torchrun, "--no-python", "--nnodes", 2, "--nproc-per-node", 2, trainer, *CERTAIN, "--dp", "2", "--micro-batches", "2"]
    assert prism("capture", "--target", "h200x2:2", "--job", tmp_path / "captured", "--", *command).code == 0
    measured = prism("netprofile", "--device", "host", "--ranks", 8, "--nodes", 4, "--groups", "1x2,2x1,2x2,4x1", "--sizes", "4B:64MiB:2",
                     "--operations", "AllReduce,AllGather,ReduceScatter,AlltoAll,Send", "--repeats", 1, "--iterations", 1, "--out", profile, env=clock)  # fmt: skip
    assert measured.code == 0, measured.err
    calibrated = prism("calibrate", tmp_path / "captured", "--clock", "virtual", "--network", profile, "--job", prism.job)
    assert calibrated.code == 0, calibrated.err
    groups = {tuple(group["world_ranks"]): group["communicator"] for group in json.loads(prism("inspect", prism.job, "--json").out)["groups"]}
    replicas = groups[0, 2]

    def true(dp, micro_batches):
        return true_run(prism, trainer, links, "--dp", str(dp), "--micro-batches", str(micro_batches), job=CERTAIN, ranks=2 * dp, nodes=dp)

    check_what_if(prism, prism.job, profile, true(2, 4), "micro-batches=2")
    check_what_if(prism, prism.job, profile, true(4, 2), f"replicas:{replicas}=2", bar=LARGER_JOB_BAR)
    check_what_if(prism, prism.job, profile, true(4, 4), f"replicas:{replicas}=2", "micro-batches=2", bar=LARGER_JOB_BAR)


MEAN_BAR = 0.003  # of bench/host_accuracy.py


def test_ranks_that_differ_in_sizes_are_timed_by_some_of_them(prism, trainer, tmp_path):
    """Eight ranks of a mixture of experts, of which one is slower: it says so by what it passes to its kernels. Two of the others run, and
    one more as a check; against the job."""
    world, slow = 8, 5
    job = ["--timed", "--dp", str(world), "--ep", str(world), "--layers", "2", "--micro-batches", "2", "--steps", "6", "--imbalance", "0.5",
           "--straggler", f"{slow}:1.2"]  # fmt: skip
    hostcuda = prism.path.parents[1] / "hostcuda/bin/hostcuda"
    run = subprocess.run([hostcuda, "run", "--clock", "virtual", "--", trainer, "--launch", str(world), *job], capture_output=True, text=True,
                         check=False, timeout=300, env=os.environ | {"HOSTCUDA_MEMORY_LIMIT": "0", "HOSTCUDA_SESSION": f"true-run-{os.getpid()}"})
    assert run.returncode == 0, run.stderr
    truth, clock = step_times(run.stdout), {"HOSTCUDA_CLOCK": "virtual"}
    captured, profile = tmp_path / "captured", tmp_path / "netprofile.json"
    torchrun = pathlib.Path(sys.executable).parent / "torchrun"
    assert prism("capture", "--target", "h200x8", "--job", captured, "--", torchrun, "--no-python", "--nproc-per-node", world, trainer, *job,
                 env={"PRISM_KERNEL_PARAMETERS": "1"}).code == 0  # fmt: skip
    assert prism("netprofile", "--device", "host", "--ranks", world, "--groups", world, "--sizes", "4B:64MiB:2", "--repeats", 1, "--iterations", 1,
                 "--out", profile, env=clock).code == 0  # fmt: skip
    result = prism("calibrate", captured, "--clock", "virtual", "--network", profile, "--job", prism.job, "--slices", 2, "--check", 1, "--json")
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert prism("check", prism.job).code == 0
    simulated = prism("simulate", prism.job, "--network", profile, "--json", "--timeline", "none")
    periods = [step["ns"] - EVENT_NS for step in json.loads(simulated.out)["steps"]]
    assert sum(periods[1:]) == pytest.approx(sum(truth[1:]), rel=MEAN_BAR)
    ran, retimed = [part["rank"] for part in answer["slices"]], answer["retimed"]
    (checked,) = retimed["checked"]
    assert len(ran) == 4 and slow in ran and checked["rank"] in ran
    assert sorted(ran + retimed["ranks"]) == list(range(world))
    assert retimed["interpolated"] > 0  # sizes that neither of the two had
    assert retimed["largest_difference"] == pytest.approx(checked["retimed_span_ns"] / checked["span_ns"] - 1)
    assert abs(retimed["largest_difference"]) < MEAN_BAR


def test_ranks_run_where_others_would_mistime_them(prism, tmp_path, trainer):
    """Two experts a rank: the kernels of their weights' gradients take as long as tokens come, which their grids do not show."""
    world, captured = 8, tmp_path / "captured"
    job = ["--timed", "--dp", str(world), "--ep", "2", "--experts", "4", "--layers", "1", "--hidden", "2048", "--expert-hidden", "4096",
           "--sequence", "2048", "--imbalance", "0.5", "--seed", "50", "--steps", "3"]  # fmt: skip
    torchrun = pathlib.Path(sys.executable).parent / "torchrun"
    assert prism("capture", "--target", "h200x8", "--job", captured, "--", torchrun, "--no-python", "--nproc-per-node", world, trainer, *job,
                 env={"PRISM_KERNEL_PARAMETERS": "1"}).code == 0  # fmt: skip
    result = prism("calibrate", captured, "--clock", "virtual", "--job", prism.job, "--json", env={"HOSTCUDA_CLOCK": "virtual"})
    assert result.code == 0 and "if it were timed by others" in result.err
    answer = json.loads(result.out)
    assert sorted(rank for part in answer["slices"] for rank in part["ranks"]) == list(range(world))
    retimed = answer["retimed"]
    assert retimed["ranks"] == [] and retimed["refused"] != [] and retimed["largest_difference"] is None


def test_virtual_clock_of_a_gpu_is_refused(prism, tmp_path):
    command = ("torchrun", "--nproc-per-node", 2, "train.py")
    result = prism("emulate", tmp_path, "--device", "cuda", "--clock", "virtual", "--", *command)
    assert result.code != 0 and "hint:" in result.err
    result = prism("emulate", tmp_path, "--clock", "sundial", "--", *command)
    assert result.code != 0 and "hint:" in result.err
