"""Groups that wait in a checkpoint."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from scripted import sample

from skpo.errors import RunError
from skpo.problems.base import Problem
from skpo.rollout.types import Group
from skpo.trainer.ahead import FILE, read_ahead, write_ahead


def test_groups_come_back_as_they_were(tmp_path: Path) -> None:
    """Which samples are one object is kept; numbers of numpy in `info` are allowed."""
    own, other = sample([1, 2]), sample([3], finished=True)
    own.score, other.info = 1.0, {"value": np.float64(0.5), "values": [0.25], "mean": np.float32(1)}
    group = Group(Problem([{"role": "user", "content": "q"}], 7, columns={"level": 3}), [other], [own], {"own": own})
    write_ahead(tmp_path, {"step": 3, "groups": [group], "sampler": {"drawn": 5}})
    state = read_ahead(tmp_path)
    assert state is not None
    back = state["groups"][0]
    assert back.info["own"] is back.unused[0]
    assert back.problem == group.problem
    assert back.samples[0].info == other.info
    np.testing.assert_array_equal(back.unused[0].tokens, own.tokens)
    assert back.unused[0].logp.dtype == np.float32
    assert (state["step"], state["sampler"]) == (3, {"drawn": 5})


def test_nothing_under_way(tmp_path: Path) -> None:
    assert read_ahead(tmp_path) is None


class Harmful:
    def __reduce__(self) -> tuple:
        return print, ("code from a checkpoint",)


def test_a_file_that_holds_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FILE).write_bytes(pickle.dumps(Harmful(), protocol=2))
    with pytest.raises(RunError, match="delete this file"):
        read_ahead(tmp_path)
    assert capsys.readouterr().out == ""
