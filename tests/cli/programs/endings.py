"""Ways in which ranks fail, leave, or disagree: ``endings.py SCENARIO``. Not every rank comes back from them.

What a rank says on stderr goes to err.RANK, since launchers mix the lines of several.
"""

import atexit
import os
import signal
import sys
import time
from pathlib import Path

if sys.argv[1] == "reduces_at_exit_registered_early":
    atexit.register(lambda: reduce_last(world()))

import hpcreduce  # before anything of MPI, as in a script without more

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
os.dup2(os.open(f"err.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)


def fail():
    """Raise what nobody catches."""
    raise ValueError(f"rank {rank} is unhappy")


def say(*words):
    """Print a line at once, whole."""
    os.write(1, (" ".join(map(str, ("rank", rank, *words))) + "\n").encode())


def world():
    """Return COMM_WORLD; starts MPI."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def warm():
    """Return COMM_WORLD after some calls on it."""
    comm = world()
    for count in 1, 5, 100_000:
        hpcreduce.allreduce(comm, [1.0] * count)
    return comm


def array(count):
    """Return an array of ones."""
    import numpy as np

    return np.ones(count)


# One rank raises, and nobody catches it.


def before_mpi():
    """Fail before MPI is started."""
    if rank == 1:
        fail()
    hpcreduce.allreduce(world(), 1)


def before_the_first_call():
    """Fail while the others open the communicator."""
    comm = world()
    if rank == 1:
        fail()
    hpcreduce.allreduce(comm, 1)


def after_some_calls():
    """Fail while the others wait in the next call."""
    comm = warm()
    if rank == 1:
        fail()
    hpcreduce.allreduce(comm, array(1000))


def while_others_wait_for_a_handle():
    """Fail while the others wait for a nonblocking operation that this rank has started too, and another that not."""
    comm = warm()
    first = hpcreduce.iallreduce(comm, array(200_000))
    if rank == 1:
        fail()
    second = hpcreduce.iallreduce(comm, array(7))
    second.Wait()
    first.Wait()


def while_others_start_a_plan():
    """Fail while the others wait for a persistent plan."""
    comm = warm()
    with hpcreduce.allreduce_init(comm, array(1000)) as plan:
        plan.Start()
        plan.Wait()
        if rank == 1:
            fail()
        plan.Start()
        plan.Wait()


def while_others_open_another():
    """Fail while the others make the first call on another communicator."""
    comm = warm()
    other = comm.Dup()
    if rank == 1:
        fail()
    hpcreduce.allreduce(other, 1)


def while_others_are_in_a_barrier():
    """Fail while the others are in a call of the library."""
    comm = warm()
    if rank == 1:
        fail()
    comm.Barrier()


def while_others_receive():
    """The same, with a message that does not come, and no call of ours before."""
    comm = world()
    if rank == 1:
        fail()
    comm.recv(source=1)


def with_a_hook_of_the_user():
    """Fail with a hook that knows nothing of ours, while the others are in a call of the library."""
    comm = warm()
    sys.excepthook = lambda kind, error, trace: print("my hook:", error, file=sys.stderr)
    if rank == 1:
        fail()
    comm.Barrier()


def at_a_prompt():
    """Fail as at a prompt, which goes on."""
    comm = warm()
    sys.ps1 = ">>> "
    if rank == 1:
        try:
            fail()
        except ValueError:
            sys.excepthook(*sys.exc_info())
    say("got", hpcreduce.allreduce(comm, rank))


# All ranks raise.


def all_at_once():
    """Fail on every rank."""
    warm()
    fail()


def all_before_the_first_call():
    """The same, before any call."""
    world().Barrier()
    fail()


# One rank leaves, and looks as if nothing were wrong.


def leaves_with_status():
    """Leave with a status."""
    comm = warm()
    if rank == 1:
        sys.exit(3)
    hpcreduce.allreduce(comm, array(1000))


def leaves_at_the_end():
    """Fall off the end."""
    comm = warm()
    if rank != 1:
        hpcreduce.allreduce(comm, array(200_000), algorithm="ring")


def leaves_and_finalizes():
    """Leave by MPI_Finalize, and stay alive for a while."""
    comm = warm()
    if rank == 1:
        from mpi4py import MPI

        MPI.Finalize()
        time.sleep(0.5)
        return
    hpcreduce.allreduce(comm, array(1000))


def leaves_before_the_first_call():
    """Leave while the others open the communicator: they cannot be told, and see their time-out."""
    comm = world()
    if rank == 1:
        return
    hpcreduce.allreduce(comm, 1, timeout=2)


def interrupted():
    """Get a Ctrl-C on one rank, outside our calls."""
    comm = warm()
    if rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        while True:
            time.sleep(1)
    hpcreduce.allreduce(comm, array(1000))


def interrupted_in_a_call():
    """Get a Ctrl-C on one rank, in our call, for which another is late."""
    comm = warm()
    if rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    if rank == 1:
        time.sleep(1.5)
    hpcreduce.allreduce(comm, array(1000))


def reduces_at_exit():
    """Make a last call from atexit, which one rank makes later."""
    atexit.register(reduce_last, warm())


def reduces_at_exit_registered_early():
    """The same, registered before hpcreduce was imported, and thus run after its own."""
    warm()


def reduce_last(comm):
    """Reduce, one rank later than the others."""
    if rank == 1:
        time.sleep(0.5)
    say("got", hpcreduce.allreduce(comm, 1))


# One rank tells the others.


def guarded():
    """Fail inside a guard, recover, and go on."""
    comm = world()
    for turn in range(2):
        try:
            with hpcreduce.guard(comm):
                hpcreduce.allreduce(comm, 1)
                if rank == 1:
                    fail()
                hpcreduce.allreduce(comm, array(1000))
        except hpcreduce.PeerError as error:
            assert "ValueError: rank 1 is unhappy" in str(error) and error.ranks == (1,), error
            say("caught PeerError", turn)
        except ValueError:
            assert rank == 1
            say("caught its own", turn)
        hpcreduce.Intracomm(comm).recover()
        say("got", hpcreduce.allreduce(comm, 1), *hpcreduce.allreduce(comm, array(200_000))[:1])


def guarded_and_leaves():
    """Leave inside a guard."""
    comm = world()
    with hpcreduce.guard(comm):
        if rank == 1:
            sys.exit(3)
        hpcreduce.allreduce(comm, array(1000))


# The ranks disagree.


def short_lengths():
    """Pass 4 elements on the last rank, and 5 elsewhere."""
    comm = warm()
    hpcreduce.allreduce(comm, array(4 if rank == comm.size - 1 else 5))  # here: short


def long_lengths():
    """Pass 100000 elements on the last rank, and 100005 elsewhere."""
    comm = warm()
    hpcreduce.allreduce(comm, array(100_000 if rank == comm.size - 1 else 100_005))


def lengths_in_the_first_call():
    """Disagree in the first call of all."""
    comm = world()
    hpcreduce.allreduce(comm, array(4 if rank == comm.size - 1 else 5))


# Something is under way when MPI ends.


def _caught(comm, count):
    """Call with a short time-out, and catch what comes."""
    try:
        hpcreduce.allreduce(comm, array(count), algorithm="ring", timeout=1)
    except (hpcreduce.MismatchError, hpcreduce.CollectiveTimeoutError) as error:
        say("caught", type(error).__name__)


def mismatch_caught():
    """Catch a mismatch and end."""
    comm = warm()
    _caught(comm, 100_000 + rank)


def mismatch_caught_and_finalized():
    """The same, and MPI is ended by the user."""
    from mpi4py import MPI

    mismatch_caught()
    MPI.Finalize()
    say("is here")


def timeout_caught():
    """Catch a time-out, since one rank does not come, and end."""
    comm = warm()
    if rank == 1:
        time.sleep(1.5)
    else:
        _caught(comm, 100_000)


def timeout_caught_and_finalized():
    """The same, and MPI is ended by the user."""
    from mpi4py import MPI

    timeout_caught()
    MPI.Finalize()
    say("is here")


def mismatch_caught_with_handles():
    """The same, with operations in flight that nobody waits for."""
    comm = warm()
    handles = [hpcreduce.iallreduce(comm, array(count)) for count in (5, 200_000)]
    _caught(comm, 100_000 + rank)
    assert handles


def timeout_caught_and_freed():
    """Catch a time-out on a second communicator, and free it."""
    other = warm().Dup()
    hpcreduce.allreduce(other, 1)
    if rank == 1:
        time.sleep(1.5)
    else:
        _caught(other, 100_000)
    other.Free()
    say("got", hpcreduce.allreduce(world(), 1))


# The flight recorder.


def _ready():
    Path(f"pid.{rank}.part").write_text(str(os.getpid()))
    os.replace(f"pid.{rank}.part", f"pid.{rank}")


def one_sleeps():
    """Reduce in a loop; the last rank sleeps in it once, until it is told to go on."""
    comm = warm()
    for turn in range(20):
        if turn == 10 and rank == comm.size - 1:
            sleep_until("go")
        if turn == 10:
            _ready()
        hpcreduce.allreduce(comm, array(1000), algorithm="ring")  # here: loop
    say("is done")


def sleep_until(name):
    """Sleep until a file appears."""
    _ready()
    while not os.path.exists(name):
        time.sleep(0.05)  # here: asleep


def one_sleeps_before_the_first_call():
    """The last rank sleeps while the others open the communicator."""
    comm = world()
    if rank == comm.size - 1:
        sleep_until("go")
    _ready()
    hpcreduce.allreduce(comm, 1)  # here: first
    say("is done")


def one_sleeps_before_the_first_call_on_another():
    """The same on a second communicator."""
    other = warm().Dup()
    if rank == other.size - 1:
        sleep_until("go")
    _ready()
    hpcreduce.allreduce(other, 1)  # here: other
    say("is done")


def with_a_handler_that_exits():
    """Catch SIGTERM, and leave."""

    def handler(number, frame):
        say("has handled", number)
        sys.exit(5)

    signal.signal(signal.SIGTERM, handler)
    one_sleeps()


def ignoring():
    """Ignore SIGTERM and SIGUSR1 already."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    one_sleeps()


def sees_handlers():
    """Say what happens at signals after a call."""
    warm()
    say(*(signal.getsignal(number) == signal.SIG_DFL for number in (signal.SIGUSR1, signal.SIGTERM)))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
