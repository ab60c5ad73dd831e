"""A seccomp filter: system calls that a program under test has no business with fail with EPERM.

Everything that starts a process, reaches a network, looks into or signals another process, changes a mount, or talks to
a large and rarely used part of the kernel. Threads work. Numbers: (x86_64, aarch64), None where there is no such call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from skpo.verifiers.code.inside import kernel

DENIED: dict[str, tuple[int | None, int | None]] = {
    # processes
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "kcmp": (312, 272), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "setpriority": (141, 140), "ioprio_set": (251, 30), "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # network
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200),
    "listen": (50, 201),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467), "mknod": (133, None), "mknodat": (259, 33), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # memory that no limit counts
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180),
    # parts of the kernel
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "fanotify_init": (300, 262), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "acct": (163, 89), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "personality": (135, 92), "vhangup": (153, 58),
}  # fmt: skip

CHANGES: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466),
}  # fmt: skip
"""Changes to files that Landlock doesn't stop; denied where the files of the system can be seen."""

CLONE, CLONE3, KILL, TKILL, TGKILL = (56, 220), (435, 435), (62, 129), (200, 130), (234, 131)
PRLIMIT, PRCTL, FCNTL, IOCTL = (302, 261), (157, 167), (72, 25), (16, 29)
CLONE_THREAD = 0x10000
F_SETOWN, F_SETSIG, F_SETOWN_EX = 8, 10, 15
TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP = 0x5412, 0x541C, 0x8901, 0x8902
ARCHITECTURE = (0xC000003E, 0xC00000B7)

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16


def refuse(code: int) -> int:
    """Return value of a filter: the call fails with this errno."""
    return 0x00050000 | code


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value & 0xFFFFFFFF)


def _deny(number: int, code: int = errno.EPERM) -> list[bytes]:
    return [_step(EQUAL, number, 0, 1), _step(RETURN, refuse(code))]


def _when(number: int, argument: int, test: int, values: list[int], hit: int, miss: int) -> list[bytes]:
    """For one call: `hit` where an argument (its low 32 bits) passes the test with one of the values, else `miss`."""
    inner = [_step(LOAD, ARGUMENTS_AT + 8 * argument)]
    for value in values:
        inner += [_step(test, value, 0, 1), _step(RETURN, hit)]
    inner.append(_step(RETURN, miss))
    return [_step(EQUAL, number, 0, len(inner)), *inner]


def program(column: int, pid: int, files_visible: bool) -> bytes:
    """The filter for a process with this id; `column`: 0 x86_64, 1 aarch64."""
    no = refuse(errno.EPERM)
    steps = [_step(LOAD, ARCHITECTURE_AT), _step(EQUAL, ARCHITECTURE[column], 1, 0), _step(RETURN, KILL_PROCESS)]
    steps.append(_step(LOAD, NUMBER_AT))
    if column == 0:  # the x32 variants of all calls
        steps += [_step(AT_LEAST, 0x40000000, 0, 1), _step(RETURN, refuse(errno.ENOSYS))]
    for numbers in (DENIED | CHANGES if files_visible else DENIED).values():
        number = numbers[column]
        if number is not None:
            steps += _deny(number)
    steps += _when(CLONE[column], 0, ANY_BIT, [CLONE_THREAD], ALLOW, no)
    steps += _deny(CLONE3[column], errno.ENOSYS)  # its flags can't be seen from here; the C library falls back to clone
    steps += _when(KILL[column], 0, EQUAL, [pid], ALLOW, no)
    steps += _when(TGKILL[column], 0, EQUAL, [pid], ALLOW, no)
    steps += _deny(TKILL[column])
    steps += _when(PRLIMIT[column], 0, EQUAL, [0, pid], ALLOW, no)
    steps += _when(PRCTL[column], 0, EQUAL, [kernel.PR_SET_PDEATHSIG, kernel.PR_SET_DUMPABLE], no, ALLOW)
    steps += _when(FCNTL[column], 1, EQUAL, [F_SETOWN, F_SETSIG, F_SETOWN_EX], no, ALLOW)
    steps += _when(IOCTL[column], 1, EQUAL, [TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP], no, ALLOW)
    steps.append(_step(RETURN, ALLOW))
    return b"".join(steps)


def install(files_visible: bool) -> None:
    """Filter this process from now on; needs no_new_privs. Raises OSError where the kernel has no seccomp."""
    if kernel.MACHINE is None:
        raise OSError(errno.ENOSYS, "seccomp: no table of system calls for this processor")

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]

    code = program(kernel.MACHINE, os.getpid(), files_visible)
    kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.byref(Filter(len(code) // 8, code)))
