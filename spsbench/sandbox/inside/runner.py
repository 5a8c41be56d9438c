"""Runs one program in this interpreter, locked in first, and tells how it ended.

Started as `python -P -s -S -B runner.py`; reads one Python literal from standard input: a mapping
with the program, a secret mark, limits, and how to lock itself in. Its last line on standard output
is the mark and the verdict; a program can print what it likes before, but does not know the mark.
Nothing of the package is imported here: in a sandbox only this folder is there. Imports are few:
json, signal and contextlib alone would double the time that an interpreter takes to start.
"""

import os
import resource
import sys

SIGKILL = 9


def main() -> None:
    """Read the task, lock in, run, tell."""
    order = eval(sys.stdin.buffer.read(), {"__builtins__": {}})  # our own caller's literal
    report = os.dup(1)
    lock_in(order)
    os.write(report, f"{order['ready']}\n".encode())
    verdict, detail = run(order["program"])
    flush()
    os.write(report, f"\n{order['mark']} {verdict}\t{detail}\n".encode())
    os._exit(0)  # threads and exit handlers of the program have no say any more


def flush() -> None:
    """Let what was printed be seen; a program may have broken its output."""
    try:
        sys.__stdout__.flush()
    except BaseException:
        return


def lock_in(order: dict) -> None:
    """Limits first, then what cannot be undone; any failure ends the process without a verdict."""
    limit(order["limits"])
    if not order["confined"]:
        return
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    import kernel
    import landlock
    import seccomp

    sys.path.remove(here)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, SIGKILL)
    if order["parent"] and os.getppid() != order["parent"]:
        os._exit(1)  # it died before the line above
    if order["uid"] is not None:
        os.setgroups([])
        os.setresgid(order["uid"], order["uid"], order["uid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
        kernel.prctl(kernel.PR_SET_PDEATHSIG, SIGKILL)  # a change of user clears it
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if order["landlock"]:
        landlock.restrict(order["readable"], order["writable"])
    drop_capabilities(kernel)
    if order["writable"]:
        os.chdir(order["writable"])
    seccomp.install(os.uname().machine)
    for name in ("kernel", "landlock", "seccomp", "syscalls"):
        sys.modules.pop(name, None)


def limit(limits: dict) -> None:
    """Memory, processor, files: bounds that the kernel keeps."""
    seconds = limits["cpu"]
    for name, soft, hard in (
        ("AS", limits["memory"], limits["memory"]),
        ("CPU", seconds, seconds + 1),
        ("FSIZE", limits["file"], limits["file"]),
        ("NOFILE", 64, 64),
        ("CORE", 0, 0),
        ("MSGQUEUE", 0, 0),
        ("MEMLOCK", 65536, 65536),
    ):
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is not None and soft:
            most = resource.getrlimit(which)[1]
            ceiling = hard if most == resource.RLIM_INFINITY else min(hard, most)
            resource.setrlimit(which, (min(soft, ceiling), ceiling))
        elif which is not None:
            resource.setrlimit(which, (0, 0))


def drop_capabilities(kernel: object) -> None:
    """What root may do beyond others, in all sets; an ordinary user has none."""
    import ctypes

    for capability in range(64):
        try:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:
            break
    number = {"x86_64": 126, "aarch64": 91}[os.uname().machine]  # capset
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    kernel.syscall(number, ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def run(program: str) -> tuple[str, str]:
    """Execute `program` as a module of its own: the verdict, and why."""
    try:
        code = compile(program, "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return "failed", f"syntax: {said(error)}"
    try:
        exec(code, {"__name__": "__main__", "__builtins__": __builtins__})
    except MemoryError:
        return "out of memory", "MemoryError"
    except ModuleNotFoundError as error:
        return "import missing", str(error.name)
    except BaseException as error:
        return "failed", said(error)
    return "passed", ""


def said(error: BaseException) -> str:
    """The kind of an error and the beginning of its message, in ASCII."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = type(error).__name__
    return ascii(text[:200])[1:-1]


if __name__ == "__main__":
    main()
