"""Padding and packing: which leaves, what beside them, and what is refused. Values: see the property test."""

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from prepcache.collate import Masked, Padded, pack_collate, pad_collate
from support.artifacts import same
from support.rows import rows_of

LENGTHS = [3, 0, 5, 1]


@pytest.fixture(params=["batch", "list"])
def take(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Makes a batch of samples: gathered, or a plain list."""

    def make(samples: list[Any]) -> Any:
        return (
            rows_of(tmp_path, samples, 2).take(range(len(samples))) if request.param == "batch" else samples
        )

    return make


def test_sequences_are_padded_and_the_rest_collated_as_ever(take):
    samples = [{"tokens": torch.arange(n), "image": torch.ones(2, 2) * n, "name": str(n)} for n in LENGTHS]
    made = pad_collate(-1, multiple_of=4, also="lengths")(take(samples))
    assert isinstance(made["tokens"], Padded)
    assert made["tokens"].values.shape == (4, 8)
    assert made["tokens"].values[0].tolist() == [0, 1, 2, -1, -1, -1, -1, -1]
    assert made["tokens"].lengths.tolist() == LENGTHS
    assert made["image"].shape == (4, 2, 2)
    assert made["name"] == ["3", "0", "5", "1"]


def test_a_mask_says_which_elements_are_no_padding(take):
    made = pad_collate(also="mask", side="left")(take([torch.arange(n) for n in (2, 0, 1)]))
    assert isinstance(made, Masked)
    assert made.values.tolist() == [[0, 1], [0, 0], [0, 0]]
    assert made.mask.tolist() == [[True, True], [False, False], [False, True]]


def test_the_axis_of_a_named_leaf_is_padded(take):
    samples = [(torch.full((2, n), n), torch.arange(n)) for n in LENGTHS[:1] + LENGTHS[2:]]
    made = pad_collate(7, leaves={"0": -1, "1": 0})(take(samples))
    assert made[0].shape == (3, 2, 5)
    assert made[0][0].tolist() == [[3, 3, 3, 7, 7]] * 2
    assert made[1].shape == (3, 5)


@pytest.mark.parametrize(
    ("collate", "shapes", "axis"),
    [
        (pad_collate(leaves={"": 0}), [(2, 3), (3, 4)], 0),
        (pad_collate(leaves={"": 1}), [(2, 3), (3, 3)], 1),
        (pack_collate(leaves=[""]), [(2, 3), (2, 4)], 0),
    ],
    ids=["pad", "pad another axis", "pack"],
)
def test_rows_that_differ_along_another_axis_are_refused(take, collate, shapes, axis):
    with pytest.raises(RuntimeError, match=rf"^rows of leaf .* along another axis than {axis}"):
        collate(take([torch.ones(shape) for shape in shapes]))


def test_padding_that_the_dtype_cannot_hold_is_refused(take):
    with pytest.raises(RuntimeError, match="without overflow"):
        pad_collate(-1e9)(take([torch.ones(n, dtype=torch.float16) for n in LENGTHS]))


def test_rows_of_different_kinds_are_refused_by_name():
    for other in (torch.arange(3), torch.ones(2, 3)):
        with pytest.raises(RuntimeError, match="leaf 'x' differ in dtype, or along another axis than 0"):
            pad_collate(leaves=["x"])([{"x": torch.ones(2)}, {"x": other}])


@pytest.mark.parametrize("collate", [pad_collate(), pack_collate()], ids=["pad", "pack"])
def test_lists_of_different_lengths_are_refused_with_a_remedy(take, collate):
    words = r"leaf 'ids\.\d' is in \d of \d samples: .* return numpy.array\(x\)"
    with pytest.raises(RuntimeError, match=words):
        collate(take([{"ids": list(range(n))} for n in (3, 5, 1)]))


def test_large_rows_are_padded_in_recycled_memory(tmp_path):
    samples = [torch.arange(20_000 + i) for i in range(4)]
    rows = rows_of(tmp_path, samples)
    pad = pad_collate(-1)
    addresses = set()
    for _ in range(5):
        made = pad(rows.take([3, 0]))
        assert same(made, pad([samples[3], samples[0]]))
        addresses.add(made.data_ptr())
    assert len(addresses) <= 2


def test_collations_travel_to_workers():
    for collate in (pad_collate(1, side="left", leaves={"a": -1}), pack_collate(leaves=["a"])):
        assert pickle.loads(pickle.dumps(collate)) == collate


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"side": "top"}, ValueError, "side must be 'left' or 'right', not 'top'"),
        ({"also": "len"}, ValueError, "also must be 'lengths', 'mask' or None, not 'len'"),
        ({"multiple_of": 0}, ValueError, "multiple_of must be positive, not 0"),
        ({"leaves": 5}, TypeError, "leaves must be a list of names, not a int: 5"),
        ({"leaves": "tokens"}, TypeError, "leaves must be a list of names, not a str: 'tokens'"),
        ({"leaves": {"mask": "1"}}, TypeError, "leaves= names an axis by a number: 'mask' has '1'"),
    ],
)
def test_meaningless_arguments_are_refused_by_name(arguments, error, words):
    with pytest.raises(error, match=f"^{words}$"):
        pad_collate(**arguments)


def test_packing_along_another_axis_than_the_first_is_refused():
    with pytest.raises(TypeError, match="only first axes are packed"):
        pack_collate(leaves={"mel": 1})  # type: ignore[arg-type]


def test_an_unknown_leaf_is_refused_with_the_known_ones(take):
    with pytest.raises(KeyError, match=r"no leaf \['tokenz'\]; they have \['tokens', 'label'\]"):
        pad_collate(leaves=["tokenz"])(take([{"tokens": torch.arange(n), "label": n} for n in LENGTHS]))
    with pytest.raises(KeyError, match=r"no leaf \['sample'\]; they have \[''\]; '' is the sample"):
        pad_collate(leaves={"sample": 1})(take([torch.ones(2, n) for n in LENGTHS]))


def test_an_axis_that_a_leaf_lacks_is_refused(take):
    samples = [(torch.ones(2, n), torch.tensor(n)) for n in LENGTHS]
    with pytest.raises(ValueError, match=r"leaf '0' is 2-dimensional, but leaves= names its axis 2"):
        pad_collate(leaves={"0": 2})(take(samples))
    with pytest.raises(ValueError, match=r"leaf '1' is 0-dimensional, but leaves= names its axis 0"):
        pad_collate(leaves={"0": -1, "1": 0})(take(samples))


def test_another_axis_than_the_first_is_padded_by_name(take):
    samples = [{"ids": torch.arange(n), "mel": torch.full((3, n), n), "text": "a" * n} for n in LENGTHS]
    made = pad_collate(leaves={"mel": 1, "ids": 0})(take(samples))
    assert (made["ids"].shape, made["mel"].shape) == ((4, 5), (4, 3, 5))


def test_mappings_with_more_than_items_are_kept():
    samples = [defaultdict(list, {"x": torch.ones(n)}) for n in (1, 2)]
    batch = pad_collate()(samples)
    assert type(batch) is defaultdict and batch.default_factory is list
    assert batch["x"].tolist() == [[1, 0], [1, 1]]
