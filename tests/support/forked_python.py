"""A stand-in for `sys.executable` whose processes begin with torch and pytest imported, for many short launches.

A server imports what the suite builds on, nothing of the suite, and forks for each process: with the arguments (`-m` or
`-c`), folder, environment, descriptors and process group of the stand-in, which passes signals on and ends as it ends.
What such a process starts as `sys.executable` is forked too. What Python or OpenMP read when they start is the
server's: PYTHONHASHSEED, OMP_NUM_THREADS.
"""

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OF_THE_SERVER = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy starts threads on import, and a fork takes none along
    "OMP_WAIT_POLICY": "PASSIVE",  # launches side by side leave the cores to each other
    "GOMP_SPINCOUNT": "0",
}

IMPORTED = ("cpuinfo", "numpy", "pytest", "sqlite3", "torch")

MOST_DESCRIPTORS = 64


@functools.cache
def forked_python() -> str:
    """The path of the stand-in. The server starts with the first call and ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="forked-python-"))
    executable = folder / "python"
    source = Path(__file__).with_name("stand_in.py").read_text()
    executable.write_text(f"#!{sys.executable} -IS\n{source}")
    executable.chmod(0o700)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    server = subprocess.Popen(
        [sys.executable, "-I", __file__, str(folder / "socket")],
        env={**environment, **OF_THE_SERVER},
        stdin=subprocess.PIPE,  # until it closes, with this process
    )
    _started.append((server, folder))
    atexit.register(close_forked_python)
    while not (folder / "socket").exists():
        assert server.poll() is None, "the server of forked processes did not start"
        time.sleep(0.01)
    return str(executable)


_started: list[tuple[subprocess.Popen[bytes], Path]] = []


def close_forked_python() -> None:
    """End the server of this process, and with it what it forked and still runs."""
    while _started:
        server, folder = _started.pop()
        server.communicate()
        shutil.rmtree(folder)


@dataclass
class Server:
    """Forks where it is asked to, and tells each stand-in how its process ended."""

    listener: socket.socket
    _running: dict[int, tuple[int, socket.socket]] = field(default_factory=dict)
    """Processes by the descriptor that tells of a process's end: its id, and the connection to its stand-in."""

    def serve(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return in the server None, at its end; in a forked process what was asked for, and the descriptors sent with
        it.
        """
        while True:
            connections = [connection for _, connection in self._running.values()]
            ready, _, _ = select.select([sys.stdin, self.listener, *self._running, *connections], [], [])
            for process, connection in self._running.values():
                if connection in ready or sys.stdin in ready:  # the stand-in is gone, or whoever started the server
                    os.kill(process, signal.SIGKILL)
            if sys.stdin in ready:
                return None
            for ended in self._running.keys() & set(ready):
                self._tell_end(ended)
            if self.listener in ready:
                connection, _ = self.listener.accept()
                _, descriptors, _, _ = socket.recv_fds(connection, 1, MOST_DESCRIPTORS)
                with connection.makefile() as requests:
                    request = json.loads(requests.readline())
                process = os.fork()
                if process == 0:
                    return request, descriptors
                for descriptor in descriptors:
                    os.close(descriptor)
                connection.sendall(f"{process}\n".encode())
                self._running[os.pidfd_open(process)] = process, connection

    def _tell_end(self, descriptor: int) -> None:
        process, connection = self._running.pop(descriptor)
        _, status = os.waitpid(process, 0)
        with contextlib.suppress(BrokenPipeError):  # the stand-in was killed, and its process with it
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        connection.close()
        os.close(descriptor)


def run(request: dict[str, Any], descriptors: list[int]) -> None:
    """Run as the Python that was asked for: raises and exits as its program does."""
    if request["session"] == os.getsid(0):
        os.setpgid(0, request["process_group"])
    else:  # no process can join the group of another session
        os.setsid()
    put_in_place(descriptors, request["descriptors"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # chosen anew, by the environment
    os.chdir(request["folder"])
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    sys.executable = request["executable"]
    option, program, *arguments = request["arguments"]
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    first = [] if os.environ.get("PYTHONSAFEPATH") else [request["folder"] if option == "-m" else ""]
    sys.path[:0] = [*first, *filter(None, added)]
    sys.argv = [option, *arguments]
    exit_code: int | None = None

    def leave() -> None:
        """Leave, after what the program itself has registered, at once: taking torch apart takes half a second."""
        if exit_code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)

    atexit.register(leave)
    try:
        if option == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            exec(program, {"__name__": "__main__"})
        exit_code = 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            exit_code = end.code or 0
        raise


def put_in_place(descriptors: list[int], places: list[int]) -> None:
    """Give each descriptor its place and close everything else of the server's."""
    above = 1 + max(places)
    held = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(above, 256)) for descriptor in descriptors]
    os.closerange(0, 256)
    for descriptor, place in zip(held, places, strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)


def main(address: str) -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    import torch

    if torch.version.cuda is None:
        # Imports the compiler, as AdamW does. A build with CUDA may ask the driver meanwhile, which no fork survives.
        torch.compile(print, backend="eager")
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "an import started a thread, which a fork would not take along"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    asked = Server(listener).serve()
    if asked is not None:
        run(*asked)


if __name__ == "__main__":
    main(sys.argv[1])
