"""Run command lines on these ranks, list after list, and let each rank write down what it printed and opened.

    many.py FOLDER PID

FOLDER receives ``0.json``, ``1.json``, ...: {"folder": where to run, "commands": [[...], ...]}; each rank answers with
``0.RANK.json``, a list of what it found. ``null`` for a list of commands, or the end of process PID, ends the program.
"""

import json
import os
import sys
import time
from pathlib import Path

from mpi4py import MPI

from hpcreduce import commands

RANK = MPI.COMM_WORLD.rank
opened = []


def watch(event, arguments):
    """Note every file that is opened for writing."""
    if event != "open" or not isinstance(arguments[0], str):  # a descriptor was opened before
        return
    if isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        opened.append(arguments[0])


def run(command, base):
    """Run one command line with stdout and stderr in files, which stay when the job is ended."""
    kept = [os.dup(1), os.dup(2)]
    with open(f"{base}.out", "w+b") as out, open(f"{base}.err", "w+b") as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        opened.clear()
        start = time.monotonic()
        try:
            status = commands.run(command)
        finally:
            seconds = time.monotonic() - start
            sys.stdout.flush()
            sys.stderr.flush()
            for target, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, target)
                os.close(descriptor)
        texts = []
        for file in out, err:
            file.seek(0)
            texts.append(file.read().decode())
    paths = [path for path in opened if path != os.devnull]
    return {"statuses": status, "outs": texts[0], "errs": texts[1], "opened": paths, "seconds": seconds}


def awaited(path, pid):
    """Return the list of commands, once it is there."""
    while not path.exists():
        if not os.path.exists(f"/proc/{pid}"):
            return None
        time.sleep(0.02)
    return json.loads(path.read_text())


def main(folder, pid):
    """Answer until the end."""
    number = 0
    while todo := awaited(folder / f"{number}.json", pid):
        os.chdir(todo["folder"])
        base = folder / f"{number}.{RANK}"
        done = [run(command, base) for command in todo["commands"]]
        Path(f"{base}.part").write_text(json.dumps(done))
        os.replace(f"{base}.part", f"{base}.json")
        number += 1


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # which would be among what is opened
    sys.addaudithook(watch)
    main(Path(sys.argv[1]), sys.argv[2])
