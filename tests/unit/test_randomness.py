"""Draws from global generators are reported by name, and undone."""

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from prepcache.fill import recipe_guard
from prepcache.keys import randomness
from prepcache.keys.encoding.objects import bits_of
from support.programs import python

DRAWS = {
    "random": lambda n: [random.random() for _ in range(n)],
    "numpy.random": lambda n: np.random.rand(n),
    "torch": lambda n: torch.rand(n),
}
SEEDS = {
    "random": lambda: random.seed(987),
    "numpy.random": lambda: np.random.seed(987),
    "torch": lambda: torch.manual_seed(987),
}


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts away from the states that other tests seed, and from threads of the test runner."""
    frames = sys._current_frames
    runners = frames().keys() - {threading.get_ident()}
    monkeypatch.setattr(
        sys, "_current_frames", lambda: {k: v for k, v in frames().items() if k not in runners}
    )
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_and_a_seed_are_reported_by_name(name):
    for use in (lambda: DRAWS[name](1), SEEDS[name]):
        with randomness.Guard() as guard:
            use()
        assert guard.drawn == {name}


HELD = {
    "Random": (random.Random(1), lambda held: held.random()),
    "Generator": (np.random.default_rng(1), lambda held: held.random()),
    "Philox": (np.random.Philox(1), lambda held: held.random_raw()),
    "RandomState": (np.random.RandomState(1), lambda held: held.rand()),
    "torch": (torch.Generator().manual_seed(1), lambda held: torch.rand(1, generator=held)),
}


@pytest.mark.parametrize("name", HELD)
def test_a_generator_that_is_held_is_reported_and_goes_on(name):
    held, draw = HELD[name]
    drawn = []
    for _ in range(2):
        with randomness.Guard(held=[(f"preprocess.{name}", bits_of(held))]) as guard:
            drawn.append(draw(held))
        assert guard.drawn == {f"preprocess.{name}"}
    assert drawn[0] != drawn[1], "it is the job's, and not put back"
    with randomness.Guard(held=[(name, bits_of(held))]) as guard:
        pass
    assert guard.drawn == set()


def test_local_generators_and_stateless_ones_are_not_reported():
    with randomness.Guard(held=[("system", random.SystemRandom())]) as guard:
        random.SystemRandom().random()
        random.Random(1).random()
        np.random.default_rng(1).random(10)
        np.random.RandomState(1).rand(3)
        torch.rand(3, generator=torch.Generator().manual_seed(1))
    assert guard.drawn == set()


def test_a_slow_item_is_made_once_more_at_most(monkeypatch):
    """To see whether it is random, where its function draws in vain."""
    monkeypatch.setattr(recipe_guard, "ENOUGH_S", 0.0)
    guard, held, made = recipe_guard.RecipeGuard(None), random.Random(1), list[float]()
    guard.generators = [("held", held)]
    guard.note_draws(lambda: made.append(held.random()), None)
    assert (len(made), guard.untried, guard.drawn) == (1, 0, set())


@pytest.mark.parametrize("name", DRAWS)
def test_the_generators_are_put_back_where_they_were(name):
    SEEDS[name]()
    expected = DRAWS[name](8)
    SEEDS[name]()
    with randomness.Guard():
        DRAWS[name](1000)
    assert list(DRAWS[name](8)) == list(expected)


@pytest.mark.parametrize("name", DRAWS)
def test_a_thread_that_the_function_starts_draws_for_it(name):
    with randomness.Guard() as guard, ThreadPoolExecutor(1) as pool:
        first = pool.submit(DRAWS[name], 8).result()
    assert guard.drawn == {name}
    assert list(DRAWS[name](8)) == list(first)


@pytest.mark.parametrize(
    ("name", "module", "is_alone"),
    [
        ("prepcache-beat", "job", True),
        (
            "job",
            "ipykernel.shellchannel",
            True,
        ),  # it hands messages on; ipykernel 7 has one in every notebook
        ("job", "ipykernel.subshell", False),  # it runs cells
        ("job", "tensorboard.summary.writer.event_file_writer", True),
        ("job", "job.prefetch", False),
    ],
)
def test_a_thread_counts_by_what_it_does(name, module, is_alone):
    is_over = threading.Event()
    kind = type("Thread", (threading.Thread,), {"__module__": module, "run": lambda thread: is_over.wait()})
    thread = kind(name=name)
    thread.start()
    try:
        assert randomness.is_alone() is is_alone
    finally:
        is_over.set()
        thread.join()


def test_a_function_that_raises_restores_the_generators():
    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), randomness.Guard() as guard:
        torch.randn(10)
        1 / 0  # noqa: B018
    assert guard.drawn == {"torch"}
    assert torch.equal(torch.get_rng_state(), state)


def test_numpys_generator_is_watched_when_loaded_late():
    """`import numpy` does not load `numpy.random`; who asks for it does."""
    code = (
        "import sys, numpy\n"
        "from prepcache.keys.randomness import Guard\n"
        "assert 'numpy.random' not in sys.modules\n"
        "def f(): return numpy.random.rand()\n"
        "with Guard() as watched: f()\n"
        "print(watched.drawn)\n"
    )
    assert python("-c", code).stdout.strip() == "{'numpy.random'}"
