"""What is left of a job: nothing, however it, its processes or prism itself ended."""

import fcntl
import json
import os
import pathlib
import subprocess
import sys
import time

SHM = pathlib.Path("/dev/shm")
NO_CUDA = ("--device", "none")


def runtime_folder(parent, name, pid):
    """A folder as a prism of that process has one, and a piece of shared memory as its ranks have."""
    folder = parent / name
    folder.mkdir()
    (folder / "pid").write_text(f"{pid}\n")
    memory = SHM / f"memory-of-{name}"
    memory.write_bytes(b"x")
    return folder, memory


def test_remains_of_a_prism_that_was_killed_are_named_and_removed(prism, tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stale, stale_memory = runtime_folder(tmp_path, "prism-stale1", gone.pid)
    alive, alive_memory = runtime_folder(tmp_path, "prism-alive1", os.getpid())
    try:
        shown = prism("doctor", "--python", sys.executable, env={"TMPDIR": str(tmp_path)}).out
        assert f"by prisms that were killed: {stale}, and 1 file in /dev/shm" in shown, shown
        assert str(alive) not in shown and f"process {os.getpid()}" in shown
        assert prism.capture("python", "-c", "", flags=NO_CUDA, env={"TMPDIR": str(tmp_path)}).code == 0
        assert not stale.exists() and not stale_memory.exists()
        assert alive.exists() and alive_memory.exists()
        assert [p.name for p in tmp_path.glob("prism-*")] == ["prism-alive1"]
    finally:
        for memory in (stale_memory, alive_memory):
            memory.unlink(missing_ok=True)


def test_communicators_that_no_process_holds_are_removed(prism):
    left, held = (SHM / f"hostnccl-{os.getuid()}-{name}-{os.getpid()}" for name in ("left", "held"))
    try:
        with held.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            assert prism.capture("python", "-c", f"open({str(left)!r}, 'w')", flags=NO_CUDA).code == 0
            assert not left.exists() and held.exists()
    finally:
        for memory in (left, held):
            memory.unlink(missing_ok=True)


def test_reader_that_leaves_does_not_end_the_job(prism):
    code = "import sys\nfor i in range(2000): print('x' * 200, flush=True)\nprint('ended', file=sys.stderr)"
    process = prism.start("capture", "--job", prism.job, *NO_CUDA, "--", "python", "-c", code)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0, process.stderr.read()
    assert "captured 1 rank" in process.stderr.read()
    process.stderr.close()
    assert json.loads((prism.job / "job.json").read_text())["state"] == "complete"
    assert (prism.job / "ranks/00000/stdout.log").read_text().count("x" * 200) == 2000


def test_force_does_not_replace_a_job_that_runs(prism):
    process = prism.start("capture", "--job", prism.job, *NO_CUDA, "--", "python", "-c", "input()", stdin=subprocess.PIPE)
    while not (prism.job / "ranks/00000/stdout.log").exists():
        assert process.poll() is None
        time.sleep(0.05)
    refused = prism.capture("python", "-c", "", flags=(*NO_CUDA, "--force"))
    assert refused.code == 125 and f"is still running (process {process.pid})" in refused.err, refused.err
    process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert prism.capture("python", "-c", "", flags=(*NO_CUDA, "--force")).code == 0


def test_what_a_script_started_does_not_outlive_a_prism_that_is_killed(prism, tmp_path):
    pids = tmp_path / "pids"
    script = f"sleep 1000 & echo $! > {pids}; setsid sleep 1000 & echo $! >> {pids}; wait"
    process = prism.start("capture", "--job", prism.job, *NO_CUDA, "--", "bash", "-c", script, env={"TMPDIR": str(tmp_path)})
    while not pids.exists() or len(pids.read_text().split()) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=30)
    alive = set(pids.read_text().split())
    deadline = time.monotonic() + 10
    while (alive or list(tmp_path.glob("prism-*"))) and time.monotonic() < deadline:
        alive = {pid for pid in alive if pathlib.Path(f"/proc/{pid}/cmdline").exists()}
        time.sleep(0.05)
    for pid in alive:
        os.kill(int(pid), 9)
    assert not alive and not list(tmp_path.glob("prism-*"))
