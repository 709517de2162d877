"""A script of its own: locks the process it runs in with Landlock and seccomp, then becomes the command it was given.

Run as text (`python -c`), because the uid that runs it may not be able to read this file; so it imports nothing of evalrig.
Arguments: the descriptor of a seccomp filter, folders and files to read, others to write (separated by `:`), the command.
The numbers are the kernel's (`linux/landlock.h`, `linux/prctl.h`).
"""

import ctypes
import os
import stat
import struct
import sys
from typing import Final

CREATE, ADD, RESTRICT = 444, 445, 446
"""System calls, the same on every machine."""
NEEDED: Final = 4
"""The first ABI that refuses TCP: Linux 6.7."""
EXECUTE, WRITE, READ, LIST, DEVICE, SOCKET, BLOCK, TRUNCATE = (
    1,
    1 << 1,
    1 << 2,
    1 << 3,
    1 << 6,
    1 << 9,
    1 << 11,
    1 << 14,
)


def abi() -> int:
    """The kernel's version of Landlock; below 1: it has none."""
    return int(ctypes.CDLL(None, use_errno=True).syscall(CREATE, None, ctypes.c_size_t(0), 1))


def lock(reading: list[str], writing: list[str], filter_fd: int) -> None:
    """Restrict this process and all it starts, for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = abi()
    every = (1 << 16) - 1 if version >= 5 else (1 << 15) - 1
    ruled = struct.pack("QQ", every, 3) + (
        struct.pack("Q", 3) if version >= 6 else b""
    )  # 3: bind and connect; both scopes
    rules = _checked(libc, "ruleset", libc.syscall(CREATE, ruled, ctypes.c_size_t(len(ruled)), 0))
    for paths, rights in ((reading, EXECUTE | READ | LIST), (writing, every & ~(EXECUTE | DEVICE | SOCKET | BLOCK))):
        for path in filter(os.path.exists, paths):
            fd = os.open(path, os.O_PATH)
            own = rights if stat.S_ISDIR(os.fstat(fd).st_mode) else rights & (EXECUTE | WRITE | READ | TRUNCATE)
            _checked(libc, path, libc.syscall(ADD, rules, 1, struct.pack("=Qi", own, fd), 0))
            os.close(fd)
    code = ctypes.create_string_buffer(os.read(filter_fd, 1 << 16))
    program = struct.pack("HxxxxxxQ", (len(code) - 1) // 8, ctypes.addressof(code))
    _checked(libc, "die with parent", libc.prctl(1, 9, 0, 0, 0))
    _checked(libc, "no new privileges", libc.prctl(38, 1, 0, 0, 0))
    _checked(libc, "landlock", libc.syscall(RESTRICT, rules, 0))
    _checked(libc, "seccomp", libc.prctl(22, 2, program, 0, 0))


def _checked(libc: ctypes.CDLL, what: str, result: int) -> int:
    if result < 0:
        sys.stderr.write(f"{what}: {os.strerror(ctypes.get_errno())}\n")
        os._exit(125)
    return result


if __name__ == "__main__":
    lock(sys.argv[2].split(":"), sys.argv[3].split(":"), int(sys.argv[1]))
    os.closerange(3, 4096)
    os.execv(sys.argv[4], sys.argv[4:])
