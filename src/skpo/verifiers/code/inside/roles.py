"""What runs in a jail: a whole program, a program that answers calls, the tests that call it, and a check of the jail.

The tests never share a process with the program under test: they call it over a line (`wire`) that carries plain data,
compare in their own process, and report on a channel that the program doesn't have. So the program can neither read the
tests nor answer for them.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any

from skpo.verifiers.code.inside import wire
from skpo.verifiers.code.inside.probe import breaches

Request = dict[str, Any]
PROGRAM = "<program>"


def job(fd: int) -> Request:
    """The job that a file holds."""
    os.lseek(fd, 0, os.SEEK_SET)
    data = bytearray()
    while part := os.read(fd, 1 << 20):
        data += part
    os.close(fd)
    return json.loads(data)


def run(request: Request, fds: list[int]) -> None:
    """Do what `request["role"]` says; fds: the job's file, then the role's own."""
    random.seed(0)
    sys.set_int_max_str_digits(0)
    ROLES[request["role"]](job(fds[0]), *fds[1:])


# --- a whole program, from standard input to standard output --------------------------------------------------------


def whole(work: Request, stdin: int, stdout: int) -> None:
    """Run `source` as `__main__`. Its own `sys.exit(0)` is fine, an exception ends with status 1."""
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    os.close(stdin)
    os.close(stdout)
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.set_int_max_str_digits(4300)
    code = 1
    try:
        exec(compile(work["source"], PROGRAM, "exec"), {"__name__": "__main__", "__builtins__": builtins})
        code = 0
    except SystemExit as end:
        code = 0 if end.code in (None, 0) else 1
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(code)


# --- a program that answers calls -----------------------------------------------------------------------------------


def player(work: Request, line: int) -> None:
    """Define what `source` defines, then answer calls. Everything here is the program's own to break."""
    names: dict[str, Any] = {"__name__": "program", "__builtins__": builtins}
    objects: list[Any] = []

    def keep(value: Any) -> Any:
        objects.append(value)
        return {"t": "ref", "v": len(objects) - 1}

    def act(message: Request) -> Any:
        what, of = message["of"]
        if what == "name" and of not in names and not hasattr(builtins, of):
            raise NameError(f"name {of!r} is not defined")
        found: Any = objects[of] if what == "ref" else names.get(of, getattr(builtins, of, None))
        if "attribute" in message:
            return getattr(found, message["attribute"])
        args, kwargs = wire.decode(message["call"], objects.__getitem__)
        return found(*args, **kwargs)

    def answer(work: Callable[[], Any]) -> None:
        try:
            reply = {"v": wire.encode(work(), keep)}
        except (Exception, SystemExit) as error:
            reply = {"e": type(error).__name__, "m": str(error)[:200]}
        wire.send(line, reply)

    answer(lambda: exec(compile(work["source"], PROGRAM, "exec"), names))
    while True:
        message = wire.receive(line)
        answer(lambda m=message: act(m))  # type: ignore[misc]


# --- the tests ------------------------------------------------------------------------------------------------------


class Remote:
    """Something that lives in the program's process: a name, or an object that is no plain data.

    It can be called, and its attributes read; it has no value of its own to compare or to be true.
    """

    __slots__ = ("_line", "_of")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, line: int, of: tuple[str, Any]) -> None:
        self._line, self._of = line, of

    def _ask(self, message: Request) -> Any:
        wire.send(self._line, {"of": self._of, **message})
        return take(self._line)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask({"call": wire.encode((args, kwargs), _reference)})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask({"attribute": name})

    def __bool__(self) -> bool:
        raise TypeError("the program gave back an object that is no plain data")

    def __eq__(self, other: object) -> bool:
        raise TypeError("the program gave back an object that is no plain data")


def _reference(value: Any) -> Any:
    if isinstance(value, Remote) and value._of[0] == "ref":
        return {"t": "ref", "v": value._of[1]}
    raise TypeError(f"a test can't hand a {type(value).__name__} to the program")


def take(line: int) -> Any:
    """The value of a reply, or the exception that it stands for: a built-in one of that name, else RuntimeError."""
    reply = wire.receive(line)
    try:
        if "e" not in reply:
            return wire.decode(reply["v"], lambda number: Remote(line, ("ref", number)))
        kind, text = str(reply["e"]), str(reply["m"])
    except (ValueError, TypeError, KeyError, RecursionError, ArithmeticError):
        raise wire.GoneError from None
    found = getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, UnicodeError):
        raise found(text)
    raise RuntimeError(f"{kind}: {text}")


def judge(work: Request, line: int, verdict: int) -> None:
    """Run the tests against a player; write a JSON object to `verdict`: `passed`, `of`, and what went wrong first."""
    tests, calls = work.get("tests", []), work.get("calls", [])
    report: Request = {"passed": 0, "of": len(tests) + len(calls), "error": None}
    try:
        take(line)
        names = _names(work, line)
        for test in tests:
            exec(compile(test, "<test>", "exec"), names)
            report["passed"] += 1
        for call in calls:
            found = _function(work["function"], line)(*call["arguments"])
            if not same(found, call["result"]):
                raise AssertionError(f"expected {call['result']!r:.80}, got {found!r:.80}")
            report["passed"] += 1
    except wire.GoneError:
        report["error"] = "the program ended"
    except BaseException as error:
        report["error"] = f"{type(error).__name__}: {str(error)[:200]}"
    os.write(verdict, json.dumps(report).encode())


def _names(work: Request, line: int) -> dict[str, Any]:
    """Globals of the tests. What they use and don't define comes from the standard library, else from the program."""
    names: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    exec(compile(work.get("setup") or "", "<setup>", "exec"), names)
    if work.get("entry"):
        names[work["entry"]] = Remote(line, ("name", work["entry"]))
    for test in work.get("tests", []):
        for node in ast.walk(ast.parse(test)):
            name = node.id if isinstance(node, ast.Name) else None
            if name is None or name in names or hasattr(builtins, name):
                continue
            known = name in sys.stdlib_module_names
            names[name] = __import__(name) if known else Remote(line, ("name", name))
    return names


def _function(name: str, line: int) -> Remote:
    """A function of the program, or the method of that name of its class `Solution`."""
    cls, dot, method = name.partition(".")
    if not dot:
        return Remote(line, ("name", name))
    made: Remote = Remote(line, ("name", cls))()
    bound: Remote = getattr(made, method)
    return bound


def same(found: Any, expected: Any) -> bool:
    """Equal as JSON values: tuples count as lists, floats agree to 1e-6 (relative, or absolute below 1)."""
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if type(found) is float or type(expected) is float:
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (found, expected))
        return numbers and abs(found - expected) <= 1e-6 * max(1.0, abs(expected))
    return type(found) is type(expected) and bool(found == expected)


# --- a check of the jail --------------------------------------------------------------------------------------------


def probe(work: Request, report: int) -> None:
    """Try what a program must not be able to do; write the list of what worked."""
    os.write(report, json.dumps(breaches(work)).encode())


ROLES: dict[str, Callable[..., None]] = {"whole": whole, "player": player, "judge": judge, "probe": probe}
