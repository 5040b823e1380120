"""A short run of the mutations, and proof that the runner sees what it looks for."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from mutate import damaged, run
from mutations import layout_of, mutated
from seeddelta import _core
from seeddelta.errors import FormatError
from seeddelta.gguf.descriptions import COLUMNS
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.settings.yaml import load_yaml
from subjects import TESTS, Subject, all_subjects

GOLDEN = sorted((TESTS / "golden").glob("*.gguf"))


@pytest.fixture(scope="module")
def subjects() -> tuple[Subject, ...]:
    return all_subjects()


def test_whole_files_are_read(subjects: tuple[Subject, ...], tmp_path: Path) -> None:
    for subject in subjects:
        for data in subject.files:
            (tmp_path / "file").unlink(missing_ok=True)
            (tmp_path / "file").write_bytes(data)
            subject.read(tmp_path / "file")


def test_damaged_files(subjects: tuple[Subject, ...]) -> None:
    outcome = run(subjects, 1500, seed=20)
    assert outcome.failures == []
    assert outcome.cases == 1500
    for subject in subjects:
        assert outcome.counts[subject.name, "refused"] > 40, subject.name
    assert sum(outcome.counts[subject.name, "read"] for subject in subjects) > 200


def test_the_walk_finds_what_the_reader_finds() -> None:
    for path in GOLDEN:
        layout, header = layout_of(path.read_bytes()), read_header(path)
        assert len(layout.values) == len(header.metadata)
        assert [begin for begin, _ in layout.tensors] == sorted(info.offset for info in header.tensors.values())


def test_damage_reaches_the_table_of_tensors(tmp_path: Path) -> None:
    """Columns of every type are among what the reader refuses."""
    named: set[str] = set()
    for case in range(400):
        rng = Random(case)
        (tmp_path / "file").unlink(missing_ok=True)
        (tmp_path / "file").write_bytes(mutated(rng.choice(GOLDEN).read_bytes(), rng))
        try:
            open_seeddelta(tmp_path / "file").close()
        except FormatError as error:
            named |= {column.name for column in COLUMNS if f"{column.key} of tensor" in str(error)}
    assert len(named) > 8, named


def test_a_case_is_its_number_and_the_seed(subjects: tuple[Subject, ...]) -> None:
    assert damaged(subjects, 7, 1)[1] == damaged(subjects, 7, 1)[1]
    data = GOLDEN[0].read_bytes()
    assert len({mutated(data, Random(i)) for i in range(50)}) > 45


def crash(path: Path) -> None:
    ctypes.string_at(0)


def hang(path: Path) -> None:
    time.sleep(1000)


def spin(path: Path) -> None:
    while True:
        pass


def devour(path: Path) -> None:
    np.ones(1 << 28)


def stumble(path: Path) -> None:
    raise KeyError(str(path))


@pytest.mark.parametrize(
    ("read", "message", "waiting"),
    [
        (crash, "SIGSEGV", 60),
        (hang, "SIGALRM", 0.3),
        (spin, "SIGPROF", 60),
        (devour, "MemoryError", 60),
        (stumble, "KeyError", 60),
    ],
)
def test_failures_are_seen(read: Callable[[Path], None], message: str, waiting: float) -> None:
    """Each is counted for its case, and the next case goes on behind it."""
    outcome = run([Subject("broken", (b"abc",), read)], 2, seed=1, seconds=0.2, waiting=waiting)
    assert [case for case, *_ in outcome.failures] == [0, 1]
    assert all(message in what for *_, what in outcome.failures)


def test_refusals_are_no_failures() -> None:
    def refuse(path: Path) -> None:
        raise FormatError("no")

    outcome = run([Subject("broken", (b"abc",), refuse)], 3, seed=1)
    assert outcome.failures == []
    assert outcome.counts["broken", "refused"] == 3


U16_LIMITS = {  # what leads out of an array, by the argument: a value that the tensor does not have
    "d_idx": (np.uint16, 72, "d_idx of row 1 is 72, beyond n_in 72"),
    "r_codes": (np.uint16, 6, "r_codes of row 1 has atom 6 of 6"),
    "b_map": (np.uint16, 3, "b_map of row 1 does not ascend below 3 blocks"),
    "p_map": (np.uint8, 0b1000, "p_map of row 1 does not have 1 of 3 blocks"),
}


@pytest.mark.parametrize("name", U16_LIMITS)
def test_the_core_refuses_indices_that_lead_out(name: str) -> None:
    """The last that is inside is computed with; the first outside is refused before a kernel is called."""
    dtype, outside, message = U16_LIMITS[name]
    half = np.ones((4, 1), np.float16)
    arrays = {
        "d_idx": {"d_val": half},
        "r_codes": {"r_vals": half, "r_dict": np.ones((6, 72), np.float16)},
        "b_map": {"b_val": np.ones((4, 1, 32), np.float16)},
        "p_map": {"p_val": np.ones((4, 1, 32), np.int8), "p_scale": np.ones(4, np.float16)},
    }[name]
    index = np.full((4, 1), outside >> 1 if name == "p_map" else outside - 1, dtype)
    arrays |= {"row_scale": np.ones(4, np.float16)}
    weight = _core.Weight("w", 4, 72, base_kind=255, arrays=arrays | {name: index})
    assert np.isfinite(weight.matmul(np.ones((2, 72), np.float32))).all()
    index[1] = outside
    with pytest.raises(ValueError, match=message):
        _core.Weight("w", 4, 72, base_kind=255, arrays=arrays | {name: index.copy()})


@pytest.mark.parametrize("choice", [0, 65535])
def test_every_chosen_seed_is_a_seed(choice: int) -> None:
    """Choices are offsets of a key, not places in a table: none leads anywhere."""
    arrays = {"row_scale": np.ones(4, np.float16), "seed_idx": np.full(4, choice, np.uint16)}
    weight = _core.Weight("w", 4, 72, base_kind=0, base_scale=1.0, base_block=32, arrays=arrays)
    assert np.abs(weight.dequantize()).max() <= 63


def test_arrays_that_are_not_aligned_are_refused() -> None:
    """What general.alignment 1 makes possible: float16 at an odd address."""
    data = np.zeros(9, np.uint8)
    scale = data[1 if data.ctypes.data % 2 == 0 else 0 :][:8].view(np.float16)
    with pytest.raises(ValueError, match="row_scale has an address that is not a multiple of its item size"):
        _core.Weight("w", 4, 72, base_kind=255, arrays={"row_scale": scale})


@pytest.mark.parametrize(
    "text", ["a: &a [1]\nb: *a\n", "[" * 5000 + "]" * 5000, "a: !!bool x", "a: !!int ''", "a: 2001-99-99"]
)
def test_yaml_has_one_exception(text: str) -> None:
    with pytest.raises(ValueError, match=r"not allowed|nested|not of its tag|month|invalid"):
        load_yaml(text)
    assert load_yaml("a: [1, {b: 2.5}]\n") == {"a": [1, {"b": 2.5}]}
