"""The walls of the sandbox: namespaces, a root with Python's library, an unused user, limits, a system call filter.

Only the standard library is used, and nothing of this package: see `child.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
import sys
from pathlib import Path
from typing import Any, NoReturn

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
HELD = MS_NOSUID | MS_NODEV | 8 | 1024 | 2048  # flags that an inherited mount keeps
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38

BOX = "/proc"  # where the new root is built: every Linux has this directory, and we need nothing in it
ROOM = "/tmp"  # the only place an answer may write
PACKAGES = (
    "site-packages",
    "dist-packages",
)  # hidden, although next to the standard library: some contain the benchmarks
UID_CEILING = 1 << 30  # processes are counted per user, so a child takes two unused user ids below this

# System calls that no answer needs. Each outlives its process, reveals other processes, holds memory that no limit
# counts, or bypasses this filter. Numbers: x86_64, aarch64 (None: it has no such call).
DENIED: dict[str, tuple[int | None, ...]] = {
    # keys are kept per user; System V memory, semaphores, messages and POSIX queues stay until they are removed
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    # no address of any family, not even a virtual machine's (a socket pair is like a pipe, and allowed)
    "socket": (41, 198), "bind": (49, 200), "connect": (42, 203),
    # who else opens, locks or caches a file of the library that all jobs share
    "inotify_init": (253, None), "inotify_init1": (294, 26), "fanotify_init": (300, 262), "flock": (73, 32),
    "mincore": (27, 232), "cachestat": (451, 451), "fadvise64": (221, 223), "readahead": (187, 213),
    "preadv2": (327, 286), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # the kernel's log shows which processes crashed, and where
    "syslog": (103, 116),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # other processes, other namespaces, and the largest attack surfaces of the kernel
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
}  # fmt: skip
FCNTL = (72, 25)
HARMLESS = (0, 1, 2, 3, 4, 1030)  # allowed fcntl commands: duplicate a descriptor and its flags; no locks, no hints
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def call(name: str, *args: Any) -> None:
    """Call a C library function that must succeed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    call("mount", source.encode(), target.encode(), kind.encode() if kind else None, flags, options.encode() or None)


