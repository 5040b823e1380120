"""The table of deliberate faults fits the code: tools/faults.py says what it is for."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("faults", ROOT / "tools" / "faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["faults"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


FAULTS = tool().faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_line_is_there_once_and_so_are_the_tests(fault: Any) -> None:
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.before) == 1
    assert fault.before != fault.after
    assert "\n" not in fault.before + fault.after
    assert fault.tests
    assert [name for name in fault.tests if not (ROOT / "tests" / name).is_file()] == []


def test_names_are_unique() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 30
