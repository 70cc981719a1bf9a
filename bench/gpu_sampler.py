"""Clock, power and temperature of the GPUs while something runs."""

import statistics
import subprocess
from types import TracebackType

FIELDS = {"sm_mhz": "clocks.sm", "power_w": "power.draw.instant", "temperature_c": "temperature.gpu"}
INTERVAL_MS = 100
BUSY_W = 300  # an H200 that waits draws less


class GpuSampler:
    """Within the context nvidia-smi samples each GPU; afterwards `medians` has, by GPU, the medians of the samples in which it was busy."""

    def __enter__(self) -> "GpuSampler":
        query = f"--query-gpu=index,{','.join(FIELDS.values())}"
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits", f"--loop-ms={INTERVAL_MS}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.medians: dict[int, dict[str, float]] = {}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.terminate()
        text, _ = self.process.communicate()
        samples: dict[int, list[dict[str, float]]] = {}
        for line in text.splitlines():
            try:
                index, *values = (float(word) for word in line.split(","))
            except ValueError:  # [N/A], or a line that was cut off
                continue
            if len(values) == len(FIELDS):
                samples.setdefault(int(index), []).append(dict(zip(FIELDS, values, strict=True)))
        for index, of_gpu in samples.items():
            busy = [sample for sample in of_gpu if sample["power_w"] > BUSY_W]
            if busy:
                self.medians[index] = {name: statistics.median(sample[name] for sample in busy) for name in FIELDS} | {"samples": len(busy)}
