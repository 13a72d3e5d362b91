"""Trees: what a sample may be, how it comes back, and how refusals name the leaf."""

import collections
import dataclasses
import enum
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from prepcache.artifact import sample_tree
from prepcache.artifact.writer import Writer
from prepcache.errors import SampleError
from support.artifacts import RECIPE, digest, write
from support.programs import python


class Pair(NamedTuple):
    x: Any
    y: Any


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    pass


@dataclasses.dataclass
class Row:
    x: int


@pytest.mark.parametrize(("left", "right"), [
    ({1: 0}, {True: 0}), ((1,), [1]), (Pair(1, 2), (1, 2)), (1, 1.0), (1, True), (np.float64(1), 1.0),
    (np.zeros(2), np.zeros((2, 1))), (np.zeros(()), np.float64(0)), (torch.zeros(2), np.zeros(2, "f4")),
    (((1,), 2), ((1, 2),)), ([[], 1], [[1]]),
], ids=repr)  # fmt: skip
def test_trees_that_differ_do_not_share_a_group(left, right):
    assert sample_tree.signature(left)[0] != sample_tree.signature(right)[0]


CYCLE: list[Any] = []
CYCLE.append(CYCLE)

REFUSED = [
    ({"a": [1, object()]}, "sample['a'][1]", "a value of type object cannot be stored"),
    (iter(()), "sample", "namedtuple of those; with expand=True a function may yield several samples"),
    ((1, {2}), "sample[1]", "set"),
    (Pair(1, Colour.RED), "sample.y", "int(x)"),
    ([Text("a")], "sample[0]", "str(x)"),
    (np.str_("a"), "sample", "str(x)"),
    (np.array([object()]), "sample", "dtype('O')"),
    (np.zeros(2, "V0"), "sample", "values of dtype"),
    ([np.zeros(2, "M8[s]")], "sample[0]", "convert it to numbers"),
    (np.array(["a"]), "sample", "x.tolist()"),
    (np.datetime64("2020-02-29"), "sample", "numpy.datetime64 cannot be stored"),
    (np.timedelta64(1, "s"), "sample", "convert it to numbers"),
    (np.longdouble(1), "sample", "x.astype(float)"),  # its tolist() is itself
    (np.ma.masked_array([1], [True]), "sample", "x.filled()"),
    (2**63, "sample", "return str(x)"),
    ([np.zeros(2, [("a", "i4")])], "sample[0]", "values of dtype"),
    (torch.zeros(2, requires_grad=True), "sample", "x.detach()"),
    (torch.nn.Parameter(torch.zeros(2)), "sample", "x.detach()"),
    (torch.zeros(2, device="meta"), "sample", "x.cpu()"),
    (torch.eye(2).to_sparse(), "sample", "to_dense()"),
    (torch.empty(2, dtype=torch.bits8), "sample", "bits8"),
    ({(1, 2): 3}, "sample", "dict key"),
    ({2**63: 3}, "sample", "64 bits"),
    (collections.namedtuple("Wide", [f"f{n}" for n in range(1025)])(*range(1025)), "sample", "1024 fields"),
    (collections.defaultdict(list), "sample", "dict(x)"),
    ({"a": collections.OrderedDict(b=1)}, "sample['a']", "dict(x)"),
    ([collections.UserDict(a=1)], "sample[0]", "return tensors"),
    (torch.zeros(2, 2).max(0), "sample", "tuple(x)"),
    (CYCLE, "sample[0][0]", "contain themselves"),
    (1j, "sample", "return tensors, arrays, real numbers"),
    (lambda: 1, "sample", "function"),
    (Image.new("RGB", (2, 2)), "sample", "return numpy.array(x)"),
    (Row(1), "sample", "return dataclasses.asdict(x)"),
    (type("Series", (), {"__array__": None})(), "sample", "return numpy.array(x)"),  # as a row of pandas
]


@pytest.mark.filterwarnings(
    "ignore:.*quantize:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)
def test_what_no_column_holds_is_refused_by_path():
    """A refusal names the leaf and what to return instead, and the writer keeps what it had."""
    writer = Writer(RECIPE)
    writer.add(digest(0), [1], 0.0)
    for sample, path, remedy in REFUSED:
        with pytest.raises(SampleError) as caught:
            writer.add(digest(1), [1, sample], 0.0)
        assert caught.value.leaf.startswith(path)
        assert remedy in caught.value.message
        assert (writer.items, writer.rows) == (1, 1)


def test_a_namedtuple_of_an_unloaded_module_is_not_imported(tmp_path):
    """A file cannot make a process import a module; the stand-in has the fields and pickles."""
    program = (
        "import sys; from prepcache import artifact; import pickle\n"
        "found = artifact.open(sys.argv[1]).sample(0)\n"
        "assert (type(found).__name__, found._fields, found.x) == ('Pair', ('x', 'y'), 7)\n"
        "again = pickle.loads(pickle.dumps(found))\n"
        "assert again == found and type(again) is type(found)\n"
        "assert 'torch' not in sys.modules and 'antigravity' not in sys.modules\n"
    )
    pair = collections.namedtuple("Pair", "x y", module="antigravity")
    write(tmp_path / "a", [pair(7, "y")])
    python("-c", program, tmp_path / "a")


def test_a_namedtuple_whose_fields_changed_is_not_mistaken():
    """A class of the same address with other fields is not used: values stay under their names."""
    stand_in = sample_tree.named_class(__name__, "Pair", ("y", "x"))
    assert stand_in is not Pair and stand_in._fields == ("y", "x")
    assert sample_tree.named_class(__name__, "Pair", ("x", "y")) is Pair
    assert pickle.loads(pickle.dumps(stand_in(1, 2))) == (1, 2)


@pytest.mark.parametrize(
    "spec",
    [1, -1, True, None, "x", [], ["list"], ["list", 0], ["tuple", [1, 0]], ["tuple", [0, 0]], ["set", [0]],
     ["list", [0], 1], ["dict", [["a"]]], ["dict", [["a", 0], ["a", 1]]], ["dict", [[1.5, 0]]],
     ["dict", [[[], 0]]], ["named", "m", "N", ["a"], [0, 1]], ["named", "m", "N", ["a b"], [0]],
     ["named", "m", "N", ["class"], [0]], ["named", "m", "N", ["_a"], [0]], ["named", "m", "N", [1], [0]],
     ["named", "m", 1, ["a"], [0]], ["named", "m", "N", ["a", "a"], [0, 1]],
     ["named", "m", "N", [f"f{n}" for n in range(1025)], [["tuple", []]] * 1025]],
    ids=repr,
)  # fmt: skip
def test_a_tree_from_a_file_is_checked(spec):
    with pytest.raises((ValueError, TypeError)):
        sample_tree.count_leaves(spec)


def test_a_tree_of_any_depth_is_refused_without_recursing():
    spec: Any = 0
    for _ in range(500):
        spec = ["list", [spec]]
    with pytest.raises(ValueError, match="no sample has"):
        sample_tree.count_leaves(spec)


def test_a_sample_is_copied_without_torchs_threads():
    """Which would spin after each copy, beside the function."""
    made = (
        "import os, numpy, torch; torch.set_num_threads(4); sample = torch.from_numpy(numpy.zeros(1 << 20))\n"
    )
    count = "from prepcache.artifact.sample_tree import copied; print(len(os.listdir('/proc/self/task')))\n"
    counts = python("-c", f"{made}{count}copied(sample)\n{count}").stdout.split()
    assert counts[0] == counts[1]
