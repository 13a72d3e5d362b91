"""The loader in processes: what is forked, what is sent, the end of one."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from prepcache.loader import Loader

KEPT = """
import atexit, builtins, threading, numpy, torch

atexit.register(lambda: print([t.name for t in threading.enumerate() if "prepcache" in t.name]))

from prepcache.loader import Loader

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, i): return i

builtins.epoch = iter(Loader(Rows(), 2))
assert next(builtins.epoch).tolist() == [0, 1]
"""


def test_an_epoch_kept_to_the_end_of_a_process_ends_silently() -> None:
    """Its thread ends before the interpreter kills threads, which aborts in the middle of torch's code."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", KEPT], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


STUCK = """
import builtins, threading
from prepcache import loader

loader.LEAVE_S = 0.1

class Rows:
    def __len__(self): return 100
    def __getitem__(self, i):
        return i if i < 2 else threading.Event().wait()

builtins.epoch = iter(loader.Loader(Rows(), 2))
assert next(builtins.epoch).tolist() == [0, 1]
raise KeyError("left")
"""


def test_a_process_ends_in_the_middle_of_a_slow_batch() -> None:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", STUCK], env=environ, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1 and done.stderr.endswith("KeyError: 'left'\n"), done.stderr


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_epoch_does_not_go_on_in_a_forked_process() -> None:
    """The thread is not there: waiting for its batches would be for ever."""
    epoch = iter(Loader(list(range(9)), 2))
    next(epoch)
    if (pid := os.fork()) == 0:
        code = 2
        try:
            next(epoch)
        except RuntimeError as error:
            code = int("begin another one here" not in str(error))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [batch.tolist() for batch in epoch] == [[2, 3], [4, 5], [6, 7], [8]]


@pytest.mark.parametrize("send", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_loader_goes_to_another_process_as_a_dataloader_does(send: Any) -> None:
    loader = Loader(list(range(6)), 2)
    epoch = iter(loader)
    next(epoch)
    there = send(loader)
    assert [batch.tolist() for batch in there] == [[0, 1], [2, 3], [4, 5]]
    assert [batch.tolist() for batch in epoch] == [[2, 3], [4, 5]]
