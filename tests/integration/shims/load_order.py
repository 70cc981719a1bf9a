#!/usr/bin/env python3
"""The load-order matrix: is a process intercepted, by whom, and as which rank?

    load_order.py --shims build/dev/shims --python .env/bin/python [--cuda LIBCUDA --cudart LIBCUDART --nvml LIBNVML]

Runs {plain, unnamed, torchrun, fork after import, fork without asking, data-loader worker, compiler child, stand-in first}
under a stand-in controller and compares what each process's shim saw (PRISM_PROBE) with what must be. Exit code 1 on a
difference. The same on hostcuda and on a GPU's driver.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]

INIT = "import torch, os; torch.cuda.init(); print('count', torch.cuda.device_count())"
FORK = """
import ctypes, os, torch
pids = []
for rank in range(2):
    pid = os.fork()
    if pid == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2')
        begun = ctypes.CDLL('libcuda.so.1').prism_rank_begin(os.environ['PRISM_SOCKET'].encode())
        assert begun == 0, begun
        torch.cuda.set_device(rank); x = torch.ones(4, device='cuda'); torch.cuda.synchronize()
        import sys; sys.exit(0)
    pids.append(pid)
assert all(os.waitpid(p, 0)[1] == 0 for p in pids)
"""
FORK_UNASKED = """
import os, torch
pid = os.fork()
if pid == 0:
    os.environ.update(RANK='0', WORLD_SIZE='1')
    torch.cuda.init()
    import sys; sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
LOADER = """
import torch, os
torch.cuda.init()
from torch.utils.data import DataLoader
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, i): return torch.tensor(float(i))
total = sum(b.sum().item() for b in DataLoader(Numbers(), batch_size=4, num_workers=2, pin_memory=True))
assert total == 120.0, total
x = torch.ones(4, device='cuda'); torch.cuda.synchronize()
"""
CHILD = """
import torch, subprocess, sys
torch.cuda.init()
subprocess.run([sys.executable, '-c', "import torch; torch.cuda.init()"], check=True)
"""


BYPASSED = """
import torch
try:
    torch.cuda.init()
except RuntimeError as error:
    assert 'initializ' in str(error).lower(), error
else:
    raise AssertionError('an uncaptured program ran')
"""


def cases(options):
    run = [options.python, "-c"]
    torchrun = [options.python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29741"]
    program = options.work / "init.py"
    program.write_text(INIT)
    return [
        # name, command, environment, expected (role, rank) of processes that reached cuInit, expected hellos
        ("plain", run + [INIT], {"PRISM_RANK": "0", "WORLD_SIZE": "1"}, [("rank", 0)], [0]),
        ("unnamed", run + [INIT], {}, [("inert", None)], []),
        ("torchrun", torchrun + [str(program)], {}, [("rank", 0), ("rank", 1)], [0, 1]),
        ("fork after import", run + [FORK], {}, [("rank", 0), ("rank", 1)], [0, 1]),
        ("fork without asking", run + [FORK_UNASKED], {}, [("inert", None)], []),
        ("data-loader worker", run + [LOADER], {"RANK": "0", "WORLD_SIZE": "1"}, [("rank", 0)], [0]),
        # A stand-in before the shim would bypass it: the other shims notice and refuse.
        ("stand-in first", run + [BYPASSED], {"RANK": "0", "WORLD_SIZE": "1", "LD_PRELOAD": f"{options.cuda}:{options.preload}"}, [], []),
        ("compiler child", run + [CHILD], {"RANK": "0", "WORLD_SIZE": "1"}, [("rank", 0), ("inert", 0)], [0]),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shims", type=pathlib.Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--cuda", required=True)
    parser.add_argument("--cudart", default="")
    parser.add_argument("--nvml", default="")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    options.work = pathlib.Path(tempfile.mkdtemp(prefix="prism-load-order-"))
    names = ("libcuda.so.1", "libnccl.so.2", "libprism_ordinals.so", "libnvidia-ml.so.1")
    base = {k: v for k, v in os.environ.items() if not k.startswith("PRISM_") and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    options.preload = ":".join(str(options.shims.resolve() / n) for n in names)
    base.update(LD_PRELOAD=options.preload, PRISM_REAL_LIBCUDA=options.cuda,
                PRISM_REAL_LIBCUDART=options.cudart, PRISM_REAL_LIBNVML=options.nvml, PRISM_MODE="capture")
    failed = 0
    print(f"{'case':22} {'processes that reached cuInit (role, rank, named by)':60} controller met   verdict")
    for name, command, extra, expected, hellos in cases(options):
        if options.only and options.only not in name:
            continue
        place = options.work / name.replace(" ", "_")
        place.mkdir()
        log, probe, sock = place / "log", place / "probe", place / "socket"
        controller = subprocess.Popen([sys.executable, str(ROOT / "src/interpose/testing/stand_in_controller.py"), "--socket", str(sock),
                                       "--log", str(log), "--trace", str(place), "--lifetime", "170"])
        while not sock.exists():
            time.sleep(0.05)
        environment = dict(base, PRISM_SOCKET=str(sock), PRISM_PROBE=str(probe))
        environment.update(extra)
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=160)
        time.sleep(0.3)
        controller.kill()
        controller.wait()
        lines = [json.loads(line) for line in probe.read_text().splitlines()] if probe.exists() else []
        seen = sorted(((l["role"], l.get("rank")) for l in lines if l["when"] == "cuInit"), key=str)
        if name == "torchrun" and ("inert", None) in seen:
            seen.remove(("inert", None))  # the launcher itself asks for devices on a GPU machine
        proofs = {l["proof"] for l in lines if l["role"] == "rank"}
        met = sorted(json.loads(l)["rank"] for l in log.read_text().splitlines() if '"hello"' in l) if log.exists() else []
        traces = sorted(p.name for p in place.glob("*.prt"))
        good = (result.returncode == 0 and seen == sorted(expected, key=str) and met == hellos and len(traces) == len(hellos)
                and proofs <= {"intercepted"})
        if name == "stand-in first":
            good = good and "prism must come first in LD_PRELOAD" in result.stderr
        failed |= not good
        shown = ", ".join(f"{l['role']} {l.get('rank', '-')} {l.get('named_by', '-')}" for l in lines if l["when"] == "cuInit")
        print(f"{name:22} {shown:60} {str(met):15}  {'ok' if good else 'DIFFERENT'}", flush=True)
        if not good:
            print(f"   expected {expected}, controller {hellos}, exit {result.returncode}, proofs {proofs}, traces {traces}\n"
                  f"   {result.stderr[-1500:]}", flush=True)
    shutil.rmtree(options.work, ignore_errors=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
