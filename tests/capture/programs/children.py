"""A rank that starts processes of its own and does not end them."""
import subprocess
import sys

import torch

torch.zeros(1, device="cuda")
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("started", flush=True)
if len(sys.argv) > 1:
    while True:
        pass
