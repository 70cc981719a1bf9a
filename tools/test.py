#!/usr/bin/env python3
"""Builds everything, runs every test, and closes with one line: `N passed, N failed, N skipped`.

C++ tests run by CTest, program tests by pytest. Tests that need a GPU are skipped with their reason where there is none.
"""
import argparse
import collections
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(*command, **kwargs):
    print("+", *command, file=sys.stderr, flush=True)
    return subprocess.run([str(c) for c in command], cwd=ROOT, **kwargs).returncode


def count(path):
    """Adds up a JUnit file: (passed, failed, skipped, reasons of the skipped)."""
    passed = failed = skipped = 0
    reasons = []
    if not path.exists():
        return 0, 1, 0, [f"{path.name} was not written"]
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed += 1
        elif "skipped" in kinds or case.get("status") in ("notrun", "disabled"):
            skipped += 1
            node = case.find("skipped")
            reasons.append(f"{case.get('name')}: {node.get('message') if node is not None else 'not run'}")
        else:
            passed += 1
    return passed, failed, skipped, reasons


def print_skipped(reasons):
    """One line for each distinct reason, with how many tests it holds for."""
    counts = collections.Counter(reason.split(": ", 1)[-1] for reason in reasons)
    for reason, times in counts.most_common():
        print(f"skipped {times}: {reason}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="ci")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--no-build", action="store_true")
    arguments = parser.parse_args()
    python = ROOT / ".env/bin/python"
    build = ROOT / "build" / arguments.preset
    if not arguments.no_build:
        for command in (
            ("cmake", "--preset", arguments.preset, "-DPRISM_BUILD_TESTS=ON", f"-DPRISM_PYTHON={python}",
             "-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "--log-level=WARNING"),
            ("cmake", "--build", "--preset", arguments.preset, "-j", arguments.jobs),
            ("cmake", "--build", "--preset", arguments.preset, "--target", "hostcuda_install"),
        ):
            if run(*command):
                print("0 passed, 1 failed")
                return 1
    out = build / "results"
    out.mkdir(parents=True, exist_ok=True)
    suites = []
    run("ctest", "--test-dir", build, "--output-on-failure", "-j", arguments.jobs, "--output-junit", out / "ctest.xml")
    suites.append(count(out / "ctest.xml"))
    environment = dict(os.environ, PRISM_BUILD=str(build))
    # The driver reads HOSTCUDA_VALUES once a process, so the tests of true values have a process of their own.
    # A file of programs stays in one process: its jobs have several ranks each, and the matrix is written as a whole.
    for name, values, distribution, paths in (("programs", None, "loadfile", ("tests", "--ignore=tests/values")),
                                              ("values", "cpu", "load", ("tests/values",))):
        report = out / f"pytest-{name}.xml"
        report.unlink(missing_ok=True)
        run(python, "-m", "pytest", "-q", "-rfE", "-n", arguments.jobs, "--dist", distribution, *paths, f"--junitxml={report}",
            env=dict(environment, **({"HOSTCUDA_VALUES": values} if values else {})))
        suites.append(count(report))
    print_skipped([reason for suite in suites for reason in suite[3]])
    passed, failed, skipped = (sum(s[i] for s in suites) for i in range(3))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
