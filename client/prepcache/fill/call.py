"""Calls of the preprocessing function: an item goes in, parts of samples come out, timed.

A part is all samples of an item, or, where an item expands to more than `PART_BYTES`, some of them.

Invariants:
    1. The parts of one item come in order, and the last one says so; it has the error of a call that failed.
    2. Only the function is watched, not the code that takes its parts.
    3. Samples that wait for others are copies: the function may use its memory again at its next call.
    4. A function that reads from its own data set in its own thread is refused: it would wait for itself.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from prepcache.artifact.sample_tree import copied, leaves_of, signature
from prepcache.errors import SampleError
from prepcache.fill.recipe_guard import RecipeGuard
from prepcache.keys.items import load, names_in
from prepcache.keys.markers import Plain, Tree
from prepcache.keys.paths import Read, looks_like_path

if TYPE_CHECKING:
    from prepcache.keys.observation.inputs import Input
    from prepcache.keys.observation.observer import Observer

PART_BYTES = 32 << 20
"""Samples of one item that are handed over at once; bounds what an item that expands holds in memory."""

TOGETHER_BYTES = 256 << 10
"""Several items that are called together, and their samples that are handed over at once, hold about so much
at most; of larger ones, what surrounds a call is little."""
TOGETHER_S = 0.1
"""Samples are handed over after so long: what is slow is shown, and committed, as it is made."""

_END = object()
_UNWATCHED: Any = SimpleNamespace(failure="", facts=())
_AUTOCAST = ("cpu", "cuda", "mps", "xpu")

_CALLED_OF: ContextVar[tuple[str, ...]] = ContextVar("_CALLED_OF", default=())
"""The data sets whose functions are being called here, the innermost last."""


@dataclass(slots=True)
class Part:
    """Samples of one distinct item.

    Args:
        error: what the function raised, or a SampleError that says why no column can hold a sample.
        unobserved: the error because of which something that the function read may not have been seen.
        notices: what the user should be told of the function, each with its topic, of which it is said once.
    """

    index: int
    samples: list[Any]
    is_last: bool
    cost_s: float
    unobserved: str = ""
    nbytes: int = 0
    error: BaseException | None = None
    notices: tuple[tuple[str, str], ...] = ()

    def copied(self) -> Part:
        self.samples = [copied(sample) for sample in self.samples]
        return self

    def looked_at(self) -> Part:
        """This part; where its writer would refuse a sample of it, the end of its item, which says so."""
        try:
            for sample in self.samples:
                signature(sample)
        except SampleError as refusal:
            return Part(self.index, [], True, self.cost_s, error=refusal)
        return self


@dataclass(frozen=True, slots=True)
class Job:
    """What is called; `of`: the data set, alike in all copies of it."""

    function: Callable[..., Any]
    config: Mapping[str, Any]
    is_expanded: bool = False
    read: Read = "path"
    observer: Observer | None = None
    of: str = ""
    guard: RecipeGuard = field(default_factory=RecipeGuard, compare=False)

    def observed(self) -> list[dict[str, Any]]:
        return [] if self.observer is None else list(self.observer.taken())

    def add(self, told: Iterable[Input]) -> None:
        if self.observer is not None:
            self.observer.add(told)

    def news(self) -> list[Input]:
        return [] if self.observer is None else self.observer.news()

    def filling(self) -> AbstractContextManager[None]:
        return nullcontext() if self.observer is None else self.observer.filling()

    def call(self, index: int, item: Any) -> list[Any]:
        """All samples of one item; raises what the function raises."""
        samples = []
        for part in self.parts(index, item):
            if part.error is not None:
                raise part.error
            samples += part.samples
        return samples

    def parts(self, index: int, item: Any) -> Iterator[Part]:
        return chain.from_iterable(self.made([(index, item)]))

    def made(
        self, chunk: Iterable[tuple[int, Any]], begins: Callable[[int], object] = id
    ) -> Iterator[list[Part]]:
        """The parts of some items; `begins` is called with an item's number before the function is.

        Of texts, arrays and the like, many come at a time while the function reads nothing: what surrounds a
        call may cost more than the call. Any other item is called before the next is asked for, which may be
        the same object. An interrupt is raised after what was made before it.
        """
        together: list[tuple[int, Any]] = []
        nbytes = 0
        for index, item in chunk:
            paths = [] if self.observer is None else paths_in(item)
            is_alone = self.is_expanded or bool(paths) or not _is_plain(item)
            if is_alone or nbytes >= TOGETHER_BYTES:
                yield from self._called(together, [], begins)
                together, nbytes = [], 0
            if self.is_expanded:
                begins(index)
                yield from self._expanded(index, item, paths)
            elif is_alone:
                yield from self._called([(index, item)], paths, begins)
            else:
                together.append((index, item))
                nbytes += weight(item)
        yield from self._called(together, [], begins)

    def _called(
        self, items: list[tuple[int, Any]], paths: list[str], begins: Callable[[int], object]
    ) -> Iterator[list[Part]]:
        todo = deque(items)
        while todo:
            parts: list[Part] = []
            nbytes, spent_s, failure = 0, 0.0, None
            with self._watching(paths) as watch:
                always = watch.failure
                while todo and failure is None and nbytes < TOGETHER_BYTES and spent_s < TOGETHER_S:
                    if parts:
                        parts[-1].copied()
                    index, item = todo.popleft()
                    begins(index)
                    began = time.perf_counter()
                    try:
                        sample = self.function(load(item, self.read), **self.config)
                    except BaseException as error:  # noqa: BLE001 - the user's function may raise anything
                        failure = error
                        continue
                    cost_s = time.perf_counter() - began
                    sample = self._noted(item, sample)
                    # What was missed during a call concerns this item; what comes up at the end, all of them.
                    missed, watch.failure = watch.failure, always
                    parts.append(Part(index, [sample], True, cost_s, missed, weight(sample)))
                    nbytes += parts[-1].nbytes
                    spent_s += cost_s
                    if watch.facts or missed:
                        break  # what it used may change before the next item does: that has its own watch
                watch.calls = max(1, len(parts))
            if isinstance(failure, Exception):
                parts.append(_failed(index, time.perf_counter() - began, failure))
            if parts:
                yield self._ended(parts, watch.failure)
            if failure is not None and not isinstance(failure, Exception):
                raise failure

    def _expanded(self, index: int, item: Any, paths: list[str]) -> Iterator[list[Part]]:
        """The parts of an item that expands, which is watched while a sample is made, and not between."""
        began = time.perf_counter()
        try:
            with self._watching(paths) as watch:
                iterator = iter(self.function(load(item, self.read), **self.config))
            missed = watch.failure
            samples: list[Any] = []
            nbytes, is_whole = 0, True
            while True:
                with self._watching(paths) as watch:
                    sample = next(iterator, _END)
                missed = missed or watch.failure
                if sample is _END:
                    break
                if nbytes >= PART_BYTES:
                    yield [Part(index, samples, False, time.perf_counter() - began, missed, nbytes)]
                    samples, nbytes, is_whole, began = [], 0, False, time.perf_counter()
                samples.append(copied(sample))
                nbytes += weight(sample)
            cost_s = time.perf_counter() - began
            if is_whole:
                samples = self._noted(item, samples)
            yield self._ended([Part(index, samples, True, cost_s, nbytes=nbytes)], missed)
        except Exception as error:  # noqa: BLE001 - as above
            yield [_failed(index, time.perf_counter() - began, error)]

    def _ended(self, parts: list[Part], missed: str) -> list[Part]:
        for part in parts:
            part.unobserved = part.unobserved or missed
        if self.observer is not None:
            parts[-1].notices = self.observer.new_notices()
        return parts

    def _noted(self, item: Any, made: Any) -> Any:
        """What was made of an item; the first ones may be made again, to see what they depend on."""

        def again() -> Any:
            with _calling(self.of):
                made = self.function(load(item, self.read), **self.config)
                return list(made) if self.is_expanded else made

        if self.guard.generators and self.guard.untried > 0:
            made = copied(made)
            self.guard.note_draws(again, made)
        self.guard.note_item(again, made)
        return made

    def refuse_itself(self) -> None:
        if self.of and self.of in _CALLED_OF.get():
            raise RecursionError(
                "the function reads from its own data set, which would wait forever: pass it what it needs "
                "in config=, or let it read from another data set"
            )

    @contextmanager
    def _watching(self, paths: list[str]) -> Iterator[Any]:
        seen = (
            nullcontext(_UNWATCHED) if self.observer is None else self.observer.watching(paths, self.function)
        )
        with _calling(self.of), seen as watch:
            yield watch


@contextmanager
def _calling(of: str) -> Iterator[None]:
    token = _CALLED_OF.set((*_CALLED_OF.get(), of))
    torch: Any = sys.modules.get("torch")
    asked: Any = getattr(torch, "is_autocast_enabled", None)
    try:
        with ExitStack() as within:  # as outside of autocast: what a training step makes is another sample
            for device in _AUTOCAST if asked is not None else ():
                if asked(device):
                    within.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        _CALLED_OF.reset(token)


def _failed(index: int, cost_s: float, error: Exception) -> Part:
    trace = error.__traceback__  # from the function on, without the frames of this module before it
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    return Part(index, [], True, cost_s, error=error)


def paths_in(item: Any) -> list[str]:
    """The names in an item that are files of its own; what the function opens of them is in the digest."""
    return [path for _, leaf in leaves_of(item) for path in _paths_of(leaf)]


def _paths_of(leaf: Any) -> list[str]:
    if isinstance(leaf, str):
        return [leaf] if looks_like_path(leaf) and "\0" not in leaf and os.path.isfile(leaf) else []
    if isinstance(leaf, os.PathLike):
        return [os.fsdecode(leaf)]
    if isinstance(leaf, Tree):
        return [os.fsdecode(leaf.value)]
    is_value = leaf is None or isinstance(leaf, int | float | bytes | Plain)
    if is_value or type(leaf).__module__ in ("numpy", "torch"):
        return []
    return names_in(leaf)


def _is_plain(item: Any) -> bool:
    try:
        signature(item)
    except SampleError:
        return False
    return True


def weight(sample: Any) -> int:
    """About how many bytes a sample holds. What no column can hold weighs little: it is refused later."""
    total = 0
    for _, leaf in leaves_of(sample):
        try:
            nbytes = getattr(leaf, "nbytes", None)
        except Exception:  # noqa: BLE001 - of a sparse tensor, or a closed file
            continue
        is_text = isinstance(leaf, str | bytes)
        total += nbytes if isinstance(nbytes, int) else 64 + (len(leaf) if is_text else 0)
    return total
