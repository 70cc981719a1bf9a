"""hostcuda as a user meets it: an unmodified CUDA build of PyTorch, in processes of its own, through the `hostcuda` command.

Needs hostcuda installed in this interpreter's environment (`cmake --build build/<preset> --target hostcuda_install`).
PRISM_BUILD names the build folder (default: the newest below build/).
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent


def build_folder():
    if os.environ.get("PRISM_BUILD"):
        return pathlib.Path(os.environ["PRISM_BUILD"]).absolute()
    builds = sorted(ROOT.glob("build/*/hostcuda/lib"), key=lambda p: p.stat().st_mtime)
    return builds[-1].parents[1] if builds else ROOT / "build/none"


@pytest.fixture(scope="session")
def build():
    folder = build_folder()
    if not (folder / "hostcuda/lib/libcuda.so.1").exists():
        pytest.fail(f"no hostcuda in {folder}: build it, or name the build folder in PRISM_BUILD")
    return folder


@pytest.fixture(scope="session")
def command(build):
    return str(build / "hostcuda/bin/hostcuda")


@pytest.fixture(scope="session")
def installed(command):
    """The environment of this interpreter, once hostcuda is seen to work in it."""
    environment = pathlib.Path(sys.executable).parents[1]
    check = subprocess.run([command, "install", "--env", environment, "--check", "--json"], capture_output=True, text=True, timeout=300)
    if check.returncode != 0:
        pytest.fail(f"hostcuda does not work in {environment}: {check.stdout}{check.stderr}")
    return environment


class Result:
    def __init__(self, process):
        self.code, self.stdout, self.stderr = process.returncode, process.stdout, process.stderr

    @property
    def missing(self):
        """What the libraries said they lack, which is the first thing to read when something fails."""
        return [line for line in self.stderr.splitlines() if line.startswith("hostcuda:")]

    def records(self):
        assert self.code == 0, f"exit code {self.code}; {self.missing}\n{self.stdout[-2000:]}\n{self.stderr[-4000:]}"
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="session")
def run(command, installed):
    def start(*program, options=(), environment=None, timeout=600):
        arguments = [str(HERE / p) if str(p).endswith(".py") else str(p) for p in program]
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("HOSTCUDA_", "LD_"))}
        variables["HOSTCUDA_SESSION"] = f"pytest-{os.getpid()}"  # device memory of its own, whatever else runs here
        variables.update(environment or {})
        return Result(subprocess.run([command, "run", *options, "--", sys.executable, "-W", "ignore", *arguments], capture_output=True, text=True,
                                     timeout=timeout, env=variables))
    return start
