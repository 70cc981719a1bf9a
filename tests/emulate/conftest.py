"""prism emulate as a user meets it, on hostcuda: one rank a process, the others played.

The fixtures are those of prism capture's tests.
"""

import importlib.util
import pathlib
import sys

CAPTURE = pathlib.Path(__file__).resolve().parents[1] / "capture/conftest.py"
specification = importlib.util.spec_from_file_location("capture_fixtures", CAPTURE)
capture = importlib.util.module_from_spec(specification)
sys.modules["capture_fixtures"] = capture
specification.loader.exec_module(capture)

prism, prism_path, nothing_left, trainer = capture.prism, capture.prism_path, capture.nothing_left, capture.trainer
