"""What this machine isolates, found by trying once."""

from __future__ import annotations

import functools
import os
import secrets
import socket
import tempfile
from dataclasses import dataclass

from skpo.errors import VerifierError
from skpo.verifiers.code.sandbox import Limits, Sandbox

HOW = (
    "On Linux this needs user namespaces (sysctl kernel.unprivileged_userns_clone=1; in a container: --privileged, or a "
    "seccomp profile that allows unshare), or else Landlock (Linux 5.13) and seccomp. Where you trust every program, run "
    "without: --unsafe-code (training: verify.unsafe_code=true)."
)


@dataclass(frozen=True)
class Isolation:
    """layers: what shut a trial program in. breaches: what it could do all the same. reason: why there is none."""

    layers: tuple[str, ...]
    breaches: tuple[str, ...] = ()
    reason: str = ""

    @property
    def holds(self) -> bool:
        """Whether programs may run; starting processes inside is left to namespaces where seccomp is missing."""
        inside = {"start a process"} if "namespaces" in self.layers else set()
        return not self.reason and not set(self.breaches) - inside


@functools.cache
def isolation() -> Isolation:
    """What isolates here: a trial program tries to get out, harmlessly. Some tenths of a second, once per process."""
    with Sandbox() as sandbox:
        return examine(sandbox)


def examine(sandbox: Sandbox) -> Isolation:
    """Try one sandbox."""
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="skpo-probe-") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        os.chmod(folder, 0o777)
        victim = os.path.join(folder, "victim")
        for path in (victim, victim + ".spare"):
            with open(path, "w") as file:
                file.write(mark)
            os.chmod(path, 0o666)
        os.environ["SKPO_PROBE"] = mark
        try:
            job = {"victim": victim, "port": server.getsockname()[1], "pid": os.getpid(), "mark": mark}
            run = sandbox.probe(job, Limits(cpu=5, wall=20, memory_mb=256))
        except VerifierError as error:
            return Isolation((), reason=str(error))
        finally:
            del os.environ["SKPO_PROBE"]
    if not isinstance(run.report, list):
        return Isolation(run.layers, reason=f"the trial program didn't answer ({run.failure or run.status})")
    return Isolation(run.layers, tuple(run.report))


def require() -> None:
    """Raises `VerifierError` where programs can't be isolated here."""
    found = isolation()
    if not found.holds:
        why = found.reason or f"a trial program could {' and '.join(found.breaches)}"
        raise VerifierError(f"verifier code: this machine doesn't isolate programs ({why}). {HOW}")
