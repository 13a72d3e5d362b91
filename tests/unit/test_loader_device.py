"""The loader's way to a device: every copy is made as late as it may be, by a stand-in for a GPU."""

import gc
import os
from collections import UserDict
from types import MappingProxyType
from typing import Any

import pytest
import torch

from prepcache.collate import Padded
from prepcache.loader import Loader, map_tensors
from support.artifacts import same
from support.gpu import gpu
from support.rows import Stored, rows_of, stored_images

__all__ = ["gpu"]

COUNT = 40


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return stored_images(tmp_path_factory.mktemp("stored"), COUNT)


def of_one_thread(dataset: Stored, size: int) -> list[list[torch.Tensor]]:
    return [list(batch) for batch in torch.utils.data.DataLoader(dataset, size)]


def seen(work: list[list[list[torch.Tensor]]]) -> list[list[torch.Tensor]]:
    """What the device's work has read; each piece of work is done once."""
    return [[tensor for read in batch for tensor in read] for batch in work]


@pytest.mark.parametrize("is_early", [True, False], ids=["copies at once", "copies late"])
@pytest.mark.parametrize("is_waited_for", [True, False], ids=["a step at a time", "the device behind"])
def test_what_the_device_reads_is_what_was_gathered(stored, gpu, is_waited_for, is_early):
    """Host memory is not used again before it is copied, nor the device's before it is read."""
    gpu.is_early = is_early
    loader, work = Loader(stored, 4, device="cuda"), []
    for _ in range(2):
        for batch in loader:
            work.append([gpu.read(tensor) for tensor in batch])
            del batch
            if is_waited_for:
                gpu.consumer.synchronize()
    gpu.consumer.synchronize()
    assert same(seen(work), 2 * of_one_thread(stored, 4))


def test_memory_being_copied_outlives_the_loader(stored, gpu):
    kept = list(Loader(stored, 4, device="cuda"))
    gc.collect()
    work = [[gpu.read(tensor) for tensor in batch] for batch in kept]
    gpu.consumer.synchronize()
    assert same(seen(work), of_one_thread(stored, 4))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_leaves_the_device_alone(stored, gpu):
    """To free the device's memory there, or to ask the device anything, would abort the process."""
    loader = Loader(stored, 4, device="cuda")
    epoch = iter(loader)
    batch = next(epoch)
    if (pid := os.fork()) == 0:
        code = 99
        try:
            freed = len(gpu.freed)
            del batch
            with pytest.raises(RuntimeError, match="begin another one here"):
                next(epoch)
            with pytest.raises(RuntimeError, match="copies to cuda, in the process that made it"):
                iter(loader)
            del epoch, loader
            gc.collect()
            code = len(gpu.freed) - freed
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(list(epoch)) == COUNT // 4 - 1


def test_a_device_without_a_number_is_the_one_that_was_current(stored, gpu):
    gpu.current = 1
    loader = Loader(stored, 4, device="cuda")
    gpu.current = 0
    list(loader)
    assert gpu.devices == {1}


class Batched(UserDict[str, Any]):
    """A batch as tokenizers make it: a mapping that is no dict, and holds more than its items."""

    def __init__(self, data: dict[str, Any], note: str) -> None:
        super().__init__(data)
        self.note = note


def test_every_tensor_in_containers_of_any_type_is_sent():
    inner = {"c": [torch.zeros(1), ("x", "y")], "d": Padded(torch.ones(1), None)}
    batch = Batched({"a": torch.ones(2), "b": inner}, "note")
    sent = map_tensors(batch, lambda tensor: tensor + 1)
    assert type(sent) is Batched and sent.note == "note"
    added = {"c": [torch.ones(1), ("x", "y")], "d": Padded(torch.full((1,), 2.0), None)}
    assert same(dict(sent), {"a": torch.full((2,), 2.0), "b": added})
    assert same(dict(batch), {"a": torch.ones(2), "b": inner})
    fixed = map_tensors(MappingProxyType({"a": torch.ones(1)}), lambda tensor: tensor + 1)
    assert same(fixed, {"a": torch.full((1,), 2.0)})


def test_a_packed_sequence_keeps_its_sizes_on_the_cpu():
    """torch reads them there."""
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 3), torch.ones(5, 3)], enforce_sorted=False)
    moved = map_tensors([packed], lambda tensor: tensor.to("meta"))[0]
    assert type(moved) is type(packed)
    assert moved.data.is_meta and moved.sorted_indices.is_meta and moved.unsorted_indices.is_meta
    assert not moved.batch_sizes.is_meta
    ordered = torch.nn.utils.rnn.pack_sequence([torch.ones(5), torch.ones(2)])
    assert map_tensors(ordered, lambda tensor: tensor.to("meta")).sorted_indices is None


def test_batches_are_sent_to_devices_of_any_type(tmp_path):
    dataset = Stored(rows_of(tmp_path, [({"a": torch.ones(2) * i}, i) for i in range(5)]))
    for named, number in Loader(dataset, 3, device="meta"):
        assert named["a"].device.type == number.device.type == "meta"
        assert named["a"].shape == (len(number), 2)
    assert [number.tolist() for _, number in Loader(dataset, 3, device="cpu")] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_a_batch_for_the_cpu_is_what_the_collate_function_gave(device):
    given: list[Any] = []

    def collate(samples: list[int]) -> Any:
        given.append(MappingProxyType({"a": torch.tensor(samples)}))
        return given[-1]

    loader = Loader(list(range(4)), 2, device=device, collate_fn=collate)
    assert [id(batch) for batch in list(loader)] == [id(batch) for batch in given]


@pytest.mark.parametrize("device", ["xpu", "cuda:0"])
def test_a_missing_device_is_an_error_at_once(stored, device):
    if getattr(torch, device.partition(":")[0]).is_available():
        pytest.skip("needs a machine without the device")
    with pytest.raises((RuntimeError, AssertionError)):
        Loader(stored, device=device)
