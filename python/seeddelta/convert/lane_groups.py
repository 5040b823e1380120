"""How the encoder goes through a matrix of base kind lanes: in groups of steps, and in each group stream by stream."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seeddelta import _core

LOOKAHEAD = 16  # steps searched beyond a group: 8 costs 2% of the squared error under feedback, 24 gains .2%
_ALONE = 128  # steps of a group without feedback, where a seam costs nothing but time
_GROUP = 32  # with feedback (16 and 24 are alike, 64 costs 3%); also what a stream's first group has at least
# The last groups: nothing makes up for the error of the last columns, so that they are the dear ones. Without: 5%.
_LAST = (8, 4, 2, 1, 1)


def lane_groups(code: _core.LaneCode, n_in: int, *, feedback: bool) -> list[int]:
    """Steps of each group for `lanes_encode` and `lane_blocks`."""
    steps = code.stream_steps(n_in)
    last = list(_LAST) if feedback and steps >= _GROUP + sum(_LAST) else []
    rest, size = steps - sum(last), _GROUP if feedback else _ALONE
    first = min(rest, size)
    return [first] + [min(size, rest - begin) for begin in range(first, rest, size)] + last


def decision_order(code: _core.LaneCode, n_in: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Columns in the order in which they are decided with feedback, and where in it each block ends."""
    order, ends = _core.lane_blocks(code, n_in, lane_groups(code, n_in, feedback=True))
    return np.asarray(order, np.int32), np.asarray(ends, np.int32)
