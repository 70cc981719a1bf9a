"""prism on a terminal: programs that read from it, and its interrupt key."""

import json
import os
import pty
import select
import time

import pytest

from conftest import PROGRAMS

NO_CUDA = ("--device", "none")


class Terminal:
    """`command` with a terminal of its own."""

    def __init__(self, command, environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(command[0], command, environment)
        self.shown = ""

    def read_until(self, text, timeout=60):
        deadline = time.monotonic() + timeout
        while text is None or text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if not select.select([self.fd], [], [], 1)[0]:
                continue
            try:
                data = os.read(self.fd, 4096)
            except OSError:  # the other end is closed
                data = b""
            if not data:
                assert text is None, self.shown
                return
            self.shown += data.decode()

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        self.read_until(None)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def on_terminal(prism):
    def start(*command, flags=NO_CUDA):
        arguments = [prism.path, "capture", "--job", prism.job, *flags, "--", *command]
        return Terminal([str(a) for a in arguments], prism.environment())

    return start


@pytest.mark.parametrize("command", [["python"], ["bash", "-c", 'python "$@"', "bash"]], ids=["python", "script"])
def test_program_reads_from_the_terminal(on_terminal, command):
    terminal = on_terminal(*command, "-c", "print('got', input('name? '))")
    terminal.read_until("name? ")
    terminal.type("Ada\n")
    assert terminal.end() == 0, terminal.shown
    assert "got Ada" in terminal.shown


def test_interrupt_key_meets_the_program_once(on_terminal, prism):
    program = """import time
for seconds in 60, 1:
    try:
        print("ready", flush=True)  # whoever reads it interrupts inside the try
        for _ in range(10 * seconds):  # a signal just before a sleep is seen behind it
            time.sleep(0.1)
    except KeyboardInterrupt:
        print("interrupt", flush=True)
"""
    terminal = on_terminal("python", "-c", program)
    terminal.read_until("ready")
    terminal.type("\x03")
    assert terminal.end() == 130, terminal.shown
    assert terminal.shown.count("interrupt\r\n") == 1, terminal.shown
    assert json.loads((prism.job / "job.json").read_text())["reason"] == "stopped by Interrupt"


@pytest.mark.parametrize("script", [False, True], ids=["torchrun", "script"])
def test_interrupt_key_stops_ranks_without_a_word_of_theirs(on_terminal, prism, script):
    command = ["torchrun", "--nproc-per-node", "2", str(PROGRAMS / "hang.py"), "sleep"]
    terminal = on_terminal(*(["bash", "-c", " ".join(command)] if script else command), flags=())
    deadline = time.monotonic() + 60
    while len(list((prism.job / "trace").glob("*.prt"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    terminal.type("\x03")
    assert terminal.end() == 130, terminal.shown
    assert "KeyboardInterrupt" not in terminal.shown
