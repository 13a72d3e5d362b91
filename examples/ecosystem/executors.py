"""Preprocessing on an engine that you have: dask, loky, Slurm by submitit, or Ray.

`executor=` takes what has `submit` and returns futures of `concurrent.futures`, as dask and loky do. For
engines with handles of their own, `Engine` is all that is needed.

python executors.py dask|loky|submitit|ray
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import prepcache


class Engine(Executor):
    """An engine as an executor.

    Args:
        start: starts a call, and returns what `result` waits for.
        workers: how many calls run at once.
    """

    def __init__(self, start: Callable[..., Any], result: Callable[[Any], Any], workers: int) -> None:
        self._start, self._result = start, result
        self._max_workers = workers
        self._waiting = ThreadPoolExecutor(2 * workers)

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._waiting.submit(lambda: self._result(self._start(call, *args, **kwargs)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._waiting.shutdown(wait, cancel_futures=cancel_futures)


@contextlib.contextmanager
def with_dask() -> Iterator[Executor]:
    from distributed import Client

    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        yield client.get_executor()


@contextlib.contextmanager
def with_loky() -> Iterator[Executor]:
    from loky import get_reusable_executor

    executor = get_reusable_executor(max_workers=2)
    yield executor
    executor.shutdown()


@contextlib.contextmanager
def with_submitit() -> Iterator[Executor]:
    from submitit import AutoExecutor, Job

    slurm = AutoExecutor("slurm-logs")  # processes of this machine where there is no Slurm
    slurm.update_parameters(timeout_min=60, cpus_per_task=1)
    with Engine(slurm.submit, Job.result, workers=2) as engine:
        yield engine


@contextlib.contextmanager
def with_ray() -> Iterator[Executor]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
    with Engine(lambda call, *args: ray.remote(call).remote(*args), ray.get, workers=2) as engine:
        yield engine
    ray.shutdown()


def word_lengths(path: Path) -> list[int]:
    return [len(word) for word in path.read_text().split()]


def main(name: str) -> prepcache.CachedDataset[Any]:
    files = sorted(Path("corpus").glob("*.txt"))
    with globals()[f"with_{name}"]() as executor:
        return prepcache.CachedDataset(files, word_lengths, executor=executor, progress=False)


if __name__ == "__main__":
    data_set = main(sys.argv[1])
    report = data_set.report()
    print(report.hit, report.computed, sum(map(len, data_set)))
