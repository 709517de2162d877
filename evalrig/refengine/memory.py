"""How the process keeps memory: arrays of a step are freed and wanted again thousands of times a minute."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""glibc takes no larger one."""


def keep_freed_memory() -> None:
    """Has glibc hand freed arrays out again instead of returning them to the kernel, which would fault every page in
    anew.

    Does nothing where the C library has no such setting. Call it before the first large array.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
