"""Tries to get out, and prints the names of the ways that were open. Run inside, as a program.

Harmless where it succeeds: it touches only the canaries that `GIVEN` names, changes nothing of the
host, and ends what it starts. `GIVEN` (canary: a file, folder: one that may be written outside,
parent: a process id, tcp: a port, unix: a socket's path, secret: of the caller's environment) is
put before this text. Nothing is a way out that the program's own process ends with.
"""

import ctypes
import json
import os
import platform
import signal
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86 = platform.machine() == "x86_64"
CANARY, FOLDER, PARENT = GIVEN["canary"], GIVEN["folder"], GIVEN["parent"]  # noqa: F821
TCP, UNIX, SECRET = GIVEN["tcp"], GIVEN["unix"], GIVEN["secret"]  # noqa: F821
WAYS = {}


def probe(function):
    """Register a way out: it is open if the function returns something true."""
    WAYS[function.__name__] = function
    return function


def call(number, *values):
    """A system call: its result, -1 if refused."""
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, values))


@probe
def read_host_file():
    return open(CANARY).read()


@probe
def write_host_file():
    return os.open(CANARY, os.O_WRONLY) >= 0


@probe
def create_host_file():
    return os.open(os.path.join(FOLDER, "made"), os.O_CREAT | os.O_WRONLY) >= 0


@probe
def list_host_folder():
    return os.listdir(FOLDER)


@probe
def link_host_file():
    os.link(CANARY, "stolen")
    return open("stolen").read()


@probe
def change_host_mode():
    os.chmod(CANARY, 0o640)
    return True


@probe
def change_host_time():
    os.utime(CANARY, (1, 1))
    return True


@probe
def change_host_attribute():
    os.setxattr(CANARY, "user.sps", b"1")
    return True


@probe
def remove_host_file():
    os.unlink(os.path.join(FOLDER, "spare"))
    return True


@probe
def rename_host_file():
    os.rename(CANARY, CANARY + ".moved")
    return True


@probe
def read_password_file():
    return open("/etc/passwd").read()


@probe
def read_home():
    return os.listdir(os.path.expanduser("~root") if os.getuid() == 0 else "/home")


@probe
def see_secret_in_environment():
    return SECRET in str(dict(os.environ))


@probe
def see_environment_of_others():
    for pid in {1, PARENT, os.getppid(), os.getpid()}:
        try:
            if SECRET.encode() in open(f"/proc/{pid}/environ", "rb").read():
                return True
        except OSError:
            continue
    return False


@probe
def open_memory_of_parent():
    return os.open(f"/proc/{PARENT}/mem", os.O_RDWR) >= 0


@probe
def set_core_pattern():
    return os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY) >= 0


@probe
def write_control_group():
    return os.open("/sys/fs/cgroup/cgroup.procs", os.O_WRONLY) >= 0


@probe
def connect_tcp():
    socket.create_connection(("127.0.0.1", TCP), 1).close()
    return True


@probe
def make_udp_socket():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", TCP))
    return True


@probe
def connect_unix_path():
    socket.socket(socket.AF_UNIX).connect(UNIX)
    return True


@probe
def send_from_a_pair():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.connect(UNIX + ".datagram")
    one.send(b"x")
    return True


@probe
def send_message_from_a_pair():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendmsg([b"x"], [], 0, UNIX + ".datagram")
    return True


@probe
def make_netlink_socket():
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).fileno() >= 0


@probe
def make_packet_socket():
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW).fileno() >= 0


@probe
def fork_process():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True


@probe
def clone_process():
    pid = call(56 if X86 else 220, signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid > 0


@probe
def clone3_process():
    arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD)
    pid = libc.syscall(ctypes.c_long(435), ctypes.byref(arguments), ctypes.c_long(88))
    if pid == 0:
        os._exit(0)
    return pid > 0


@probe
def run_shell():
    return ctypes.CDLL(None).system(b"true") == 0


@probe
def spawn_program():
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    os.waitpid(pid, 0)
    return True


