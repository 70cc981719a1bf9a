import json
import signal
import subprocess
import sys
import time

import pytest

from conftest import PROGRAMS, ROOT

FAULTS = ROOT / "examples/faults.py"
pytestmark = pytest.mark.usefixtures("nothing_left")


def test_collectives_have_their_values_and_the_job_is_sealed(prism):
    result = prism.capture("torchrun", "--nproc-per-node", 4, PROGRAMS / "collectives.py", flags=("--values", "cpu", "--tee", "all"))
    assert result.code == 0, result.err
    lines = [line for line in result.out.splitlines() if "good" in line]
    assert sorted(line.split(" good")[0] for line in lines) == [f"[rank{r}]: rank {r} of 4" for r in range(4)]
    job = result.read("job.json")
    assert job["state"] == "complete" and job["world"] == 4 and job["exit_code"] == 0
    assert len(list((result.job / "trace").glob("rank-*.prt"))) == 4
    assert (result.job / "ranks/00003/stdout.log").read_text().startswith("rank 3 of 4 good")
    communicators = result.read("matching.json")["communicators"]
    assert communicators[0]["ranks"] == [0, 1, 2, 3]
    assert {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Send"} <= set(communicators[0]["operations"])


def test_forked_ranks_are_small(prism):
    result = prism.capture("torchrun", "--nproc-per-node", 4, PROGRAMS / "collectives.py", flags=("--tee", "all", "--exact-payload", "64MiB"))
    private = [int(line.split("private ")[1].split()[0]) for line in result.out.splitlines() if "private" in line]
    assert len(private) == 4 and max(private) < 60 * 1024, private


@pytest.mark.parametrize("command", [["python", "-c", "print('said')"], ["bash", "-c", "echo said"]], ids=["python", "bash"])
def test_json_is_one_object_beside_the_programs_output(prism, command):
    result = prism("run", "--json", "-q", "--device", "none", "--job", prism.job, "--", *command)
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["schema"] == "prism.report" and report["nothing_to_predict"]
    assert "said" in result.err


def test_python_reads_its_program_from_a_pipe(prism, tmp_path):
    command = [str(prism.path), "capture", "--device", "none", "--job", str(prism.job), "--", "python", "-", "a"]
    result = subprocess.run(command, input="import sys; print(sys.argv)", env=prism.environment(), text=True, capture_output=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, "['-', 'a']\n"), result.stderr


def test_trace_of_a_killed_rank_has_all_that_it_did(prism):
    result = prism.capture("torchrun", "--nproc-per-node", 4, FAULTS, "--fault", "kill", "--fault-rank", 2)
    for rank, collectives in enumerate([6, 6, 5, 6]):  # a broadcast and an average in each of two steps, then a broadcast
        shown = prism("inspect", "--json", result.job / f"trace/rank-{rank:05}.prt")
        trace = json.loads(shown.out)
        assert sum(sequence["kinds"].get("comm", 0) for sequence in trace["sequences"]) >= collectives, shown.out
        if rank == 2:
            assert trace["state"] == "incomplete" and "killed" in trace["problem"]


def test_forked_ranks_end_as_interpreters_do(prism, tmp_path):
    result = prism.capture("torchrun", "--nproc-per-node", 2, PROGRAMS / "leaves_late.py", tmp_path, flags=("--tee", "all"))
    assert result.code == 1
    for rank in (0, 1):
        assert (tmp_path / f"unclosed-{rank}").read_text() == "written"
        assert f"thread of {rank}" in result.out and f"atexit of {rank}" in result.out
        assert json.loads(prism("inspect", "--json", result.job / f"trace/rank-{rank:05}.prt").out)["exit_code"] == rank
    assert "left by 1" in result.err + result.out


def test_rank_that_waits_elsewhere_is_named_when_all_are_blocked(prism):
    result = prism.capture("torchrun", "--nproc-per-node", 3, PROGRAMS / "hang.py", "lock")
    assert result.code == 1
    diagnosis = result.read("diagnosis.json")
    assert diagnosis["kind"] == "missing"
    assert diagnosis["headline"] == "AllReduce #2 of communicator 1: rank 1 did not come"
    sites = {tuple(party["ranks"]): party["call_site"] for party in diagnosis["parties"]}
    assert sites == {(0, 2): "hang.py:38 in <module>", (1,): "hang.py:28 in <module>"}


def test_rank_that_waits_for_one_that_has_left_is_named(prism):
    result = prism.capture("torchrun", "--nproc-per-node", 2, PROGRAMS / "hang.py", "leave", flags=("--patience", 2))
    assert result.code == 1, result.err
    diagnosis = result.read("diagnosis.json")
    assert diagnosis["kind"] == "blocked"
    assert diagnosis["headline"].startswith("rank 1 has been blocked outside of any communication for")
    assert diagnosis["headline"].endswith("and rank 0 has ended")
    assert any(party["ranks"] == [1] and party["call_site"] == "hang.py:24 in <module>" for party in diagnosis["parties"]), diagnosis


def test_groups_that_are_used_in_different_orders_are_named_on_both_sides(prism):
    result = prism.capture("torchrun", "--nproc-per-node", 2, PROGRAMS / "hang.py", "groups", flags=("--patience", 2))
    assert result.code == 1, result.err
    diagnosis = result.read("diagnosis.json")
    assert [party["call_site"] for party in diagnosis["parties"]] == ["hang.py:23 in <module>"] * 2
    assert "in the same order" in diagnosis["hint"]


def test_rank_that_is_blocked_alone_is_named(prism):
    result = prism.capture("python", "-c", "import threading; threading.Event().wait()", flags=("--device", "none", "--patience", 1))
    assert result.code == 1, result.err
    diagnosis = result.read("diagnosis.json")
    assert diagnosis["headline"].startswith("rank 0 has been blocked outside of any communication for")
    assert diagnosis["parties"][0]["call_site"] == "<string>:1 in <module>"


def test_rank_that_something_will_wake_is_not_blocked(prism):
    code = """import socket, subprocess, threading, time
time.sleep(2.5)
subprocess.run(["sleep", "2.5"])
woken = threading.Event()
threading.Timer(2.5, woken.set).start()
woken.wait()
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=listener.accept, daemon=True).start()
threading.Thread(target=lambda: (input(), woken.clear(), print("read"))).start()
print("reads", flush=True)
"""
    process = prism.start("capture", "--job", prism.job, "--device", "none", "--patience", 1, "--", "python", "-c", code, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "reads\n", process.stderr.read()
    time.sleep(2.5)
    out, err = process.communicate("x\n", timeout=60)
    assert process.returncode == 0 and out == "read\n", err


def test_sends_that_wait_for_each_other_are_a_cycle(prism):
    result = prism.capture("torchrun", "--nproc-per-node", 2, PROGRAMS / "hang.py", "send")
    assert result.code == 1
    assert result.read("diagnosis.json")["kind"] == "cycle"
    assert result.read("diagnosis.json")["headline"].startswith("ranks 0,1 wait for each other in a cycle: rank 0 in Send #1 from rank 0 to rank 1")


def test_sends_that_fit_into_the_fifos_end_before_their_receives(prism):
    result = prism.capture("torchrun", "--nproc-per-node", 2, PROGRAMS / "hang.py", "small", flags=("--values", "cpu", "--tee", "all"))
    assert result.code == 0, result.err
    received = sorted(line.split("received ")[1] for line in result.out.splitlines() if "received" in line)
    assert received == ["1.0 1.0", "2.0 2.0"]
    assert prism("check", prism.job).code == 0
    assert prism("simulate", prism.job).code == 0


def test_rank_that_sleeps_is_awaited_and_an_interrupt_ends_the_job(prism):
    started = time.monotonic()
    process = prism.start("capture", "--job", prism.job, "--", "torchrun", "--nproc-per-node", 2, PROGRAMS / "hang.py", "sleep")
    err = ""
    while "waiting for rank 1" not in err:
        line = process.stderr.readline()
        assert line, err
        err += line
        assert time.monotonic() - started < 120, err
    assert "rank 0 waits in AllReduce #2" in err and "; rank 1: sleeps at hang.py:30 in <module>" in err
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    result = prism.finish(process, started)
    assert result.code == 130
    assert time.monotonic() - asked < 15
    job = result.read("job.json")
    assert job["reason"] == "stopped by Interrupt" and "; rank 1: sleeps at hang.py:30" in job["stopped_while"]


def test_controller_that_is_killed_leaves_no_rank_and_an_interrupted_job(prism):
    process = prism.start("capture", "--job", prism.job, "--", "torchrun", "--nproc-per-node", 2, PROGRAMS / "hang.py", "sleep")
    deadline = time.monotonic() + 120
    while len(list((prism.job / "trace").glob("*.prt"))) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.2)
    process.kill()
    process.communicate()
    time.sleep(3)
    inspected = prism("check", prism.job, "--json")
    assert json.loads(inspected.out)["state"] == "interrupted"
    assert inspected.code == 1
    again = prism.capture("python", "-c", "import torch; torch.zeros(1, device='cuda')", flags=("--force",))
    assert again.code == 0


def test_what_a_rank_leaves_running_is_ended(prism):
    result = prism.capture("python", PROGRAMS / "children.py")
    assert result.code == 0 and "started" in result.out


def test_memory_has_owners_and_a_caught_out_of_memory_is_kept(prism):
    result = prism.capture("python", PROGRAMS / "trains.py")
    assert result.code == 0, result.err
    assert "caught CUDA out of memory. Tried to allocate 1024.00 GiB" in result.out
    memory = result.read("ranks/00000/memory.json")
    assert memory["failures"] == []
    assert memory["owners"]["parameters"] == 4_000_000
    assert memory["owners"]["gradients"] == 4_000_000
    assert memory["owners"]["optimizer_state"] == 8_000_000
    assert memory["out_of_memory"][0]["requested_bytes"] == 1 << 40
    device = memory["devices"][0]
    assert device["max_allocated_bytes"] == sum(memory["owners"].values())


def test_script_that_calls_torchrun(prism, tmp_path):
    script = tmp_path / "pretrain.sh"
    script.write_text(f"set -e\nexport OMP_NUM_THREADS=1\ntorchrun --nproc-per-node 2 {PROGRAMS}/collectives.py\necho after\n")
    result = prism.capture("bash", script, flags=("--exact-payload", "64MiB", "--values", "cpu"))
    assert result.code == 0, result.err
    assert "rank 0 of 2 good" in result.out and result.out.endswith("after\n")
    assert result.read("job.json")["world"] == 2


def test_ranks_as_interpreters_of_their_own(prism):
    result = prism.capture("python", "-m", "torch.distributed.run", "--nproc-per-node", 2, PROGRAMS / "collectives.py", flags=("--launch", "spawn", "--values", "cpu"))
    assert result.code == 0, result.err
    assert "rank 0 of 2 good" in result.out


def test_environment_is_what_torchrun_sets(prism):
    code = "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if k in %r}))" % (
        ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS", "PRISM_RANK"],)
    program = prism.job.parent / "environment.py"
    program.write_text(code)
    result = prism.capture("torchrun", "--nnodes", 2, "--nproc-per-node", 2, program, flags=("--device", "none", "--target", "h200x2:2"))
    assert result.code == 0, result.err
    seen = json.loads((result.job / "ranks/00003/stdout.log").read_text())
    assert seen == {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "MASTER_ADDR": "127.0.0.1",
                    "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("arguments", [["-m", "probe", "x"], ["probe.py", "x"], ["-c", "import probe", "x"]], ids=["module", "script", "code"])
def test_program_sees_what_the_interpreter_would_show_it(prism, tmp_path, arguments):
    (tmp_path / "probe.py").write_text("import sys, __main__\nprint(sys.argv[1:], sys.path[0], __name__, getattr(__main__, '__file__', None))\n")
    command = [sys.executable, *arguments]
    plain = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True).stdout
    result = prism.capture(*command, flags=("--device", "none"), cwd=tmp_path)
    assert result.code == 0, result.err
    assert result.out == plain


def test_exit_code_is_the_programs(prism):
    assert prism.capture("python", "-c", "import sys; sys.exit(7)", flags=("--device", "none")).code == 7


def test_json_is_one_object_on_stdout(prism):
    result = prism.capture("torchrun", "--nproc-per-node", 2, FAULTS, flags=("--json", "--tee", "none"))
    answer = json.loads(result.out)
    assert answer["schema"] == "prism.capture" and answer["schema_version"] == 1
    assert answer["state"] == "complete" and answer["world"] == 2 and answer["operations"] == 25  # of 5 steps: 3 collectives, 2 messages


def test_check_of_a_program_reports_its_structure(prism):
    result = prism("check", "--job", prism.job, "--", "torchrun", "--nproc-per-node", 2, FAULTS)
    assert result.code == 0, result.err
    assert "sound" in result.out
    wrong = prism("check", "--job", prism.job, "--force", "--", "torchrun", "--nproc-per-node", 2, FAULTS, "--fault", "count")
    assert wrong.code == 1 and "not sound" in wrong.out


def test_steps_of_an_optimizer_in_two_parts_are_whole(prism):
    """Tensor parallelism has sharded and replicated parameters, which AdamW updates one kind after the other."""
    train = ROOT / "examples/train_gpt.py"
    result = prism.capture("torchrun", "--nproc-per-node", 2, train, "--parallel", "tp", "--steps", 6)
    assert result.code == 0, result.err
    predicted = json.loads(prism("simulate", prism.job, "--json", "--timeline", "none").out)
    assert predicted["method"] == "period"
    assert len(predicted["steps"]) in (4, 5)  # without the first, or what warms up


def test_parent_that_ignores_its_children_does_not_matter(prism):
    started = time.monotonic()
    ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", ignoring, prism.path, "capture", "--job", prism.job, "--", "torchrun", "--nproc-per-node", 2, PROGRAMS / "trains.py"]
    done = subprocess.run([str(word) for word in command], env=prism.environment(), cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 90 and prism.job.joinpath("job.json").exists()
