"""torchrun's command line, and its ranks as children of the zygote.

The parser is the user's own torch's, so every flag of its version is understood. All nodes of the job are hosted here: a
command for one of two nodes (--nnodes 2 --node-rank 0) becomes the ranks of both.
"""

import base64
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref

from _prism import imports
from _prism.program import Program, Rank

_PR_SET_PDEATHSIG = 1
_STOP_GRACE_S = 2.0
_ALWAYS = (
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch.utils.data",
    "torch._dynamo",
)


class Control:
    """The connection to the controller."""

    def __init__(self):
        path = os.environ.get("PRISM_CONTROL")
        if not path:
            raise SystemExit("prism: PRISM_CONTROL is not set: the zygote is started by 'prism capture'")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self._received = b""

    def tell(self, **message):
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the controller is gone; the loop sees that by end of file

    def ask(self, **message):
        self.tell(**message)
        while b"\n" not in self._received:
            data = self.socket.recv(65536)
            if not data:
                raise SystemExit("prism: the controller is gone")
            self._received += data
        return self.take()[0]

    def take(self):
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines if line]

    def receive(self):
        """Messages that are there; None at end of file."""
        data = self.socket.recv(65536)
        if not data:
            return None
        self._received += data
        return self.take()


class Plan:
    """What torchrun would start: the ranks and their environment."""

    def __init__(self, arguments, legacy=False):
        from torch.distributed import run

        sys.argv[0] = "torchrun"  # by which its usage and errors name it
        options = (importlib.import_module("torch.distributed.launch") if legacy else run).parse_args(arguments)
        try:
            self.nodes = run.parse_min_max_nnodes(options.nnodes)[1]
            self.per_node = self._per_node(options.nproc_per_node)
        except (ValueError, RuntimeError) as error:
            raise SystemExit(f"torchrun: {error}") from None
        if self.nodes < 1 or self.per_node < 1:
            raise SystemExit(f"torchrun: --nnodes {options.nnodes} --nproc-per-node {options.nproc_per_node} starts no process")
        self.options = options
        self.world = self.nodes * self.per_node
        self.use_env = run.get_use_env(options)
        self.address, self.port = self._endpoint(options)
        kind = "exec" if options.no_python else "module" if options.module else "script"
        self.program = Program(kind, options.training_script, options.training_script_args)

    @staticmethod
    def _per_node(text):
        if text in ("gpu", "auto"):
            return int(os.environ.get("PRISM_TARGET_GPUS", "1"))
        if text == "cpu":
            return os.cpu_count()
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"unsupported --nproc-per-node {text!r}") from None

    @staticmethod
    def _endpoint(options):
        """Where the store listens: this machine, at the port that was asked for, or a free one."""
        port = 0
        endpoint = options.rdzv_endpoint or ""
        if not options.standalone:
            host, _, asked = endpoint.rpartition(":")
            if host and asked.isdigit():
                port = int(asked)
            elif not endpoint and (int(options.master_port) != 29500 or any(a.startswith(("--master-port", "--master_port")) for a in sys.argv)):
                port = int(options.master_port)
        return "127.0.0.1", port

    def environment(self, rank, run_id):
        options = self.options
        environment = {
            "RANK": rank,
            "LOCAL_RANK": rank % self.per_node,
            "WORLD_SIZE": self.world,
            "LOCAL_WORLD_SIZE": self.per_node,
            "GROUP_RANK": rank // self.per_node,
            "GROUP_WORLD_SIZE": self.nodes,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": self.world,
            "ROLE_NAME": options.role,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": self.port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": options.max_restarts,
            "TORCHELASTIC_RUN_ID": run_id,
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        if "OMP_NUM_THREADS" not in os.environ and self.per_node > 1:
            environment["OMP_NUM_THREADS"] = 1
        return {name: str(value) for name, value in environment.items()}

    def program_of(self, rank):
        arguments = [a.replace("${local_rank}", str(rank % self.per_node)) for a in self.program.arguments]
        if not self.use_env:
            arguments.insert(0, f"--local-rank={rank % self.per_node}")
        return Program(self.program.kind, self.program.target, arguments)


class _Output:
    """A rank's output: its log, and for some ranks the terminal too."""

    def __init__(self, rank, name, directory, terminal, prefix):
        self.log = os.open(os.path.join(directory, f"{name}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.terminal, self.prefix = terminal, prefix
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC) if terminal is not None else (None, self.log)
        if self.read_end is not None:
            os.set_blocking(self.read_end, False)
        self._unfinished = b""
        self.muted = False

    def started(self):
        """The child has its end; of an output that is only logged nothing is left here, however many ranks there are."""
        os.close(self.write_end)
        if self.read_end is None:
            self.log = None

    def pump(self):
        """Copies what is there; False at the end."""
        while True:
            try:
                data = os.read(self.read_end, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            _write_all(self.log, data)
            if self.muted:
                continue
            if self.prefix:
                # Whole lines only: those of several ranks meet on the terminal.
                *lines, self._unfinished = (self._unfinished + data).split(b"\n")
                data = b"".join(self.prefix + line + b"\n" for line in lines)
            _write_all(self.terminal, data)

    def mute(self):
        """Keeps the output from now on, and does not show it."""
        if self.read_end is not None:
            self.pump()
        self.muted = True

    def finish(self):
        if self._unfinished:
            _write_all(self.terminal, self.prefix + self._unfinished + b"\n")

    def close(self):
        for descriptor in (self.read_end, self.log):
            if descriptor is not None:
                os.close(descriptor)


def _write_all(descriptor, data):
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass  # a closed terminal or a full disk must not end the job


def _die_with_parent():
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _host_store(plan):
    """Starts the process that hosts the TCPStore, as torchrun's agent does; returns (pid, port)."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code, doing = 1, "listen"
        try:
            _die_with_parent()
            os.close(read_end)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            from torch.distributed import TCPStore

            # Not the libuv backend: it looks up the name of every peer, and a resolver that does not answer for
            # 127.0.0.1 then holds the store, and with it the job, for seconds a connection.
            store = TCPStore(plan.address, plan.port, is_master=True, wait_for_workers=False, use_libuv=False)
            doing = "read"
            _load_keys(store)
            os.write(write_end, str(store.port).encode())
            os.close(write_end)
            code = 0
            # Blocked from here on, so that it ends nothing but the wait.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            signal.sigwait({signal.SIGTERM})
            _save_keys(store)
        except BaseException as error:
            if code:
                os.write(write_end, f"!{doing} {error}".encode())
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        answer = pipe.read().decode()
    if not answer or answer.startswith("!"):
        os.waitpid(pid, 0)
        doing, _, why = " ".join(answer[1:].split()).partition(" ")
        why = why[:200] or "its process ended"
        if doing == "read":
            raise _LaunchError(f"what the captured job's ranks told each other cannot be read: {why}", "capture the job again")
        raise _LaunchError(f"the rendezvous store cannot listen on port {plan.port}: {why}", "choose another port with --master-port, or leave it out")
    return pid, int(answer)


_STORE_KEYS = "store.json"


def _save_keys(store):
    """Keeps what the ranks told each other through the store: an emulation of some of them needs what the others said."""
    keys = {key: base64.b64encode(store.get(key)).decode() for key in store.list_keys()}
    path = os.path.join(os.environ["PRISM_JOB"], _STORE_KEYS)
    with open(path + ".tmp", "w") as file:
        json.dump({"schema": "prism.store", "schema_version": 1, "keys": keys}, file)
    os.replace(path + ".tmp", path)


def _load_keys(store):
    captured = os.environ.get("PRISM_CAPTURED")
    if not captured:
        return
    with open(os.path.join(captured, _STORE_KEYS)) as file:
        keys = json.load(file)["keys"]
    for key, value in keys.items():
        store.set(key, base64.b64decode(value))


class _LaunchError(Exception):
    def __init__(self, message, hint):
        super().__init__(message)
        self.hint = hint


def _sandbox(world):
    """The ranks that run where the others are played (prism emulate); none: all run."""
    return [rank for rank in map(int, filter(None, os.environ.get("PRISM_SANDBOX_RANKS", "").split(","))) if rank < world]


def _threads():
    return len(os.listdir("/proc/self/task"))


def launch(arguments, legacy=False):
    """Starts the ranks and stays until they have ended: returns the exit code. In a forked child: returns its Rank."""
    control = Control()
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # ranks read no terminal; an interrupt from there is the controller's to act on
    try:
        import torch
        import torch.distributed.run
    except ImportError as error:
        control.tell(type="failed", error=f"{sys.executable} cannot import torch: {error}", hint="'prism doctor' shows which PyTorch and which CUDA libraries it finds; tools/setup.sh installs both")
        return 125
    plan = Plan(arguments, legacy)
    if plan.program.kind == "script" and not os.path.exists(plan.program.target):
        control.tell(type="failed", error=f"there is no script {plan.program.target}", hint=f"the working directory is {os.getcwd()}")
        return 125
    answer = control.ask(
        type="plan",
        world=plan.world,
        nodes=plan.nodes,
        per_node=plan.per_node,
        script=plan.program.target,
        versions={"python": sys.version.split()[0], "torch": torch.__version__},
        python=sys.executable,
    )
    if answer["type"] != "go":
        control.tell(type="bye")
        return 125
    try:
        store_pid, plan.port = _host_store(plan)
    except _LaunchError as error:
        control.tell(type="failed", error=str(error), hint=error.hint)
        return 125
    return _Family(control, plan, store_pid).run()


class _Family:
    """The zygote's children and the loop that watches them."""

    def __init__(self, control, plan, store_pid):
        self.control, self.plan, self.store_pid = control, plan, store_pid
        self.children = {}  # pid -> rank
        self.outputs = {}  # read end -> _Output
        self.all_outputs = []
        self.codes = {}
        self.stopping_since = None
        self.killed = False

    def run(self):
        plan = self.plan
        run_id = plan.options.rdzv_id if plan.options.rdzv_id != "none" else "none"
        how = os.environ.get("PRISM_LAUNCH", "auto")
        if plan.program.kind == "exec":
            how = "spawn"
        if how != "spawn":
            notes = imports.preload(plan.program.source_path(), _ALWAYS)
            threads = _threads()
            import torch

            reason = None
            if threads > 1:
                reason = f"{threads - 1} threads exist after the imports"
            elif torch.cuda.is_initialized():
                reason = "a CUDA context exists after the imports"
            if reason and how == "fork":
                self.control.tell(type="failed", error=f"the ranks cannot be forked: {reason}", hint="--launch spawn starts them as interpreters of their own")
                self._end_store()
                return 125
            how = "spawn" if reason else "fork"
            self.control.tell(type="note", launch=how, reason=reason or "", imported=notes)
        if how == "fork":
            # What the imports made is the zygote's: a child does not clean it up at its end (torch would take out every operator
            # that a library registered, one by one), and its collector never writes to these pages.
            for finalizer in list(weakref.finalize._registry):
                finalizer.atexit = False
            gc.collect()
            gc.disable()
            gc.freeze()
        tee = os.environ.get("PRISM_TEE", "rank0")
        wakeup = self._watch_children()
        ranks = _sandbox(plan.world) or range(plan.world)
        for rank in ranks:
            terminal = tee == "all" or (tee == "rank0" and rank == ranks[0])
            child = self._start(rank, how, run_id, terminal, tee == "all" and plan.world > 1)
            if child is not None:
                return child
        return self._loop(wakeup)

    def _watch_children(self):
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.wakeup_write = write_end
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        # The controller decides what an interrupt means; the ranks are stopped by its word.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        return read_end

    def _start(self, rank, how, run_id, terminal, prefixed):
        plan = self.plan
        directory = os.path.join(os.environ["PRISM_JOB"], "ranks", f"{rank:05}")
        os.makedirs(directory, exist_ok=True)
        prefix = f"[rank{rank}]: ".encode() if prefixed else b""
        out = _Output(rank, "stdout", directory, 1 if terminal else None, prefix)
        err = _Output(rank, "stderr", directory, 2 if terminal else None, prefix)
        environment = plan.environment(rank, run_id)
        program = plan.program_of(rank)
        if how == "fork":
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                self._become_child(out, err)
                return Rank(rank, environment, program, forked=True)
        else:
            pid = self._spawn(rank, program, environment, out, err)
        for output in (out, err):
            output.started()
            self.all_outputs.append(output)
            if output.read_end is not None:
                self.outputs[output.read_end] = output
        self.children[pid] = rank
        self.control.tell(type="started", rank=rank, pid=pid)
        return None

    def _become_child(self, out, err):
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _die_with_parent()
        self.control.socket.close()
        os.close(self.wakeup_write)
        os.environ.pop("PRISM_RANK", None)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(out.write_end, 1)
        os.dup2(err.write_end, 2)
        for output in self.all_outputs:
            output.close()
        for output in (out, err):
            if output.read_end is not None:
                os.close(output.read_end)
            os.close(output.write_end)
            if output.write_end != output.log:
                os.close(output.log)
        # torchrun starts its workers with `python -u`.
        sys.stdout.reconfigure(line_buffering=True, write_through=True)
        sys.stderr.reconfigure(line_buffering=True, write_through=True)

    def _spawn(self, rank, program, environment, out, err):
        full = {name: value for name, value in os.environ.items() if name != "PRISM_RANK"}
        full.update(environment)
        if program.kind == "exec":
            command = [program.target, *program.arguments]
        else:
            flags = subprocess._args_from_interpreter_flags()
            zygote = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zygote.py")
            command = [sys.executable, "-u", *flags, zygote, "rank"]
            full["PRISM_PROGRAM"] = json.dumps({"rank": rank, "program": program.to_json()})
        try:
            process = subprocess.Popen(command, env=full, stdin=subprocess.DEVNULL, stdout=out.write_end, stderr=err.write_end, preexec_fn=_die_with_parent)
        except OSError as error:
            self.control.tell(type="failed", error=f"{command[0]}: {error.strerror}", hint="the program that torchrun --no-python starts must be executable")
            self._stop()
            raise SystemExit(125) from None
        process.returncode = 0  # reaped by the loop
        return process.pid

    def _loop(self, wakeup):
        poller = select.poll()
        poller.register(wakeup, select.POLLIN)
        poller.register(self.control.socket, select.POLLIN)
        for descriptor in self.outputs:
            poller.register(descriptor, select.POLLIN)
        while self.children:
            timeout = 200 if self.stopping_since is not None else 5000
            for descriptor, _ in poller.poll(timeout):
                if descriptor == wakeup:
                    os.read(wakeup, 4096)
                elif descriptor == self.control.socket.fileno():
                    messages = self.control.receive()
                    if messages is None or any(m["type"] == "stop" for m in messages):
                        self._stop()
                    if messages is None:
                        poller.unregister(descriptor)
                    elif any(m["type"] == "mute" for m in messages):
                        for output in self.all_outputs:
                            output.mute()
                elif not self.outputs[descriptor].pump():
                    poller.unregister(descriptor)
                    del self.outputs[descriptor]
            self._reap()
            if self.stopping_since is not None and not self.killed and time.monotonic() - self.stopping_since > _STOP_GRACE_S:
                self.killed = True
                self._signal(signal.SIGKILL)
        for output in self.all_outputs:
            if output.read_end is not None:
                output.pump()
                output.finish()
        self._end_store()
        self.control.tell(type="bye")
        return 1 if any(self.codes.values()) else 0

    def _reap(self):
        while self.children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self.children.pop(pid, None)
            if rank is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            self.codes[rank] = code
            ended = {"exit_code": code, "signal": 0} if code >= 0 else {"exit_code": -1, "signal": -code}
            ended.update(self._error_of(rank) if code > 0 else {})
            self.control.tell(type="ended", rank=rank, stopped=self.stopping_since is not None, **ended)

    @staticmethod
    def _error_of(rank):
        try:
            with open(os.path.join(os.environ["PRISM_JOB"], "ranks", f"{rank:05}", "error.json")) as file:
                return json.load(file)
        except (OSError, ValueError):
            return {}

    def _stop(self):
        if self.stopping_since is None:
            self.stopping_since = time.monotonic()
            self._signal(signal.SIGTERM)

    def _signal(self, number):
        for pid in list(self.children):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def _end_store(self):
        try:
            os.kill(self.store_pid, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_GRACE_S
            while os.waitpid(self.store_pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    os.kill(self.store_pid, signal.SIGKILL)
                    deadline = float("inf")
                time.sleep(0.005)
        except (ProcessLookupError, ChildProcessError):
            pass
