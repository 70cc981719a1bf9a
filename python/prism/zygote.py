"""The zygote: the user's interpreter, which imports the heavy modules once and forks the logical ranks.

    python [the rank's flags] zygote.py torchrun --nnodes 2 --nproc-per-node 8 train.py ...
    python [the rank's flags] zygote.py python train.py ...          # one rank: this process itself

Started by the controller, or by a shadowed launcher on PATH inside a script. Talks to the controller over PRISM_CONTROL
(a stream socket, one JSON object a line): it asks with a `plan`, and is answered `go` or `refuse`; it reports `started`
and `ended` for every rank; it obeys `stop`. Standard library only until the user's own modules are imported.

Forking is safe because nothing has happened yet that a child could not inherit: no CUDA context, no tensor operation, no
second thread. Where a thread exists all the same, the ranks are started as interpreters of their own (`spawn`), and the
controller is told why.
"""

import gc
import importlib.util
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


def _load_package():
    """Makes this folder importable as `_prism`, without a place on sys.path that user code could see."""
    spec = importlib.util.spec_from_file_location("_prism", os.path.join(FOLDER, "__init__.py"), submodule_search_locations=[FOLDER])
    package = importlib.util.module_from_spec(spec)
    sys.modules["_prism"] = package
    spec.loader.exec_module(package)


def main():
    if sys.path and os.path.abspath(sys.path[0] or ".") == FOLDER:
        del sys.path[0]
    _load_package()
    from _prism import program

    kind, arguments = sys.argv[1], sys.argv[2:]
    if kind == "rank":
        role = program.Rank.from_environment()
    elif kind == "python":
        role = program.Rank(0, {"PRISM_RANK": "0"}, program.Program.from_python_command(arguments))
    elif kind in ("torchrun", "launch"):
        from _prism import launch

        role = launch.launch(arguments, legacy=kind == "launch")
    else:
        raise SystemExit(f"prism zygote: unknown launcher '{kind}'")
    if isinstance(role, int):
        return role
    # From here on this process is a rank. A spawned one returns to the interpreter's ordinary end, a forked one ends in
    # program.leave(); either way threads are joined, atexit handlers run and the exit code is the program's.
    gc.enable()
    if role.forked:
        program.leave(role.run)
    return role.run()


if __name__ == "__main__":
    sys.exit(main())
