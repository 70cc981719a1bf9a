#!/usr/bin/env python3
"""Tells whether kernel keys of a GPU identify the problem: matrix products of several shapes, each on several sets of buffers.

    bench/kernel_keys.py --prism build/ci/bin/prism --out bench/results/h200/kernel-keys.json        # on a GPU, with PyTorch

Records a program (this file, --program) with --kernel-parameters that multiplies matrices, shape after shape, each shape on BUFFERS sets of
buffers. Keys identify the problem if no two shapes have the same keys (without parameters there are fewer kernels than shapes), and if a shape
has the same keys on several sets of buffers as on one. Exit code: 0, 1 if the recording failed, 3 if keys do not.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from provenance import ROOT, provenance

SCHEMA = 1
SHAPES = [(m, n, k) for m in (128, 4096) for n in (512, 4096) for k in (256, 4096)]
TYPES = ("bfloat16", "float32")
BUFFERS = 6


def program(shape: str, buffers: int) -> None:
    import torch  # noqa: PLC0415  only where the program runs

    name, *extents = shape.split(",")
    m, n, k = map(int, extents)
    dtype = getattr(torch, name)
    kept = []  # so that every set has addresses of its own
    for _ in range(buffers):
        a, b = (torch.ones(size, device="cuda", dtype=dtype) for size in ((m, k), (k, n)))
        kept.append((a, b, a @ b))
    torch.cuda.synchronize()


def keys_of(options: argparse.Namespace, shape: str, buffers: int, folder: Path) -> dict[str, int]:
    job = folder / f"{shape.replace(',', '-')}-{buffers}"
    record = [options.prism, "record", "--device", options.device, "--kernel-parameters", "--job", job, "--",
              options.python, Path(__file__).resolve(), "--program", shape, "--buffers", buffers]
    subprocess.run([str(r) for r in record], check=True, stdout=subprocess.DEVNULL, timeout=300)
    shown = subprocess.run([str(options.prism), "inspect", str(job / "trace/rank-00000.prt"), "--kernels", "--json"], check=True,
                           capture_output=True, text=True, timeout=60)
    # Fills are the ones; what is left are products.
    return {k["key"] + " " + k["name"][:80]: k["launches"] for k in json.loads(shown.stdout)["kernels"]
            if "FillFunctor" not in k["name"] and k["bytes"] == 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism")
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--device", default="cuda", choices=("cuda", "host"))
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="recordings at a time")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--buffers", type=int, default=BUFFERS)
    options = parser.parse_args()
    if options.program:
        program(options.program, options.buffers)
        return 0
    rows, owners = [], {}
    with tempfile.TemporaryDirectory() as folder:
        pool = ThreadPoolExecutor(options.jobs)
        shapes = [f"{t},{m},{n},{k}" for t in TYPES for m, n, k in SHAPES]
        found = {shape: [pool.submit(keys_of, options, shape, buffers, Path(folder)) for buffers in (1, options.buffers)] for shape in shapes}
        for shape in shapes:
            try:
                one, many = (keys.result() for keys in found[shape])
            except subprocess.CalledProcessError as error:
                print(f"kernel_keys: {shape}: {error}", file=sys.stderr)
                return 1
            owners.setdefault(tuple(sorted(many)), []).append(shape)
            rows.append({"shape": shape, "one_set": one, "several_sets": many, "stable": sorted(one) == sorted(many)})
            print(f"{shape:<24} {len(one)} keys on one set of buffers, {len(many)} on {options.buffers}: "
                  f"{'stable' if rows[-1]['stable'] else 'NOT STABLE'}", flush=True)
    shared = [shapes for shapes in owners.values() if len(shapes) > 1]
    for shapes in shared:
        print(f"the same keys: {', '.join(shapes)}")
    stable = sum(row["stable"] for row in rows)
    print(f"{stable} of {len(rows)} shapes have stable keys; {sum(map(len, shared))} share theirs with another")
    if options.out:
        options.out.write_text(json.dumps({"schema": SCHEMA, **provenance(), "shapes": rows, "shared": shared}, indent=1) + "\n")
    return 0 if stable == len(rows) and not shared else 3


if __name__ == "__main__":
    sys.exit(main())
