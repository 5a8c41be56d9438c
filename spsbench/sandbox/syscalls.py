"""System calls that a program may make, with their numbers, for x86-64 and aarch64.

What is not here is refused. Left out on purpose, though harmless-looking: `memfd_create` (memory
that no limit counts), `setsockopt` (socket filters), `timer_*` (they could disarm the jail's own),
chmod, utime and extended attributes (Landlock does not govern them), io_uring, keys, `fork`.

Numbers: Linux 6.1, asm/unistd_64.h and asm-generic/unistd.h. One that was given never changes.
"""

_X86_64 = """
read=0 write=1 readv=19 writev=20 pread64=17 pwrite64=18 preadv=295 pwritev=296 preadv2=327
pwritev2=328 close=3 close_range=436 lseek=8 dup=32 dup2=33 dup3=292 pipe=22 pipe2=293 poll=7
ppoll=271 select=23 pselect6=270 epoll_create=213 epoll_create1=291 epoll_ctl=233 epoll_wait=232
epoll_pwait=281 epoll_pwait2=441 eventfd2=290 timerfd_create=283 timerfd_settime=286
timerfd_gettime=287 open=2 openat=257 openat2=437 creat=85 stat=4 lstat=6 fstat=5 newfstatat=262
statx=332 statfs=137 fstatfs=138 access=21 faccessat=269 faccessat2=439 readlink=89
readlinkat=267 getdents64=217 getcwd=79 chdir=80 fchdir=81 mkdir=83 mkdirat=258 rmdir=84
unlink=87 unlinkat=263 rename=82 renameat=264 renameat2=316 link=86 linkat=265 symlink=88
symlinkat=266 umask=95 truncate=76 ftruncate=77 fallocate=285 fsync=74 fdatasync=75 flock=73
fadvise64=221 sendfile=40 copy_file_range=326 mmap=9 munmap=11 mremap=25 mprotect=10 madvise=28
mincore=27 msync=26 brk=12 membarrier=324 rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15
rt_sigpending=127 rt_sigsuspend=130 rt_sigtimedwait=128 sigaltstack=131 pause=34 alarm=37
getitimer=36 setitimer=38 restart_syscall=219 futex=202 futex_waitv=449 set_robust_list=273
set_tid_address=218 rseq=334 sched_yield=24 sched_getaffinity=204 getcpu=309 gettid=186
getpid=39 getppid=110 getpgid=121 getpgrp=111 getsid=124 getuid=102 geteuid=107 getgid=104
getegid=108 getgroups=115 getresuid=118 getresgid=120 getpriority=140 getrlimit=97 getrusage=98
times=100 sysinfo=99 uname=63 time=201 gettimeofday=96 clock_gettime=228 clock_getres=229
clock_nanosleep=230 nanosleep=35 getrandom=318 arch_prctl=158 wait4=61 waitid=247 exit=60
exit_group=231 shutdown=48 recvfrom=45 getsockname=51 getpeername=52 getsockopt=55 clone=56
clone3=435 fcntl=72 ioctl=16 kill=62 tgkill=234 prctl=157 prlimit64=302 socketpair=53 sendto=44
"""

_AARCH64 = """
read=63 write=64 readv=65 writev=66 pread64=67 pwrite64=68 preadv=69 pwritev=70 preadv2=286
pwritev2=287 close=57 close_range=436 lseek=62 dup=23 dup3=24 pipe2=59 ppoll=73 pselect6=72
epoll_create1=20 epoll_ctl=21 epoll_pwait=22 epoll_pwait2=441 eventfd2=19 timerfd_create=85
timerfd_settime=86 timerfd_gettime=87 openat=56 openat2=437 fstat=80 newfstatat=79 statx=291
statfs=43 fstatfs=44 faccessat=48 faccessat2=439 readlinkat=78 getdents64=61 getcwd=17 chdir=49
fchdir=50 mkdirat=34 unlinkat=35 renameat=38 renameat2=276 linkat=37 symlinkat=36 umask=166
truncate=45 ftruncate=46 fallocate=47 fsync=82 fdatasync=83 flock=32 fadvise64=223 sendfile=71
copy_file_range=285 mmap=222 munmap=215 mremap=216 mprotect=226 madvise=233 mincore=232
msync=227 brk=214 membarrier=283 rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139
rt_sigpending=136 rt_sigsuspend=133 rt_sigtimedwait=137 sigaltstack=132 getitimer=102
setitimer=103 restart_syscall=128 futex=98 futex_waitv=449 set_robust_list=99 set_tid_address=96
rseq=293 sched_yield=124 sched_getaffinity=123 getcpu=168 gettid=178 getpid=172 getppid=173
getpgid=155 getsid=156 getuid=174 geteuid=175 getgid=176 getegid=177 getgroups=158 getresuid=148
getresgid=150 getpriority=141 getrlimit=163 getrusage=165 times=153 sysinfo=179 uname=160
gettimeofday=169 clock_gettime=113 clock_getres=114 clock_nanosleep=115 nanosleep=101
getrandom=278 wait4=260 waitid=95 exit=93 exit_group=94 shutdown=210 recvfrom=207
getsockname=204 getpeername=205 getsockopt=209 clone=220 clone3=435 fcntl=25 ioctl=29 kill=129
tgkill=131 prctl=167 prlimit64=261 socketpair=199 sendto=206
"""


def numbers(table: str) -> dict[str, int]:
    """`read=0 write=1` -> name and number."""
    pairs = (entry.split("=") for entry in table.split())
    return {name: int(number) for name, number in pairs}


NUMBERS = {"x86_64": numbers(_X86_64), "aarch64": numbers(_AARCH64)}
"""Machine -> name -> number, of every call that is allowed, some of them with conditions."""

JAIL = {
    "x86_64": numbers("capset=126 capget=125 timer_create=222 timer_settime=223 unshare=272"),
    "aarch64": numbers("capset=91 capget=90 timer_create=107 timer_settime=110 unshare=97"),
}
"""The calls that the jail itself makes before it shuts them off."""

LANDLOCK = {"create_ruleset": 444, "add_rule": 445, "restrict_self": 446}
"""The same everywhere: they are younger than the common numbering."""

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machine -> what seccomp calls it (AUDIT_ARCH of linux/audit.h)."""
