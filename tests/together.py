"""Run a function in several processes that form one group (gloo), for tests: forked, so that nothing is imported again."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

PATIENCE = 300  #: seconds after which processes that hang are killed, and the test fails


def together(processes: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """`work(*args)` in each of `processes` processes; what each returned, in order of rank. A failure in one fails the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    pipes, children = [], []
    for rank in range(processes):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(there, rank, processes, port, work, args), daemon=False)
        child.start()
        there.close()
        pipes.append(here)
        children.append(child)
    deadline = time.monotonic() + PATIENCE
    try:
        results = []
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(max(0.0, deadline - time.monotonic())), f"process {rank} of {processes} hangs"
            results.append(pipe.recv())
        errors = [text for good, text in results if not good]
        assert not errors, "\n".join(errors)
        return [value for _, value in results]
    finally:
        for child in children:
            child.join(5)
            if child.is_alive():
                child.kill()


def _child(pipe: Any, rank: int, processes: int, port: int, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    from accelerate.state import AcceleratorState, PartialState

    torch.set_num_threads(1)
    AcceleratorState._reset_state(reset_partial_state=True)  # what the parent may have had
    if processes > 1:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
    try:
        pipe.send((True, work(*args)))
    except BaseException as error:
        pipe.send((False, f"process {rank}: {error!r}\n{traceback.format_exc()}"))
    if processes > 1 and torch.distributed.is_initialized():
        PartialState().destroy_process_group()
    os._exit(0)
