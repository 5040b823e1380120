"""How the encoder goes through a matrix of base kind lanes: in groups of steps, and in each group walk by walk."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seeddelta import _core

SEARCHED_ROWS = 32  # at a time; fewer take as long
LOOKAHEAD = 16  # steps searched beyond a group: 8 costs 2% of the squared error under feedback
_ALONE = 128  # steps of a group without feedback, where a seam costs nothing but time
_GROUP = 32  # with feedback; also what a walk's first group has at least
# The last groups: nothing makes up for the error of the last columns, so that they are the dear ones.
_LAST = (16, 8, 4, 4, 2, 2, 1, 1, 1, 1)


def lane_groups(code: _core.LaneCode, n_in: int, *, feedback: bool) -> list[int]:
    """Steps of each group for `lanes_encode` and `lane_blocks`."""
    steps = 2 * code.lines(n_in)
    if not feedback:
        return _even(steps, _ALONE)
    last: list[int] = []
    for size in reversed(_LAST):
        if steps - sum(last) - size < _GROUP:
            break
        last.insert(0, size)
    return _even(steps - sum(last), _GROUP) + last


def _even(steps: int, group: int) -> list[int]:
    """Groups of this many steps; a remainder of less joins the last one."""
    whole = max(1, steps // group)
    return [group] * (whole - 1) + [steps - group * (whole - 1)]


def decision_order(code: _core.LaneCode, n_in: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Columns in the order in which they are decided with feedback, and where in it each block ends."""
    order, ends = _core.lane_blocks(code, n_in, lane_groups(code, n_in, feedback=True))
    return np.asarray(order, np.int32), np.asarray(ends, np.int32)
