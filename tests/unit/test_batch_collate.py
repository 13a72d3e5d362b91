"""Batches and torch's collation: columns go through as they are, and whoever looks sees samples."""

from __future__ import annotations

import copy
import operator
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from prepcache.batching import collation
from prepcache.batching.gather import Rows
from prepcache.collate import pad_collate
from support.artifacts import same
from support.rows import rows_of


def sample(i: int) -> tuple[torch.Tensor, int]:
    return torch.full((3, 4), i, dtype=torch.uint8), i


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return rows_of(tmp_path, [sample(i) for i in range(10)], 2)


PICKS = [4, 0, 9]


def test_a_batch_is_a_list_of_samples_to_whoever_looks(rows: Rows) -> None:
    expected = [sample(i) for i in PICKS]
    assert len(rows.take(PICKS)) == 3
    assert isinstance(rows.take(PICKS), list)
    assert same(rows.take(PICKS)[0], expected[0])
    assert same(rows.take(PICKS)[-1], expected[-1])
    assert same(rows.take(PICKS)[1:], expected[1:])
    assert same(list(reversed(rows.take(PICKS))), expected[::-1])
    assert same(rows.take(PICKS).__add__([1]), [*expected, 1])
    assert same(copy.copy(rows.take(PICKS)), expected)
    assert same(pickle.loads(pickle.dumps(rows.take(PICKS))), expected)
    assert same([*rows.take(PICKS)], expected)
    assert same(list(zip(*rows.take(PICKS), strict=True))[1], (4, 0, 9))
    assert repr(rows.take(PICKS)) == repr(expected)


def test_another_of_its_type_is_a_list(rows: Rows) -> None:
    """So Lightning and accelerate send a list to a device, which a collate function has given back."""
    batch = rows.take(PICKS)
    sent = type(batch)(sample for sample in batch)
    assert type(sent) is list and same(sent, list(batch)) and type(batch)() == []


def test_a_changed_batch_is_collated_as_it_was_changed(rows: Rows) -> None:
    batch = rows.take(PICKS)
    batch.append(sample(7))
    assert default_collate(batch)[1].tolist() == [4, 0, 9, 7]
    batch = rows.take(PICKS)
    batch[1] = sample(3)
    batch.reverse()
    assert default_collate(batch)[1].tolist() == [9, 3, 4]


def test_samples_changed_in_place_are_collated_as_changed(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [{"x": torch.ones(2), "y": i} for i in range(4)])
    batch = rows.take([0, 1])
    for number, changed in enumerate(batch):
        changed["x"] = changed["x"] * number
        changed["z"] = 5
    assert {k: v.tolist() for k, v in default_collate(batch).items()} == {
        "x": [[0, 0], [1, 1]],
        "y": [0, 1],
        "z": [5, 5],
    }


def test_torch_functions_on_a_batch_of_tensors_see_tensors(tmp_path: Path) -> None:
    tensors = [torch.arange(4.0) + i for i in range(6)]
    rows = rows_of(tmp_path, tensors)
    expected = [tensors[1], tensors[3]]
    assert torch.stack(rows.take([1, 3])).equal(torch.stack(expected))
    assert torch.cat(rows.take([1, 3])).equal(torch.cat(expected))
    padded = torch.nn.utils.rnn.pad_sequence(rows.take([1, 3]), batch_first=True)
    assert padded.equal(torch.stack(expected))


def test_numpy_on_a_batch_sees_arrays(tmp_path: Path) -> None:
    arrays = [np.arange(4.0) + i for i in range(6)]
    rows = rows_of(tmp_path, arrays)
    assert (np.stack(rows.take([1, 3])) == np.stack([arrays[1], arrays[3]])).all()
    assert (np.array(rows.take([1, 3])) == np.stack([arrays[1], arrays[3]])).all()


@pytest.mark.parametrize("values", [list(range(5)), list("abcde"), [b"x", b"", b"yz", b"0", b"1"]])
def test_joining_and_converting_a_batch_sees_plain_values(tmp_path: Path, values: list[Any]) -> None:
    rows = rows_of(tmp_path, values)
    batch = rows.take([4, 1])
    if isinstance(values[0], int):
        assert torch.tensor(batch).tolist() == [4, 1]
    else:
        assert values[0][:0].join(batch) == values[4] + values[1]


