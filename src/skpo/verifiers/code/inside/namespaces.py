"""Namespaces: no network, no other processes, and a root folder that holds Python's library, a folder to work in, and nothing else."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import sys

from skpo.verifiers.code.inside import kernel

WORK = "/sandbox"
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache")
INODES = 2000


@functools.cache
def library_folders() -> tuple[str, ...]:
    """What a Python program reads: the standard library and the shared libraries of the system. Worked out once, outside."""
    found = [*SYSTEM, os.path.join(sys.base_prefix, "lib"), os.path.dirname(os.__file__)]
    kept: list[str] = []
    for path in dict.fromkeys(os.path.realpath(p) for p in found):
        if os.path.exists(path) and not any(path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return tuple(kept)


def library_links() -> dict[str, str]:
    """Other paths under which they are known (`/lib`), with the real ones; none lies below another."""
    links: dict[str, str] = {}
    for path in sorted([*SYSTEM, os.path.join(sys.base_prefix, "lib"), os.path.dirname(os.__file__)], key=len):
        real = os.path.realpath(path)
        if real != path and os.path.exists(real) and not any(path.startswith(f"{other}/") for other in links):
            links[path] = real
    return links


@functools.cache
def hidden_folders() -> tuple[str, ...]:
    """Installed packages below the library folders: among them may be the very data sets that programs are tested on."""
    below = [f"{'*/' * n}{name}" for n in range(4) for name in ("site-packages", "dist-packages")]
    return tuple(path for top in library_folders() for pattern in below for path in glob.glob(f"{top}/{pattern}"))


@functools.cache
def readable_folders() -> tuple[str, ...]:
    """The library folders without the hidden ones: where one lies below a folder, what else is in that folder."""

    def without(path: str) -> list[str]:
        if path in hidden_folders():
            return []
        if not any(hidden.startswith(f"{path}/") for hidden in hidden_folders()):
            return [path]
        return [found for name in sorted(os.listdir(path)) for found in without(f"{path}/{name}")]

    return tuple(found for top in library_folders() for found in without(top))


def enter(folder: str, folder_mb: int) -> bool:
    """Leave all namespaces but that of users where this process may, else that of users too.

    The next child is process 1 of the new one. folder: any folder; a file system in memory of at most `folder_mb` MiB is
    mounted over it, where only this process sees it. True where a user namespace was needed. Raises OSError.
    """
    others = kernel.NEWNS | kernel.NEWPID | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS
    uid, gid = os.getuid(), os.getgid()
    own = False
    try:
        kernel.unshare(others)
    except OSError:
        kernel.unshare(others | kernel.NEWUSER)
        own = True
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _build(folder, folder_mb)
    return own


def trial(folder: str, folder_mb: int) -> str | None:
    """Why `enter` fails, found by a child process that tries; None where it works."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            enter(folder, folder_mb)
        except OSError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    reason = os.read(read, 1 << 12).decode()
    os.close(read)
    os.waitpid(pid, 0)
    return reason or None


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _build(root: str, folder_mb: int) -> None:
    """Mount the new root and move into it."""
    sources = {path: os.open(path, os.O_PATH) for path in library_folders()}
    links = library_links()
    devices = {path: os.open(path, os.O_PATH) for path in DEVICES if os.path.exists(path)}
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", root, "tmpfs", flags, f"size=1m,nr_inodes={INODES},mode=755")
    os.umask(0o022)
    read_only = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID
    for path, fd in sources.items():
        _bind(fd, root + path, read_only | kernel.MOUNT_ATTR_NODEV)
    for path in hidden_folders():
        kernel.mount("tmpfs", root + path, "tmpfs", flags | kernel.MS_RDONLY, "size=4k,mode=755")
    for path, fd in devices.items():
        _bind(fd, root + path, kernel.MOUNT_ATTR_NOSUID)
    for path, target in links.items():
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(target, root + path)
    work = root + WORK
    os.mkdir(work)
    kernel.mount("tmpfs", work, "tmpfs", flags, f"size={folder_mb}m,nr_inodes={INODES},mode=777")
    with contextlib.suppress(FileExistsError):  # where the library lies below /tmp
        os.symlink(WORK, root + "/tmp")
    for fd in (*sources.values(), *devices.values()):
        os.close(fd)
    kernel.pivot(root)
    kernel.seal("/", read_only, recursive=False)


def _bind(fd: int, target: str, attributes: int) -> None:
    if os.path.isdir(f"/proc/self/fd/{fd}"):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    kernel.mount(f"/proc/self/fd/{fd}", target, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.seal(target, attributes)
