"""prism capture as a user meets it: whole jobs of an unmodified PyTorch on hostcuda, without a GPU.

Needs the build (PRISM_BUILD names its folder; default: the newest below build/) and hostcuda in this interpreter's environment.
"""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
BIN = pathlib.Path(sys.executable).parent


def build_folder():
    if os.environ.get("PRISM_BUILD"):
        return pathlib.Path(os.environ["PRISM_BUILD"]).absolute()
    builds = sorted(ROOT.glob("build/*/bin/prism"), key=lambda p: p.stat().st_mtime)
    return builds[-1].parents[1] if builds else ROOT / "build/none"


@dataclasses.dataclass
class Result:
    code: int
    out: str
    err: str
    seconds: float
    job: pathlib.Path

    def read(self, name):
        return json.loads((self.job / name).read_text())


class Prism:
    def __init__(self, path, job):
        self.path, self.job = path, job

    def environment(self, extra=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PRISM_", "HOSTCUDA_"))}
        environment["PATH"] = f"{BIN}:{environment['PATH']}"
        environment.update(extra or {})
        return environment

    def start(self, *arguments, env=None, cwd=None, stdin=subprocess.DEVNULL):
        return subprocess.Popen([str(self.path), *map(str, arguments)], env=self.environment(env), cwd=cwd or ROOT, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=stdin)

    def finish(self, process, started, timeout=240):
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
            pytest.fail(f"no end after {timeout} s\n{out[-2000:]}\n{err[-4000:]}")
        return Result(process.returncode, out, err, time.monotonic() - started, self.job)

    def __call__(self, *arguments, env=None, cwd=None, timeout=240):
        started = time.monotonic()
        return self.finish(self.start(*arguments, env=env, cwd=cwd), started, timeout)

    def capture(self, *command, flags=(), **kwargs):
        return self("capture", "--job", self.job, *flags, "--", *command, **kwargs)


@pytest.fixture(scope="session")
def prism_path():
    path = build_folder() / "bin/prism"
    if not path.exists():
        pytest.fail(f"{path} is not built")
    return path


@pytest.fixture
def prism(prism_path, tmp_path):
    return Prism(prism_path, tmp_path / "job")


def processes_of(marker):
    """Command lines of living processes whose environment or arguments name `marker`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(marker).encode() in text and state != "Z":
            found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def is_held(folder):
    """Whether the prism that made a runtime folder runs, or is about to write its number there."""
    try:
        text = (folder / "pid").read_text()
        return not text or os.path.exists(f"/proc/{int(text)}")
    except FileNotFoundError:
        return folder.exists() and time.time() - folder.stat().st_mtime < 5


@pytest.fixture
def nothing_left(tmp_path):
    """Checks, when the test is over, that its job left no process, socket or shared memory."""
    before_sockets = set(pathlib.Path("/tmp").glob("prism-??????"))
    yield
    def runtime_folders():  # of nobody that lives: other jobs have theirs
        return [p for p in pathlib.Path("/tmp").glob("prism-??????") if p not in before_sockets and not is_held(p)]

    deadline = time.monotonic() + 5
    while (processes_of(tmp_path) or runtime_folders()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(tmp_path) == []
    left = runtime_folders()
    assert left == [], "an empty runtime folder is left"
    jobs_json = tmp_path / "job/job.json"
    if jobs_json.exists():
        session = json.loads(jobs_json.read_text()).get("environment", {}).get("HOSTCUDA_SESSION")
        assert not session or not [p for p in pathlib.Path("/dev/shm").iterdir() if session in p.name]


@pytest.fixture
def trainer(prism):
    """examples/cpp/moe_trainer, of the same build."""
    path = prism.path.parents[1] / "examples/moe_trainer"
    if not path.exists():
        pytest.fail(f"{path} is not built: ninja -C {prism.path.parents[1]} moe_trainer")
    return path