def test_lists_that_are_joined_with_batches_hold_samples(tmp_path: Path) -> None:
    """Also where C code reads the items of the list on the right, which nobody has looked at."""
    rows = rows_of(tmp_path, [10 * i for i in range(5)])

    def take(*indices: int) -> Any:
        return rows.take(list(indices))

    zero = [0]
    assert take(1, 2) + take(3, 4) == [10, 20, 30, 40]
    assert zero + take(3, 4) == [0, 30, 40]
    assert take(3, 4) + zero == [30, 40, 0]
    assert sum([take(1), take(2, 3)], []) == [10, 20, 30]  # noqa: RUF017 - what people write
    zero += take(4)
    zero[:1] = take(1, 2)
    assert zero == [10, 20, 40]
    with pytest.raises(TypeError):
        operator.add((7,), take(1))
    assert default_collate(take(1) + take(2)).tolist() == [10, 20]


def test_batches_are_compared_by_their_samples(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [10 * i for i in range(5)])
    assert rows.take([1, 2]) == rows.take([1, 2])
    assert rows.take([1, 2]) != rows.take([1, 3])
    assert rows.take([1, 2]) < rows.take([1, 3])
    assert operator.eq([10, 20], rows.take([1, 2]))


def test_another_map_of_collate_functions_is_obeyed(rows: Rows) -> None:
    def doubled(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return torch.stack(list(batch)) * 2

    with_doubled = {**default_collate_fn_map, torch.Tensor: doubled}
    expected = [sample(i) for i in PICKS]
    assert same(
        collate(rows.take(PICKS), collate_fn_map=with_doubled), collate(expected, collate_fn_map=with_doubled)
    )
    assert same(
        collate(rows.take(PICKS), collate_fn_map={torch.Tensor: doubled, int: doubled_ints}),
        [torch.stack([image for image, _ in expected]) * 2, [8, 0, 18]],
    )


def doubled_ints(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return [2 * value for value in batch]


def test_a_function_registered_with_torch_is_obeyed(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    default_collate(rows.take(PICKS))
    monkeypatch.setitem(default_collate_fn_map, int, doubled_ints)
    assert default_collate(rows.take(PICKS))[1] == [8, 0, 18]
    monkeypatch.undo()
    assert default_collate(rows.take(PICKS))[1].tolist() == PICKS


def test_unstackable_rows_raise_torchs_error_with_two_names(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [{"words": torch.ones(max(i, 3))} for i in range(9)])
    assert default_collate(rows.take([0, 3]))["words"].shape == (2, 3)
    with pytest.raises(
        RuntimeError,
        match=r"each tensor to be equal size.*sample 2 of the data set has.*sample 8 of the data set",
    ):
        default_collate(rows.take([2, 3, 8]))
    with pytest.raises(RuntimeError, match=r"leaf 'words'.*pad_collate"):
        default_collate(rows.take([2, 3, 8]))
    with pytest.raises(RuntimeError, match=r"sample 12 of the data set.*sample 18 of the data set"):
        default_collate(rows.take([2, 3, 8], np.array([12, 13, 18])))


def test_what_torch_does_not_collate_raises_its_error(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [(i, None) for i in range(3)])
    with pytest.raises(TypeError, match=r"NoneType.*leaf '1' is None: leave it out"):
        default_collate(rows.take([0, 1]))


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_padded_batch_of_none_names_the_leaf(tmp_path: Path, is_listed: bool) -> None:
    rows = rows_of(tmp_path, [{"x": torch.ones(i + 1), "y": (None, 1)} for i in range(3)])
    batch = rows.take([0, 1])
    with pytest.raises(TypeError, match=r"NoneType.*leaf 'y\.0' is None: leave it out"):
        pad_collate()(list(batch) if is_listed else batch)


class Copy:
    """A data set of some samples, as the worker's batches name it."""

    opened_in = 0
    __hash__ = None  # type: ignore[assignment]  # as of a dataclass

    def __init__(self, token: str, count: int) -> None:
        self.token, self.count = token, count
        collation.receives(self)

    def __len__(self) -> int:
        return self.count

    def is_known_to_parent(self) -> bool:
        return True

    def gathered(self, positions: Any) -> list[Any]:
        return [(self.count, int(at)) for at in positions]


def arrive(token: str, count: int) -> Any:
    raw = np.array([2, 0], np.uint8).tobytes()
    return collation.arrived(token, count, "B", raw, list, 0)


@pytest.mark.parametrize("counts", [(3, 4), (4, 3)])
def test_a_batch_is_of_the_copy_of_its_length(counts: tuple[int, int]) -> None:
    kept = [Copy("two copies", count) for count in counts]
    assert [arrive("two copies", one.count)[0][0] for one in kept] == list(counts)


def test_a_batch_of_no_copy_says_what_to_do() -> None:
    kept = Copy("one copy", 3)
    for token, count, advice in (("one copy", 5, "start a new epoch"), ("no copy", 3, "keep the data set")):
        failed = arrive(token, count)
        assert isinstance(failed, ExceptionWrapper) and advice in str(failed.exc_msg)
    assert len(kept) == 3
