"""Predictions that are written and hashed before the runs that they are held against, and the verbs of prism that make them."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path


def completed_verb(run: Callable[[list, Path], str], prism: Path, name: str, folder: Path, job: str, arguments: tuple) -> str:
    """Runs a verb of prism into `folder`/`job` unless that is complete; returns what it printed. `run` takes a command and the file for
    its output."""
    log, state = folder / f"{job}.log", folder / job / "job.json"
    if state.exists() and log.exists() and json.loads(state.read_text()).get("state") == "complete":
        return log.read_text()
    shutil.rmtree(folder / job, ignore_errors=True)
    return run([prism, name, "--job", folder / job, *arguments], log)


def write_predictions(folder: Path, predictions: dict) -> None:
    text = json.dumps(predictions, indent=1)
    (folder / "predictions.json").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "predictions.sha256").write_text(digest + "\n")
    print(f"predictions.json sha256 {digest}")


def read_predictions(folder: Path) -> tuple[dict, str]:
    """The predictions and their hash; refuses such as are not those that were hashed."""
    if not (folder / "predictions.sha256").exists():
        sys.exit(f"{folder} holds no predictions: predict first")
    written = (folder / "predictions.json").read_bytes()
    digest = hashlib.sha256(written).hexdigest()
    if digest != (folder / "predictions.sha256").read_text().strip():
        sys.exit("predictions.json is not what was hashed: predict again")
    return json.loads(written), digest
