"""What `forked_python()` copies to where its server listens: ask for a process of these arguments, and end as it ends.

Uses the standard library alone, because it starts instead of a Python that imports more.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(Path(sys.argv[0]).with_name("socket")))
    descriptors = list(filter(is_inherited, map(int, os.listdir("/proc/self/fd"))))
    request = {
        "arguments": sys.argv[1:],
        "descriptors": descriptors,
        "environment": dict(os.environ),
        "executable": sys.argv[0],
        "folder": os.getcwd(),
        "process_group": os.getpgrp(),
        "session": os.getsid(0),
    }
    socket.send_fds(connection, [b"."], descriptors)
    connection.sendall(json.dumps(request).encode() + b"\n")
    answers = connection.makefile()
    process = int(answers.readline())
    for passed_on in (signal.SIGINT, signal.SIGTERM):
        signal.signal(passed_on, lambda number, frame: os.kill(process, number))
    for descriptor in descriptors:  # whoever waits for their end waits for the process
        os.close(descriptor)
    exit_code = int(answers.readline())
    if exit_code < 0:
        if -exit_code != signal.SIGKILL:
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code)


def is_inherited(descriptor: int) -> bool:
    """Python opens its own so that no other program inherits them."""
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # the folder that was listed
        return False


if __name__ == "__main__":
    main()
