"""``assay`` without the time that Python takes to begin: a process that has imported it forks one for each command.

``python forking_assay.py serve PATH`` listens on a socket of the file system, says so, and ends with its standard
input; ``python -I -S forking_assay.py run PATH ARGUMENTS`` is the command, with its folder, environment and open files.
"""

import array
import json
import os
import signal
import socket
import sys


def run(path: str, arguments: list[str]) -> int:
    """Exit status of the command."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
        there.connect(path)
        request = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode() + b"\n"
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
        there.sendall(request[there.sendmsg([request], files) :])
        answer = there.makefile()
        process = int(answer.readline())
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(process, number))
        return int(answer.read() or 1)


def _command(here: socket.socket, content: bytes) -> int:
    arguments, folder, environment = json.loads(content)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["assay", *arguments]
    from assay.cli import main

    try:
        main()
    except SystemExit as end:
        return int(end.code or 0) if not isinstance(end.code, str) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def serve(path: str) -> None:
    """Until standard input ends."""
    import select

    import assay.reference_broker.cli
    import assay.reference_broker.commands.cli
    import assay.reference_broker.http.app
    import assay.reference_broker.storage_tools.cli

    assert assay
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        here, _ = listener.accept()
        content, controls, _, _ = here.recvmsg(65_536, socket.CMSG_SPACE(12))
        files = array.array("i", controls[0][2])
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            while not content.endswith(b"\n"):
                content += here.recv(65_536)
            status = 1
            here.sendall(b"%d\n" % os.getpid())
            try:
                status = _command(here, content)
            finally:
                here.sendall(b"%d" % status)
                os._exit(0)
        here.close()
        for file in files:
            os.close(file)


if __name__ == "__main__":
    _, what, where, *rest = sys.argv
    if what == "run":
        sys.exit(run(where, rest))
    serve(where)
