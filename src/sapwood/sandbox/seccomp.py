"""What code behind Bubblewrap may not ask of the kernel: other processes, sockets, memory that no limit of a process
counts, and what only a system needs.

A filter is a program for the kernel, handed to it as bytes. It looks at the number of a system
call, which differs by machine; for machines that are not listed there is no filter.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping

REFUSED: Mapping[str, tuple[int, int | None]] = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "socket": (41, 198),
    "fork": (57, None),
    "vfork": (58, None),
    "semget": (64, 190),
    "msgget": (68, 186),
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "mount": (165, 40),
    "umount2": (166, 39),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "io_setup": (206, 0),
    "mq_open": (240, 180),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "inotify_init": (253, None),
    "unshare": (272, 97),
    "inotify_init1": (294, 26),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "finit_module": (313, 273),
    "memfd_create": (319, 279),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
}
"""The numbers of what is refused, on x86-64 and on ARM, which has no fork."""
NEWEST = 447
"""System calls from this number on do not exist for the code: memfd_secret, and all that came after it."""
CLONE3 = 435
MACHINES: Mapping[str, tuple[int, int, int]] = {"x86_64": (0xC000003E, 56, 157), "aarch64": (0xC00000B7, 220, 167)}
"""What the kernel calls a machine, and the numbers of `clone` and `prctl` there."""
SET_DUMPABLE = 4
"""What `prctl` is asked for by a process that hides its files from its own user."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, MACHINE, FIRST_ARGUMENT = 0, 4, 16
"""Where the kernel puts them."""
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
THREAD = 0x00010000
X32 = 0x40000000
"""The numbers of a second set of system calls begin here, which would pass by the first."""


def filter_for(machine: str) -> bytes | None:
    """Return the filter for a machine, by the name of `platform.machine()`, or `None` if there is none."""
    if machine not in MACHINES:
        return None
    name, clone, prctl = MACHINES[machine]
    at = list(MACHINES).index(machine)
    numbers = [both[at] for both in REFUSED.values() if both[at] is not None]
    program = [
        (LOAD, 0, 0, MACHINE),
        (EQUAL, 1, 0, name),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32),
        (RETURN, 0, 0, KILL),
        (AT_LEAST, 0, 1, NEWEST),
        (RETURN, 0, 0, REFUSE | errno.ENOSYS),
        (EQUAL, 0, 4, prctl),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (EQUAL, 0, 1, SET_DUMPABLE),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, REFUSE | errno.ENOSYS),  # its flags are out of sight; callers that get this use clone
        # Each jumps over those after it, the comparison with clone and what allows.
        *((EQUAL, after + 2, 0, number) for after, number in zip(reversed(range(len(numbers))), numbers, strict=True)),
        (EQUAL, 2, 0, clone),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 1, THREAD),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in program)