def enter_namespaces() -> None:
    """Leave the machine's network, mounts and processes behind."""
    user = os.geteuid()
    group = os.getegid()
    flags = NEWNS | NEWUTS | NEWPID | NEWNET
    call("unshare", flags if user == 0 else flags | NEWUSER)
    if user != 0:  # inside we keep our own user id, but may mount
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def build_root() -> None:
    """Build an empty root with Python's standard library and /dev/null, all read-only, and change into it.

    Unlike pivot_root, chroot also prevents code inside from creating its own user namespaces.
    """
    load_libraries()
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("room", BOX, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.makedirs(BOX + ROOM)
    os.mkdir(BOX + "/dev")
    open(BOX + "/dev/null", "w").close()
    show("/dev/null", 0)  # read-only, it still accepts writes, but its timestamps cannot be changed
    for path in sorted(sys.path):
        if os.path.isdir(path) and not os.path.isdir(BOX + path):
            os.makedirs(BOX + path)
            show(path, MS_NODEV)
            for packages in PACKAGES:
                if os.path.isdir(f"{path}/{packages}"):
                    mount("none", f"{BOX}{path}/{packages}", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k")
    mount("none", BOX, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.chroot(BOX)
    os.chdir("/")


def show(path: str, flags: int) -> None:
    """Mount a file or directory of the machine into the new root, read-only."""
    mount(path, BOX + path, None, MS_BIND | MS_REC)
    held = os.statvfs(path).f_flag & HELD
    mount("none", BOX + path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | flags | held)


def load_libraries() -> None:
    """Load what the standard library's extensions link to, so that the root needs no system libraries."""
    names = [path for each in sys.path if os.path.isdir(each) for path in sorted(Path(each).glob("*.so"))]
    useful = [str(path) for path in names if not path.name.startswith(("_test", "_tkinter", "_ctypes_test", "xx"))]
    for name in (*useful, "libgcc_s.so.1"):  # the last is needed when a thread ends
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)


def spare_user() -> int:
    """The first of two unused user ids, near the top of the available range, which in a container may be small."""
    if os.geteuid() != 0:
        return os.geteuid()
    table = Path("/proc/self/uid_map")
    ranges = [line.split() for line in table.read_text(encoding="ascii").splitlines()] if table.exists() else []
    top = max((int(first) + int(count) for first, _, count in ranges), default=1 << 16)
    if top < 1 << 15:
        raise OSError("root is alone here, there is no other user to become")
    return min(top, UID_CEILING) - 2 - 2 * (os.getpid() % (1 << 12))


def child(action: Any) -> NoReturn:
    """Run the rest of a forked process; it always ends here."""
    code = 1
    with contextlib.suppress(BaseException):
        code = action() or 0
    os._exit(code)


def rehearse(limits: dict[str, int], user: int, isolated: bool) -> None:
    """Raise if rights cannot be dropped. Checked now, so that it is not mistaken for a failing answer."""
    if isolated and os.uname().machine not in ARCHITECTURES:
        raise OSError(f"system calls cannot be filtered on {os.uname().machine}")
    if (process := os.fork()) == 0:
        child(lambda: drop(limits, user))
    if os.waitpid(process, 0)[1] != 0:
        raise OSError("rights cannot be dropped")


def drop(limits: dict[str, int], user: int) -> None:
    """Drop all rights permanently, and set the limits."""
    sizes = [(resource.RLIMIT_CPU, limits["cpu"]), (resource.RLIMIT_FSIZE, limits["file"])]
    sizes += [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 64)]
    sizes += [(resource.RLIMIT_NPROC, limits["processes"]), (resource.RLIMIT_AS, limits["memory"])]
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if sys.platform == "linux":
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        call("capset", struct.pack("II", 0x20080522, 0), bytes(24))  # no capabilities, not even in our own namespaces
        call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)  # no other process of this user may inspect this one
        if os.uname().machine in ARCHITECTURES:
            deny(*ARCHITECTURES[os.uname().machine])
    for kind, size in sizes:
        try:
            resource.setrlimit(kind, (size, size))
        except ValueError:
            if sys.platform == "linux":  # other systems lack some: macOS has no memory limit
                raise


def deny(column: int, architecture: int) -> None:
    """Make every call in DENIED fail from now on, and also calls with another architecture's numbers."""
    load, equal, at_least, result = 0x20, 0x15, 0x35, 0x06  # instructions of the kernel's packet filter (BPF)
    forbid, allow = (result, 0, 0, 0x50001), (result, 0, 0, 0x7FFF0000)  # the first: "operation not permitted"
    code = [(load, 0, 0, 4), (equal, 1, 0, architecture), forbid, (load, 0, 0, 0), (at_least, 0, 1, 1 << 30), forbid]
    for numbers in DENIED.values():
        if (number := numbers[column]) is not None:
            code += [(equal, 0, 1, number), forbid]
    code += [(equal, 0, 2 + 2 * len(HARMLESS), FCNTL[column]), (load, 0, 0, 24)]
    for command in HARMLESS:
        code += [(equal, 0, 1, command), allow]
    code += [forbid, allow]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    header = struct.pack("HxxxxxxP", len(code), ctypes.addressof(program))
    call("prctl", PR_SET_SECCOMP, 2, header, 0, 0)


def keep_only(*kept: int) -> None:
    """Close all descriptors except these; input and output become the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    for each in range(3):
        if each not in kept:
            os.dup2(null, each)
    inherited = sorted({2, *kept})
    for low, high in zip(inherited, [*inherited[1:], 4096], strict=True):
        os.closerange(max(low + 1, 3), high)
