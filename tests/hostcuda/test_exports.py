"""The built libraries against the checked-in description of NVIDIA's: names, SONAME, version node, dependencies."""

import json
import pathlib
import subprocess

import pytest

API = pathlib.Path(__file__).resolve().parents[2] / "hostcuda/api"
DESCRIPTIONS = {p.stem: json.loads(p.read_text()) for p in sorted(API.glob("*.json"))}


def exported(path):
    out = subprocess.run(["nm", "-D", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    return dict((line.split()[-1].split("@")[0], line.split()[-1].partition("@")[2].lstrip("@")) for line in out.splitlines())


@pytest.mark.parametrize("library", DESCRIPTIONS)
def test_library_exports_what_nvidias_does(build, library):
    description = DESCRIPTIONS[library]
    path = build / "hostcuda/lib" / description["soname"]
    assert path.exists(), f"{path} was not built"
    names = exported(path)
    missing = [f["name"] for f in description["functions"] if f["name"] not in names]
    assert not missing, missing
    if description["node"]:
        assert {names[f["name"]] for f in description["functions"]} == {description["node"]}
    dynamic = subprocess.run(["readelf", "-dW", path], check=True, capture_output=True, text=True).stdout
    assert f"soname: [{description['soname']}]" in dynamic
    needed = {line.split("[")[1].rstrip("]\n") for line in dynamic.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}, needed
    mangled = [n for n in names if n.startswith("_Z")]
    assert not mangled, mangled


def test_description_and_reference_page_agree():
    page = (API.parents[1] / "docs/reference/hostcuda-api.md").read_text()
    for description in DESCRIPTIONS.values():
        row = next((line for line in page.splitlines() if line.startswith(f"| `{description['soname']}` |")), None)
        if row is None:
            continue  # written by hand altogether
        counts = [int(c) for c in row.split("|")[2:-1]]
        assert counts[0] == len(description["functions"]) == sum(counts[1:]), description["soname"]
