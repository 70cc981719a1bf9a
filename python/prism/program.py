"""The user's program and the rank that runs it: everything that happens in a rank's process before and around user code."""

import atexit
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import runpy
import sys
import threading
import traceback
import types


class Program:
    """What to run: a script, a module (-m), or code (-c), with its arguments."""

    def __init__(self, kind, target, arguments):
        self.kind, self.target, self.arguments = kind, target, list(arguments)

    @classmethod
    def from_python_command(cls, arguments):
        """`arguments` are those behind the interpreter and its flags."""
        if not arguments:
            raise SystemExit("prism: python needs a script, -m or -c; an interactive interpreter cannot be captured")
        if arguments[0] in ("-m", "-c"):
            if len(arguments) < 2:
                raise SystemExit(f"prism: python {arguments[0]} needs an argument")
            return cls("module" if arguments[0] == "-m" else "code", arguments[1], arguments[2:])
        return cls("script", arguments[0], arguments[1:])

    def to_json(self):
        return {"kind": self.kind, "target": self.target, "arguments": self.arguments}

    @classmethod
    def from_json(cls, json_object):
        return cls(json_object["kind"], json_object["target"], json_object["arguments"])

    def source_path(self):
        """The file whose imports tell what is worth importing before the fork; None where there is none."""
        if self.kind == "script":
            path = os.path.join(self.target, "__main__.py") if os.path.isdir(self.target) else self.target
            return path if os.path.isfile(path) else None
        if self.kind == "module":
            try:
                sys.path.insert(0, os.getcwd())
                spec = importlib.util.find_spec(self.target)
                return spec.origin if spec and spec.origin and spec.origin.endswith(".py") else None
            except (ImportError, ValueError, AttributeError):
                return None
            finally:
                del sys.path[0]
        return None

    def run(self):
        """Runs it as __main__, as the interpreter would; returns when it returns, raises what it raises."""
        main = types.ModuleType("__main__")
        main.__builtins__ = __builtins__
        sys.modules["__main__"] = main
        if self.kind == "module":
            sys.argv = ["-m", *self.arguments]
            sys.path.insert(0, os.getcwd())
            runpy._run_module_as_main(self.target)
            return
        if self.kind == "code" or (self.kind == "script" and self.target == "-"):
            from_input = self.kind == "script"
            sys.argv = ["-" if from_input else "-c", *self.arguments]
            sys.path.insert(0, "")
            text, name = (sys.stdin.read(), "<stdin>") if from_input else (self.target, "<string>")
            exec(compile(text, name, "exec"), main.__dict__)
            return
        sys.argv = [self.target, *self.arguments]
        if os.path.isdir(self.target) or not self.target.endswith((".py", ".pyw")) and _is_archive(self.target):
            runpy.run_path(self.target, run_name="__main__")
            return
        sys.path.insert(0, os.path.dirname(os.path.realpath(self.target)))
        try:
            with open(self.target, "rb") as file:
                source = file.read()
        except OSError as error:
            print(f"{sys.executable}: can't open file {os.path.abspath(self.target)!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
            raise SystemExit(2) from None
        main.__file__ = os.path.abspath(self.target)
        main.__cached__ = None
        exec(compile(source, main.__file__, "exec"), main.__dict__)


def _is_archive(path):
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"PK"
    except OSError:
        return False


class Rank:
    """One logical rank: `environment` is what its launcher would have set."""

    def __init__(self, rank, environment, program, forked=False):
        self.rank, self.environment, self.program, self.forked = rank, dict(environment), program, forked

    @classmethod
    def from_environment(cls):
        description = json.loads(os.environ.pop("PRISM_PROGRAM"))
        return cls(description["rank"], {}, Program.from_json(description["program"]))

    @property
    def directory(self):
        job = os.environ.get("PRISM_JOB")
        return os.path.join(job, "ranks", f"{self.rank:05}") if job else None

    def run(self):
        """Becomes the rank, runs the program, and returns its exit code."""
        os.environ.update(self.environment)
        if self.directory:
            os.makedirs(self.directory, exist_ok=True)
        _show_stack_on_signal(self.rank)
        _begin()
        self._reseed()
        from _prism import observe

        observe.install(self.directory)
        try:
            self.program.run()
        except SystemExit:
            raise
        except BaseException as error:
            self._record(error, observe)
            # As the interpreter does it, less the frames that are not the user's.
            error.__traceback__ = _user_traceback(error.__traceback__)
            sys.excepthook(type(error), error, error.__traceback__)
            if isinstance(error, KeyboardInterrupt):
                return 130
            return 1
        return 0

    def _record(self, error, observe):
        try:
            observe.note_exception(error)
            text = traceback.format_exception(type(error), error, _user_traceback(error.__traceback__))
            what = summary(error)
            if self.directory:
                with open(os.path.join(self.directory, "error.json"), "w") as file:
                    json.dump({"error": what, "traceback": "".join(text), "call_site": _call_site(error.__traceback__)}, file)
        except Exception as failure:
            observe.note_failure("error.json", failure)

    def _reseed(self):
        # `random` reseeds itself in a forked child; numpy's global generator does not, and was made by the zygote's import.
        numpy = sys.modules.get("numpy")
        if numpy is not None and hasattr(numpy, "random"):
            numpy.random.seed()


def leave(run):
    """Ends a forked process with what run() returns or raises, as the interpreter's end does, but for taking apart what the zygote
    made, modules and C++ statics: that would write to all that the ranks share, and cost each of them a heap of its own at the
    same moment."""
    libc = ctypes.PyDLL(None)  # with the interpreter's lock: no thread of Python may run into what is being taken down
    # Handlers run last in, first out: those of libraries that this process loads or starts come before these two, which leave
    # out those from before the fork.
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    getattr(libc, "__cxa_atexit")(ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)
    try:
        code = run()
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    # Files that nobody closed are written out when their objects die. What the zygote made is frozen and not among these.
    for thing in gc.get_objects():
        if issubclass(type(thing), io._io._IOBase):  # not isinstance: it asks things for their __class__
            try:
                if not thing.closed:
                    thing.flush()
            except (OSError, ValueError):
                pass
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass
    libc.exit((code or 0) & 0xFF)


def _show_stack_on_signal(rank):
    """Lets the controller ask where this process is blocked: faulthandler writes the main thread's frames without the
    interpreter's help. PRISM_STACKS is the signal's number and the folder of the answers."""
    number, _, folder = os.environ.get("PRISM_STACKS", "").partition(":")
    if not number:
        return
    try:
        answers = os.open(os.path.join(folder, f"stack-{rank:05}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        faulthandler.register(int(number), file=answers, all_threads=False)
    except (OSError, ValueError, RuntimeError):
        pass  # the controller sees that nobody handles the signal


def _begin():
    """Tells the preloaded driver shim that this process is a rank now."""
    socket = os.environ.get("PRISM_SOCKET")
    if not socket:
        return
    preloaded = "libcuda.so.1" in os.environ.get("LD_PRELOAD", "")
    try:
        begin = ctypes.CDLL(None).prism_rank_begin
    except AttributeError:
        if preloaded:
            raise SystemExit("prism: libcuda.so.1 is preloaded but has no prism_rank_begin: another library of that name came first") from None
        return  # asked for: a job without CUDA, or one whose shims are loaded some other way
    begin.argtypes, begin.restype = [ctypes.c_char_p], ctypes.c_int
    if begin(socket.encode()) != 0:
        raise SystemExit(125)


_SUMMARY_CHARACTERS = 160


def summary(error):
    """One line about an exception: its type, and what its message begins with (error.json has all of it). An exception that was
    passed on as text (a child's traceback) ends on what happened."""
    lines = [line.strip() for line in traceback.format_exception_only(type(error), error)[-1].splitlines() if line.strip()]
    text = lines[0]
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        text = f"{text.rstrip(':')}: {lines[-1]}"
    if len(text) <= _SUMMARY_CHARACTERS:
        return text
    sentence = text.rfind(". ", 0, _SUMMARY_CHARACTERS)
    return text[: sentence + 1] if sentence > 0 else text[: _SUMMARY_CHARACTERS - 3] + "..."


def _is_users(frame):
    filename = frame.f_code.co_filename
    return not (
        filename.startswith("<frozen")
        or os.path.dirname(os.path.abspath(filename)) == os.path.dirname(os.path.abspath(__file__))
        or os.path.basename(filename) == "runpy.py"
    )


def _user_traceback(tb):
    """Drops the frames around the program."""
    while tb is not None and not _is_users(tb.tb_frame):
        tb = tb.tb_next
    return tb


def _call_site(tb):
    """"train.py:12 in step < train.py:40 in main": innermost frames outside of installed packages."""
    frames = []
    while tb is not None:
        filename = tb.tb_frame.f_code.co_filename
        installed = "site-packages" in filename or "dist-packages" in filename or filename.startswith(os.path.dirname(os.__file__) + os.sep)
        if _is_users(tb.tb_frame) and not installed:
            frames.append(f"{os.path.basename(filename)}:{tb.tb_lineno} in {tb.tb_frame.f_code.co_name}")
        tb = tb.tb_next
    return " < ".join(reversed(frames[-3:]))