@probe
def signal_parent():
    os.kill(PARENT, 0)
    return True


@probe
def signal_group():
    os.kill(-1, 0)
    return True


@probe
def signal_thread_of_parent():
    return call(200 if X86 else 130, PARENT, 0) == 0


@probe
def queue_signal_to_parent():
    return (
        call(129 if X86 else 138, PARENT, 0, ctypes.addressof(ctypes.create_string_buffer(128)))
        == 0
    )


@probe
def open_parent_by_pidfd():
    return call(434, PARENT, 0) >= 0


@probe
def trace_parent():
    return call(101 if X86 else 117, 0x4206, PARENT, 0, 0) == 0


@probe
def read_memory_of_parent():
    return call(310 if X86 else 270, PARENT, 0, 0, 0, 0, 0) >= 0


@probe
def limit_parent():
    import resource

    return resource.prlimit(PARENT, resource.RLIMIT_CORE)


@probe
def pin_parent():
    os.sched_setaffinity(PARENT, os.sched_getaffinity(PARENT))
    return True


@probe
def renice_parent():
    os.setpriority(os.PRIO_PROCESS, PARENT, os.getpriority(os.PRIO_PROCESS, PARENT))
    return True


@probe
def make_mount():
    made = libc.mount(b"none", b".", b"tmpfs", 0, None) == 0
    if made:
        libc.umount2(b".", 2)
    return made


@probe
def open_mount_tree():
    return libc.syscall(ctypes.c_long(428), -100, b"/", 0) >= 0


@probe
def change_root():
    os.chroot("/")
    return True


@probe
def make_device():
    os.mknod("device", 0o020666, os.makedev(1, 5))
    return True


@probe
def make_ring():
    return libc.syscall(ctypes.c_long(425), 1, ctypes.byref((ctypes.c_char * 120)())) >= 0


@probe
def load_bpf():
    return (
        libc.syscall(
            ctypes.c_long(321 if X86 else 280),
            0,
            ctypes.byref((ctypes.c_uint32 * 18)(2, 4, 4, 1)),
            72,
        )
        >= 0
    )


@probe
def open_performance_events():
    attributes = (ctypes.c_uint32 * 32)(1, 128)
    return (
        libc.syscall(ctypes.c_long(298 if X86 else 241), ctypes.byref(attributes), 0, -1, -1, 0)
        >= 0
    )


@probe
def handle_page_faults():
    return call(323 if X86 else 282, 1) >= 0


@probe
def add_key():
    return libc.syscall(ctypes.c_long(248 if X86 else 217), b"user", b"sps", b"x", 1, -3) >= 0


@probe
def make_shared_memory():
    made = libc.shmget(0, 4096, 0o1600)
    if made >= 0:
        libc.shmctl(made, 0, None)
    return made >= 0


@probe
def make_message_queue():
    made = libc.msgget(0, 0o1600)
    if made >= 0:
        libc.msgctl(made, 0, None)
    return made >= 0


@probe
def open_by_handle():
    return call(304 if X86 else 265, -100, 0, 0) >= 0 or ctypes.get_errno() == 14


@probe
def change_personality():
    return call(135 if X86 else 92, 0x0040000) >= 0


@probe
def set_host_name():
    name = socket.gethostname().encode()
    return libc.sethostname(name, len(name)) == 0


@probe
def type_into_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSTI, b"x")
    return True


@probe
def read_kernel_log():
    return call(103 if X86 else 116, 10, 0, 0) >= 0


@probe
def become_root():
    os.setuid(0)
    return open("/etc/shadow").read()


@probe
def take_much_memory():
    return bytearray(1536 << 20)


@probe
def write_large_file():
    with open("large", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    return True


@probe
def make_user_namespace():
    return libc.unshare(0x10000000) == 0


def main():
    """Try them all."""
    found = []
    for name, function in WAYS.items():
        try:
            if function():
                found.append(name)
        except BaseException:
            continue
    print(json.dumps({"version": sys.version, "tried": len(WAYS), "open": found}))


main()
