"""Full disks under the commands that write files."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("resource")

from full_disks import fill_disks


def test_a_full_disk_harms_nothing(smollm2_quantized: Path, tmp_path: Path) -> None:
    filled = fill_disks(tmp_path, smollm2_quantized, 8, Random(5), ("build", "imatrix"))
    assert filled.wrong == []
    assert filled.disks >= 4


@pytest.mark.slow
def test_full_disks_at_every_write(smollm2_quantized: Path, tmp_path: Path) -> None:
    filled = fill_disks(tmp_path, smollm2_quantized, 210, Random(6))
    assert filled.wrong == []
    assert filled.disks >= 200
