"""The observer: what a rank's memory was for, as far as PyTorch knows.

Installed in every rank before user code. It reads and never acts: hooks that PyTorch offers for the purpose, nothing patched,
no tensor made. What fails is written down in the file it would have filled, and is silent otherwise.

memory.json of a rank:
  devices   allocator figures at the end, per device: peak and current, allocated and reserved, bytes
  owners    bytes of parameters, gradients, optimizer state (unique storages, after an optimizer step), and of all else at the peak
  out_of_memory   what PyTorch said, each time; also where the program caught it
"""

import atexit
import json
import os
import sys

_SCHEMA_VERSION = 1


class _Observer:
    def __init__(self, directory):
        self.directory = directory
        self.pid = os.getpid()
        self.steps = 0
        self.owners = {}
        self.out_of_memory = []
        self.failures = []

    def fail(self, where, error):
        if len(self.failures) < 20:
            self.failures.append(f"{where}: {type(error).__name__}: {error}")

    # Hooks ------------------------------------------------------------------------------------------------------------

    def after_step(self, optimizer, *_):
        try:
            self.steps += 1
            # The state is complete after the first step; later ones are looked at now and then, because models grow.
            if self.steps <= 3 or self.steps & (self.steps - 1) == 0:
                self._measure(optimizer)
        except Exception as error:
            self.fail("optimizer step", error)

    def _measure(self, optimizer):
        seen = set()
        owners = {"parameters": 0, "gradients": 0, "optimizer_state": 0}
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            owners["parameters"] += _device_bytes(parameter, seen)
        for parameter in parameters:
            owners["gradients"] += _device_bytes(parameter.grad, seen)
        for parameter in parameters:
            for value in optimizer.state.get(parameter, {}).values():
                owners["optimizer_state"] += _device_bytes(value, seen)
        # A program with several optimizers (generator and critic, one a parameter in fused backward) owns the sum.
        self.owners[id(optimizer)] = owners

    def on_out_of_memory(self, device, requested, total, free):
        try:
            self.out_of_memory.append({"device": device, "requested_bytes": requested, "total_bytes": total, "free_bytes": free, "step": self.steps})
        except Exception as error:
            self.fail("out of memory", error)

    # Result -----------------------------------------------------------------------------------------------------------

    def write(self):
        if os.getpid() != self.pid or self.directory is None:
            return  # a data loader's worker, forked from the rank
        torch = sys.modules.get("torch")
        path = os.path.join(self.directory, "memory.json")
        if os.path.exists(path) and (torch is None or not torch.cuda.is_initialized()):
            return  # this program started torchrun: the file is that of its rank of the same number
        try:
            result = {"schema": "prism.rank-memory", "schema_version": _SCHEMA_VERSION, "optimizer_steps": self.steps}
            result["devices"] = self._devices()
            if self.owners:
                owners = {name: sum(one[name] for one in self.owners.values()) for name in ("parameters", "gradients", "optimizer_state")}
                peak = max((d["max_allocated_bytes"] for d in result["devices"]), default=0)
                owners["activations_and_other"] = max(0, peak - sum(owners.values()))
                result["owners"] = owners
            result["out_of_memory"] = self.out_of_memory
        except Exception as error:
            self.fail("result", error)
        result["failures"] = self.failures
        try:
            temporary = os.path.join(self.directory, "memory.json.tmp")
            with open(temporary, "w") as file:
                json.dump(result, file)
            os.replace(temporary, path)
        except OSError:
            pass

    def _devices(self):
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return []
        devices = []
        for device in range(torch.cuda.device_count()):
            stats = torch.cuda.memory_stats(device)
            peak = stats.get("allocated_bytes.all.peak", 0)
            if peak == 0 and stats.get("reserved_bytes.all.peak", 0) == 0:
                continue
            devices.append(
                {
                    "device": device,
                    "max_allocated_bytes": peak,
                    "max_reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
                    "allocated_bytes": stats.get("allocated_bytes.all.current", 0),
                    "reserved_bytes": stats.get("reserved_bytes.all.current", 0),
                    "allocation_retries": stats.get("num_alloc_retries", 0),
                    "out_of_memory_errors": stats.get("num_ooms", 0),
                }
            )
        return devices


def _device_bytes(value, seen):
    """Bytes of the storage behind a tensor on a device, once per storage; 0 for anything else."""
    if value is None or not hasattr(value, "untyped_storage"):
        return 0
    value = getattr(value, "_local_tensor", value)  # a DTensor's part on this rank
    if not value.is_cuda:
        return 0
    storage = value.untyped_storage()
    key = (value.device.index, storage._cdata)
    if key in seen:
        return 0
    seen.add(key)
    return storage.nbytes()


_observer = None


def install(directory):
    """Begins to observe; results go to `directory`/memory.json at the interpreter's end."""
    global _observer
    _observer = _Observer(directory)
    atexit.register(_observer.write)
    if "torch" in sys.modules:
        _hook(_observer)
    else:
        sys.meta_path.insert(0, _WhenTorchComes())


def note_exception(error):
    """Keeps the text of an out-of-memory error that ended the program."""
    torch = sys.modules.get("torch")
    if _observer is not None and torch is not None and isinstance(error, torch.OutOfMemoryError):
        _observer.out_of_memory.append({"text": str(error), "step": _observer.steps})


def note_failure(where, error):
    if _observer is not None:
        _observer.fail(where, error)


def _hook(observer):
    try:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(observer.after_step)
        # Runs when CUDA is initialised, which must stay the program's own doing.
        torch.cuda._lazy_call(lambda: torch._C._cuda_attach_out_of_memory_observer(observer.on_out_of_memory))
    except Exception as error:
        observer.fail("hooks", error)


class _WhenTorchComes:
    """Hooks in when the program has imported torch: one rank is not made to import what it does not use."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _hook(_observer)

        spec.loader.exec_module = exec_module
        return spec
