"""Where a benchmark's figures come from: commit, machine and versions, for the head of each result file."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "accelerate", "pytorch_lightning", "triton", "megatron_core")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Returns the checked-out commit, with a `+` if the working tree differs from it; of a copy without git, what its file COMMIT says."""
    def git(*arguments: str) -> str:
        asked = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return asked.stdout.strip()

    told = ROOT / "COMMIT"
    if not (ROOT / ".git").exists() and told.exists():
        return told.read_text().strip()
    try:
        head = git("rev-parse", "--short=12", "HEAD")
    except FileNotFoundError:
        return "unknown"
    return (head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")) or "unknown"


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gpus() -> list[str]:
    """Name and driver version of each GPU of this machine; none where there is no NVIDIA driver."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        asked = subprocess.run(query, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return asked.stdout.strip().splitlines()


def provenance() -> dict:
    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores, {memory_bytes() / 2**30:.0f} GiB",
        "versions": versions(),
    }
