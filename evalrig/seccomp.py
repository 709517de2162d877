"""The system calls that no program of a model needs: a deny list as a classic BPF program, for the kernel.

The kernel's own tables of numbers are the source; a machine that is not listed is refused, never let through unfiltered.
"""

import errno
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evalrig.sandbox import SandboxUnavailable

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NUMBER, ARCH, FIRST, SECOND = 0, 4, 16, 24
"""Offsets in what the filter sees: the call's number, the machine, the lower halves of the first two arguments."""
NAMESPACES: Final = 0x7E020080
"""Every CLONE_NEW* flag."""
SET_OWNER: Final = (8, 15)
"""fcntl's F_SETOWN and F_SETOWN_EX: they aim a signal at a process of the same user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Numbers of one machine."""

    arch: int
    denied: Mapping[str, int]
    strict: Mapping[str, int]
    """Refused as well where no namespace parts the program from the user's other processes and files."""
    clone: int
    prlimit64: int
    fcntl: int
    x32: bool = False
    """It has a second set of numbers for the same calls."""


_EVERYWHERE: Final = {
    "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "memfd_secret": 447,
}  # fmt: skip
_STRICT_EVERYWHERE: Final = {
    "pidfd_send_signal": 424,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
    "file_setattr": 469,
}

TABLES: Final[Mapping[str, Calls]] = {
    "x86_64": Calls(
        arch=0xC000003E,
        denied=_EVERYWHERE | {
            "socket": 41, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "unshare": 272,
            "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "bpf": 321, "perf_event_open": 298,
            "keyctl": 250, "add_key": 248, "request_key": 249, "userfaultfd": 323, "name_to_handle_at": 303,
            "open_by_handle_at": 304, "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "delete_module": 176,
            "finit_module": 313, "reboot": 169, "mknod": 133, "mknodat": 259, "syslog": 103, "memfd_create": 319, "shmget": 29,
            "msgget": 68, "semget": 64, "swapon": 167, "acct": 163, "quotactl": 179, "modify_ldt": 154, "ioperm": 173, "iopl": 172,
        },
        strict=_STRICT_EVERYWHERE | {
            "kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "setpgid": 109,
            "setsid": 112, "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260,
            "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
            "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "setpriority": 141, "sched_setparam": 142,
            "sched_setscheduler": 144, "sched_setaffinity": 203, "sched_setattr": 314, "ioprio_set": 251, "migrate_pages": 256,
            "move_pages": 279, "shmat": 30, "shmctl": 31, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "semop": 65, "semctl": 66,
            "semtimedop": 220, "mq_open": 240, "mq_unlink": 241,
        },
        clone=56, prlimit64=302, fcntl=72, x32=True,
    ),
    "aarch64": Calls(
        arch=0xC00000B7,
        denied=_EVERYWHERE | {
            "socket": 198, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "unshare": 97,
            "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "bpf": 280, "perf_event_open": 241,
            "keyctl": 219, "add_key": 217, "request_key": 218, "userfaultfd": 282, "name_to_handle_at": 264,
            "open_by_handle_at": 265, "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "delete_module": 106,
            "finit_module": 273, "reboot": 142, "mknodat": 33, "syslog": 116, "memfd_create": 279, "shmget": 194, "msgget": 186,
            "semget": 190, "swapon": 224, "acct": 89, "quotactl": 60,
        },
        strict=_STRICT_EVERYWHERE | {
            "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "setpgid": 154,
            "setsid": 157, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88, "setxattr": 5,
            "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16, "setpriority": 140,
            "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "sched_setattr": 274, "ioprio_set": 30,
            "migrate_pages": 238, "move_pages": 239, "shmat": 196, "shmctl": 195, "msgsnd": 189, "msgrcv": 188, "msgctl": 187,
            "semop": 193, "semctl": 191, "semtimedop": 192, "mq_open": 180, "mq_unlink": 181,
        },
        clone=220, prlimit64=261, fcntl=25,
    ),
}  # fmt: skip


def deny_list(strict: bool = False, machine: str = "") -> bytes:
    """The filter for this machine. `strict`: for a program that no namespace parts from the user's other processes.

    Raises:
        SandboxUnavailable: no table for this machine.
    """
    name = machine or platform.machine()
    if name not in TABLES:
        known = ", ".join(TABLES)
        raise SandboxUnavailable(f"sandbox: no list of system calls for {name}; run on one of: {known}")
    calls = TABLES[name]
    lines = [_op(LOAD, ARCH), _op(EQUAL, calls.arch, 1, 0), _op(RETURN, KILL), _op(LOAD, NUMBER)]
    if calls.x32:
        lines += [_op(AT_LEAST, 0x40000000, 0, 1), _refuse(errno.EPERM)]
    lines += [_op(EQUAL, 435, 0, 1), _refuse(errno.ENOSYS)]  # clone3 hides its flags; libc then takes clone
    for number in sorted({*calls.denied.values(), *(calls.strict.values() if strict else ())}):
        lines += [_op(EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    lines += _where(calls.clone, FIRST, [_op(ANY_BIT, NAMESPACES, 0, 1)])
    if strict:  # another process's limits, and signals that a file sends
        lines += _where(calls.prlimit64, FIRST, [_op(EQUAL, 0, 1, 0)])
        lines += _where(calls.fcntl, SECOND, [_op(EQUAL, SET_OWNER[0], 1, 0), _op(EQUAL, SET_OWNER[1], 0, 1)])
    return b"".join([*lines, _op(RETURN, ALLOW)])


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def _refuse(number: int) -> bytes:
    return _op(RETURN, REFUSE | number)


def _where(call: int, argument: int, test: Sequence[bytes]) -> list[bytes]:
    """Refuse one call where a test on an argument falls through; allow it otherwise. Other calls go on."""
    block = [_op(LOAD, argument), *test, _refuse(errno.EPERM), _op(RETURN, ALLOW)]
    return [_op(EQUAL, call, 0, len(block)), *block]
