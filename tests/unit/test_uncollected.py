"""The cyclic garbage collector is off for a while, and nobody's choice of it is changed by that."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from prepcache.uncollected import freeze, uncollected


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    gc.enable()
    gc.unfreeze()
    yield
    gc.enable()
    gc.freeze()  # as conftest.py does


def test_it_is_off_for_a_while_and_on_again_also_after_an_error() -> None:
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled(), "the outer one still loads"
    assert gc.isenabled()
    with pytest.raises(ImportError), uncollected():
        raise ImportError("a module that is broken")
    assert gc.isenabled()


def test_a_job_that_turned_it_off_finds_it_off() -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()


def test_of_two_threads_the_last_turns_it_on_again() -> None:
    is_in, may_end = threading.Event(), threading.Event()

    def loads() -> None:
        with uncollected():
            is_in.set()
            may_end.wait()

    other = threading.Thread(target=loads)
    with uncollected():
        other.start()
        is_in.wait()
    assert not gc.isenabled(), "the other one still loads"
    may_end.set()
    other.join()
    assert gc.isenabled()


@pytest.mark.parametrize("is_on", [True, False])
def test_a_process_forked_meanwhile_has_the_jobs_choice(is_on: bool) -> None:
    if not is_on:
        gc.disable()
    codes: list[int] = []

    def forks() -> None:
        child = os.fork()
        if not child:
            is_right = gc.isenabled() is is_on
            with uncollected():
                is_right = is_right and not gc.isenabled()
            os._exit(0 if is_right and gc.isenabled() is is_on else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with uncollected():
        other = threading.Thread(target=forks)
        other.start()
        other.join()
        assert not gc.isenabled(), "the parent still loads"
    assert codes == [0]


def test_what_there_is_is_left_alone_until_the_last_thaws() -> None:
    first, second = freeze(), freeze()
    assert gc.get_freeze_count()
    first()
    assert gc.get_freeze_count(), "the other one's workers still live"
    second()
    assert not gc.get_freeze_count()
    freeze()()
    assert not gc.get_freeze_count()


def test_what_a_job_has_frozen_stays_frozen() -> None:
    gc.freeze()
    freeze()()
    assert gc.get_freeze_count()


def test_what_a_job_freezes_meanwhile_stays_frozen() -> None:
    thaw = freeze()
    kept = [[] for _ in range(1000)]
    gc.freeze()
    thaw()
    assert gc.get_freeze_count() >= len(kept)


def test_what_is_made_meanwhile_is_collected() -> None:
    class Knot:
        pass

    thaw = freeze()
    knot = Knot()
    knot.itself = knot  # type: ignore[attr-defined]
    seen = weakref.ref(knot)
    del knot
    gc.collect()
    assert seen() is None
    thaw()


def test_a_process_forked_meanwhile_leaves_it_alone_for_good() -> None:
    thaw = freeze()
    child = os.fork()
    if not child:
        freeze()()  # workers of its own
        os._exit(0 if gc.get_freeze_count() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thaw()


def test_a_public_name_is_loaded_so() -> None:
    """One collection may begin, and end, once it is on again; without the pause there are dozens."""
    job = (
        "import gc, numpy, torch, prepcache\n"
        "during = []\n"
        "gc.callbacks.append(lambda phase, told: during.append(told['generation']))\n"
        "prepcache.CachedDataset\n"
        "gc.callbacks.clear()\n"
        "assert gc.isenabled() and len(during) <= 2, during\n"
    )
    done = subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
