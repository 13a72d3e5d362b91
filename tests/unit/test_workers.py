"""Crews: the same parts whoever calls the function, in order, with errors and large items intact."""

import os
import subprocess
import sys
import threading
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prepcache
from prepcache.fill import call, workers
from prepcache.fill.call import Job, Part, paths_in
from prepcache.fill.workers import Forked, InExecutor, InProcess, Workers
from prepcache.keys.markers import Plain, Tree
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import recipe
from support.programs import python

Make = Callable[[Job, Callable[[int], Any]], Workers]


@pytest.fixture(params=["alone", "forked", "hired"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    with ThreadPoolExecutor(2) as pool:
        crews: list[Workers] = []

        def build(job: Job, item_of: Callable[[int], Any]) -> Workers:
            kinds: dict[str, Callable[[], Workers]] = {
                "alone": lambda: InProcess(job, item_of),
                "forked": lambda: Forked(2, job, item_of),
                "hired": lambda: InExecutor(pool, job, item_of),
            }
            crews.append(kinds[request.param]())
            return crews[-1]

        yield build
        for crew in crews:
            crew.close()


def all_parts(crew: Workers, chunks: list[list[int]]) -> dict[int, list[Part]]:
    parts: dict[int, list[Part]] = {}
    for chunk in chunks:
        crew.submit(chunk)
    while crew.pending:
        for part in crew.take():
            parts.setdefault(part.index, []).append(part)
    return parts


SCALE: ContextVar[int] = ContextVar("SCALE", default=1)


def test_context_variables_are_those_of_whoever_hands_items_in(make):
    """They count in the recipe as they are there."""
    crew = make(Job(lambda item: item * SCALE.get(), {}), lambda index: index)
    token = SCALE.set(10)
    try:
        parts = all_parts(crew, [[1], [2]])
    finally:
        SCALE.reset(token)
    assert {index: part.samples for index, (part,) in parts.items()} == {1: [10], 2: [20]}


def test_an_error_of_one_item_leaves_the_others(make):
    def fails(item: int) -> int:
        if item == 2:
            raise KeyError("two")
        return item

    parts = all_parts(make(Job(fails, {}), lambda index: index), [[0, 1, 2, 3]])
    assert isinstance(parts[2][0].error, KeyError)
    assert [parts[index][0].samples for index in (0, 1, 3)] == [[0], [1], [3]]


def test_bytes_that_other_threads_read_are_not_the_functions():
    """As those that commit what was made before."""

    def called(item):
        thread = threading.Thread(target=os.preadv, args=(fd, buffers, 0), name="prepcache-commits")
        thread.start()
        thread.join()
        return item

    fd = os.open("/dev/zero", os.O_RDONLY)
    buffers = [bytearray(1 << 16)]
    job = Job(called, {}, observer=Observer(recipe(len)))
    for item in range(5):
        assert [part.notices for some in job.made(enumerate([item])) for part in some] == [()]
    os.close(fd)


def test_few_large_items_are_in_memory_at_once(monkeypatch):
    """Of a dataset that loads them as it is asked."""
    monkeypatch.setattr(call, "TOGETHER_BYTES", 1000)
    read: list[int] = []
    ahead: list[int] = []

    def load(index: int) -> Any:
        read.append(index)
        return np.full(50, index)

    def called(item: Any) -> Any:
        ahead.append(len(read) - int(item[0]))
        return int(item[0])

    crew = InProcess(Job(called, {}), load)
    assert len(all_parts(crew, [[*range(100)]])) == 100
    crew.close()
    assert max(ahead) < 5


Row = namedtuple("Row", ["a", "t"])


@pytest.mark.parametrize("is_expanded", [False, True])
def test_a_function_may_use_its_memory_again(make, is_expanded):
    memory = threading.local()  # a pool's threads have each their own

    def filled(item: int) -> Any:
        if not hasattr(memory, "array"):
            memory.array, memory.tensor, memory.words = np.zeros(2), torch.zeros(2), []
        memory.array[:] = item
        memory.tensor.fill_(item)
        memory.words[:] = [item]
        return {
            "row": Row(memory.array, memory.tensor),
            "words": (memory.words, "x"),
            "view": memory.array[1:],
        }

    def several(item: int) -> Iterator[Any]:
        for step in range(3):
            yield filled(10 * item + step)

    crew = make(Job(several if is_expanded else filled, {}, is_expanded=is_expanded), lambda index: index)
    parts = all_parts(crew, [[*range(20)]])
    for index, (part,) in parts.items():
        assert part.error is None
        numbers = [10 * index + step for step in range(3)] if is_expanded else [index]
        assert [
            (s["row"].a.tolist(), s["row"].t.tolist(), list(s["words"][0]), s["view"].tolist())
            for s in part.samples
        ] == [([n, n], [n, n], [n], [n]) for n in numbers]
    assert len(parts) == 20


def test_large_items_come_in_parts_in_order(make, monkeypatch):
    monkeypatch.setattr(call, "PART_BYTES", 1000)

    def many(item: int) -> Iterator[Any]:
        for number in range(item):
            yield np.full(50, number)

    parts = all_parts(make(Job(many, {}, is_expanded=True), lambda index: index * 20), [[0, 1], [2]])
    assert parts[0][0].samples == []
    for index in (1, 2):
        assert len(parts[index]) > 2
        assert [part.is_last for part in parts[index]] == [False] * (len(parts[index]) - 1) + [True]
        numbers = [int(sample[0]) for part in parts[index] for sample in part.samples]
        assert numbers == list(range(index * 20))


def test_the_config_and_contents_reach_the_function(make, tmp_path):
    (tmp_path / "a").write_text("text")
    job = Job(lambda item, suffix: item + suffix, {"suffix": "!"}, read="text")
    assert all_parts(make(job, lambda index: tmp_path / "a"), [[0]])[0][0].samples == ["text!"]


def test_an_unpicklable_exception_still_says_what_it_was():
    class Local(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("no")

    def fails(item: int) -> None:
        raise Local("the reason")

    crew = Forked(1, Job(fails, {}), lambda index: index)
    (part,) = all_parts(crew, [[0]])[0]
    crew.close()
    assert "Local: the reason" in str(part.error)
    assert any("in a preprocessing worker" in note for note in part.error.__notes__)  # type: ignore[union-attr]


def test_closing_with_work_in_hand_ends_the_workers():
    crew = Forked(2, Job(lambda item: threading.Event().wait(60), {}), lambda index: index)
    crew.submit([0, 1])
    crew.submit([2])
    crew.close()
    assert crew.pending == 0


KILLED = """
import os, signal, sys
from prepcache.fill.call import Job
from prepcache.fill.workers import Forked

def dies(item):
    if os.fork() == 0:
        os.close(1)
        os.read(0, 1)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)

crew = Forked(1, Job(dies if sys.argv[1] == "worker" else lambda item: item, {}), lambda index: index)
crew.submit([1])
(part,) = crew.take()
if sys.argv[1] == "job":
    dies(1)
print(part.error)
"""


@pytest.mark.parametrize(("who", "said"), [("job", ""), ("worker", "(signal SIGKILL)")])
def test_a_death_is_seen_while_grandchildren_live_on(who, said):
    """A killed job leaves no worker, and a worker that is killed is not waited for."""
    command = [sys.executable, "-c", KILLED, who]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdin is not None and job.stdout is not None
        ending = threading.Timer(60, job.stdin.close)
        ending.start()
        told = job.stdout.read()  # to the end: who could still say something is gone
        has_ended = not ending.finished.is_set()
        ending.cancel()
    assert has_ended and said in told


def test_nested_paths_in_an_item_are_found(tmp_path, monkeypatch):
    """And of text only what its digest counts: names of files that look like paths."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "labels"):
        Path(name).write_text("x")
    Path("folder.d").mkdir()
    item = {"image": tmp_path, "more": [("a.txt", 3)], "text": Plain("b.txt"), "folder": Tree("c")}
    assert paths_in(item) == [str(tmp_path), "a.txt", "c"]
    assert paths_in(["labels", "folder.d", "gone.txt", "a\0.txt"]) == []


@dataclass(frozen=True)
class Sample:
    image: Path
    boxes: dict[str, Any]
    text: str = ""
    pixels: Any = None


def test_paths_in_an_object_are_those_that_its_digest_counts(tmp_path):
    image, mask = tmp_path / "a.png", tmp_path / "a.mask"
    for path in (image, mask):
        path.write_text("x")
    item = Sample(image, {"first": [mask]}, "text", np.zeros(3))
    assert sorted(paths_in((item, 3))) == sorted(map(str, (image, mask)))
    assert paths_in(object()) == []


FILLS = """
import os, signal, sys
from prepcache.fill.call import Job
from prepcache.fill.workers import Forked

print("said before")  # stays in the buffer: standard output is no terminal
if "none" in sys.argv:
    sys.stdout = None
if "odd" in sys.argv:
    sys.stdout = dict()
    sys.stderr.flush = lambda: 1 / 0
if "ignored" in sys.argv:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
crew = Forked(2, Job(lambda item: os._exit(3) if item == 9 else item, {}), lambda index: index)
parts = []
try:
    crew.submit([1, 2])
    crew.submit([9] if "ignored" in sys.argv else [3])
    while crew.pending:
        parts += crew.take()
    crew.close()
finally:
    print(os.getpid(), [str(part.error) for part in parts if part.error], file=sys.stderr)
"""


@pytest.mark.parametrize("how", ["none", "gone", "odd", "there", "ignored"])
def test_only_the_job_goes_on_after_a_fill(how):
    """A worker that cannot flush neither returns to what forked it nor prints what it inherited."""
    read, write = os.pipe()
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", FILLS, how]
    job = subprocess.Popen(command, env=environ, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    if how == "gone":
        os.close(read)
    _, err = job.communicate(timeout=60)
    said = [line for line in err.splitlines() if line[:1].isdigit()]
    assert [line.split()[0] for line in said] == [str(job.pid)], err
    if how == "ignored":
        assert "a preprocessing worker died (cause unknown)" in said[0]
    if how != "gone":
        with open(read) as out:
            assert out.read() == "said before\n"


DIES = """
import os, sys, time
from prepcache.fill.call import Job
from prepcache.fill.workers import Forked

def at_nine(item):
    if item == 9:
        exec(sys.argv[1])
    return item

crew = Forked(1, Job(at_nine, {}), lambda index: index)
crew.submit(range(20))
failed = []
while not failed:
    failed = [part for part in crew.take() if part.error is not None]
part = failed[0]
crew.close()
print(part.index, type(part.error).__name__, part.error)
"""


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os._exit(3)", "9 PreprocessError a preprocessing worker died (exit code 3): out of memory, or a"),
        ("os.abort()", "9 PreprocessError a preprocessing worker died (signal SIGABRT): out of memory, or a"),
        ("sys.exit(4)", "9 SystemExit 4"),
        ("raise KeyboardInterrupt", "9 KeyboardInterrupt "),
    ],
)
def test_the_item_is_named_at_which_a_worker_ended_and_how(end, told):
    """However many of its chunk it had made by then, and not sent."""
    assert python("-c", DIES, end).stdout.startswith(told)


ITEMS = 60


def made(item: int) -> dict[str, Any]:
    """Arrays and tensors of all sizes and layouts."""
    return {
        "array": np.full((item % 7, 100), item, np.int64),
        "tensor": torch.full((300 * (item % 5),), item, dtype=torch.bfloat16),
        "one": torch.arange(4.0).view(1, 4)[:, item % 4],  # contiguous, with a stride of 4
        "columns": np.asfortranarray(np.arange(600).reshape(20, 30) + item),
        "large": np.full(2000, item) if item % 9 == 0 else None,
        "name": f"item {item}",
    }


def is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other) and one.dtype == other.dtype
    return bool(one == other)


@pytest.mark.parametrize("waiting_bytes", [0, 12288])
def test_samples_arrive_as_they_were_made(monkeypatch, waiting_bytes):
    monkeypatch.setattr(workers, "WAITING_BYTES", waiting_bytes)
    crew = Forked(2, Job(made, {}), lambda index: index)
    parts = all_parts(crew, [list(range(first, first + 4)) for first in range(0, ITEMS, 4)])
    crew.close()
    assert parts.keys() == set(range(ITEMS))
    for index, (part,) in parts.items():
        (sample,) = part.samples
        wanted = made(index)
        assert sample.keys() == wanted.keys()
        assert all(is_equal(sample[name], wanted[name]) for name in wanted)
        sample["tensor"] += 1  # it may be written to


def product(x: int) -> torch.Tensor:
    return torch.full((8, 8), 1.01) @ torch.full((8, 8), float(x))


def products(x: int) -> Iterator[torch.Tensor]:
    yield product(x)
    yield product(x)


def interrupted(x: int) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_on_access_shows_the_line_that_asked(monkeypatch):
    monkeypatch.setenv("PREPCACHE", "off")
    ds = prepcache.CachedDataset([1], interrupted, code=None, version=1, lazy=True, progress=False)
    expanded = prepcache.CachedDataset([1], products, expand=True, code=None, version=1, progress=False)
    expanded._samples._view = None  # as where it was sent, and an artifact is gone by then
    monkeypatch.setattr("prepcache.dataset.ItemHasher.digest_many", lambda self, items: interrupted(0))
    monkeypatch.setattr("prepcache.fill.filler.prepare", lambda *_: interrupted(0))
    opening = (lambda: prepcache.CachedDataset([1], product),)
    asking = (lambda: ds[0], lambda: ds.__getitems__([0]), lambda: ds.prepare(), lambda: len(expanded))
    for ask in (*asking, lambda: expanded[0], *opening):
        with pytest.raises(KeyboardInterrupt) as caught:
            ask()
        assert len(traceback.extract_tb(caught.value.__traceback__)) == 3, "two lines here, and one of ours"


@pytest.mark.parametrize("is_expanded", [False, True])
def test_a_step_in_lower_precision_around_is_not_the_functions(is_expanded):
    """A lazy data set is read in the middle of one, and its samples are everybody's."""
    job = Job(products if is_expanded else product, {}, is_expanded)
    expected = job.call(0, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = job.call(0, 3)
        assert product(3).dtype == torch.bfloat16, "as it was, afterwards"
    assert [sample.dtype for sample in found] == [torch.float32] * len(expected)
    assert all(map(torch.equal, found, expected))
