"""bench/torchless against what it stands in for: PyTorch's store client, and torchrun's parser."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore, run

TORCHLESS = Path(__file__).resolve().parents[2] / "bench/torchless"
SERVE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0)
store.set("told before", b"by the launcher")
print(store.port, flush=True)
sys.stdin.readline()
print(*sorted(f"{key}={store.get(key).decode()}" for key in store.list_keys()), sep=";")
"""
PARSE = """
import json, sys
from torch.distributed import run
options = vars(run.parse_args(sys.argv[1:]))
print(json.dumps(options | {"nnodes": run.parse_min_max_nnodes(options["nnodes"])}))
"""


def stand_in(code, *arguments, **options):
    environment = os.environ | {"PYTHONPATH": str(TORCHLESS), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, stdout=subprocess.PIPE, text=True, **options)


def test_store_answers_pytorchs_client():
    with stand_in(SERVE, stdin=subprocess.PIPE) as server:
        client = TCPStore("127.0.0.1", int(server.stdout.readline()), is_master=False, timeout=timedelta(seconds=30), use_libuv=False)
        other = client.clone()
        client.set("id", b"x" * 100000)
        other.wait(["id", "told before"])
        assert other.get("id") == b"x" * 100000
        assert other.get("told before") == b"by the launcher"
        out, _ = server.communicate("\n")
    assert out.strip() == f"id={'x' * 100000};told before=by the launcher"


@pytest.mark.parametrize(
    "line",
    ["--nproc-per-node=8 --master-port=4711 --nnodes=2 --no-python program --timed --steps 3", "--nnodes=1:4 --nproc_per_node 2 --standalone -m module", "script.py"],
)
def test_command_line_is_read_as_torchrun_reads_it(line):
    with stand_in(PARSE, *line.split()) as process:
        found = json.loads(process.communicate()[0])
    true = run.parse_args(line.split())
    assert found.pop("nnodes") == list(run.parse_min_max_nnodes(true.nnodes))
    # master_port and the like are compared as the launcher reads them.
    assert {name: str(value) for name, value in found.items()} == {name: str(getattr(true, name)) for name in found}
