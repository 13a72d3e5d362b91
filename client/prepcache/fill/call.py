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
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from prepcache.artifact.sample_tree import copied, leaves_of, signature
from prepcache.errors import SampleError
from prepcache.fill.recipe_guard import RecipeGuard
from prepcache.keys.items import load, names_in
from prepcache.keys.markers import Plain, Tree
from prepcache.keys.paths import Read, looks_like_path

if TYPE_CHECKING:
    from prepcache.keys.observation.context import Notice
    from prepcache.keys.observation.inputs import Input
    from prepcache.keys.observation.observer import Observer

PART_BYTES = 32 << 20
"""Samples of one item that are handed over at once; bounds what an item that expands holds in memory."""

_END = object()
_AUTOCAST = ("cpu", "cuda", "mps", "xpu")
_NOTHING: AbstractContextManager[None] = nullcontext()


_CALLED_OF: ContextVar[tuple[str, ...]] = ContextVar("_CALLED_OF", default=())
"""The data sets whose functions are being called here, the innermost last."""
_UNDER_WAY: dict[tuple[str, int, int], float] = {}
"""When the calls that are under way began, by data set, process and thread."""
PATIENCE_S = 5.0
"""A call that takes longer may wait for another thread, which must not wait for it then."""


@dataclass(slots=True)
class Part:
    """Samples of one distinct item.

    Args:
        error: what the function raised; `refusal`: why no column can hold a sample.
        unobserved: the error because of which something that the function read may not have been seen.
        notices: what the user should be told of the function, new since the last part.
    """

    index: int
    samples: list[Any]
    is_last: bool
    cost_s: float
    error: BaseException | None = None
    refusal: SampleError | None = None
    unobserved: str = ""
    notices: tuple[Notice, ...] = ()

    def copied(self) -> Part:
        return replace(self, samples=[copied(sample) for sample in self.samples])

    def looked_at(self) -> Part:
        """This part; where its writer would refuse a sample of it, the end of its item, which says so."""
        try:
            for sample in self.samples:
                signature(sample)
        except SampleError as refusal:
            return Part(self.index, [], True, self.cost_s, refusal=refusal)
        return self


@dataclass(frozen=True, slots=True)
class Job:
    """What is called: the function, its config, and how an item is handed to it.

    Args:
        of: the data set, alike in all copies of it; none by default.
        guard: tells whether what is made still belongs to the recipe.
    """

    function: Callable[..., Any]
    config: Mapping[str, Any]
    is_expanded: bool = False
    read: Read = "path"
    observer: Observer | None = None
    of: str = ""
    guard: RecipeGuard = field(default_factory=RecipeGuard, compare=False)

    def observed(self) -> list[dict[str, Any]]:
        """What the function was seen to read so far, in this process."""
        return [] if self.observer is None else list(self.observer.taken())

    def add(self, told: Iterable[Input]) -> None:
        if self.observer is not None:
            self.observer.add(told)

    def news(self) -> list[Input]:
        return [] if self.observer is None else self.observer.news()

    def filling(self) -> AbstractContextManager[None]:
        """While many items are made."""
        return _NOTHING if self.observer is None else self.observer.filling()

    def call(self, index: int, item: Any) -> list[Any]:
        """All samples of one item; raises what the function raises."""
        samples = []
        for part in self.parts(index, item):
            if part.error is not None:
                raise part.error
            samples += part.samples
        return samples

    def parts(self, index: int, item: Any) -> Iterator[Part]:
        began = time.perf_counter()
        try:
            made, missed = self._watched(item, lambda: self.function(load(item, self.read), **self.config))
            if not self.is_expanded:
                cost_s = time.perf_counter() - began
                self._note(item, made)
                yield self._last(index, [made], cost_s, missed)
                return
            samples: list[Any] = []
            nbytes, is_whole = 0, True
            iterator = iter(made)
            while True:
                # Not while the part is in other hands.
                sample, failure = self._watched(item, lambda: next(iterator, _END))
                missed = missed or failure
                if sample is _END:
                    break
                if nbytes >= PART_BYTES:
                    yield Part(index, samples, False, time.perf_counter() - began, unobserved=missed)
                    samples, nbytes, is_whole, began = [], 0, False, time.perf_counter()
                samples.append(copied(sample))
                nbytes += weight(sample)
            cost_s = time.perf_counter() - began
            if is_whole:
                self._note(item, samples)
            yield self._last(index, samples, cost_s, missed)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            error.__traceback__ = _from_the_function_on(error.__traceback__)
            yield Part(index, [], True, time.perf_counter() - began, error)

    def _note(self, item: Any, made: Any) -> None:
        """Keeps the first items, to see later whether what calls changed matters to what they make."""
        self.guard.note_item(self._again(item), made, self.observer)

    def _again(self, item: Any) -> Callable[[Any], Any]:
        of, read, config, is_expanded = self.of, self.read, self.config, self.is_expanded

        def again(function: Callable[..., Any]) -> Any:
            with _calling(of):
                made = function(load(item, read), **config)
                return list(made) if is_expanded else made

        return again

    def _last(self, index: int, samples: list[Any], cost_s: float, missed: str) -> Part:
        notices = () if self.observer is None else self.observer.new_notices()
        return Part(index, samples, True, cost_s, unobserved=missed, notices=notices)

    def refuse_itself(self) -> None:
        """Refuses to make an item of the data set for the function that is just making one."""
        if self.of and self.of in _CALLED_OF.get():
            raise RecursionError(
                "the function reads from its own data set, which would wait forever: pass it what it needs "
                "in config=, or let it read from another data set"
            )

    @property
    def may_wait_for_others(self) -> bool:
        """Whether a call of another thread has taken so long that it may read the data set in a third."""
        begun = [at for (of, pid, _), at in list(_UNDER_WAY.items()) if of == self.of and pid == os.getpid()]
        return bool(begun) and time.monotonic() - min(begun) > PATIENCE_S

    def _watched(self, item: Any, call: Callable[[], Any]) -> tuple[Any, str]:
        """What the call gives, and why something that it read may not have been seen, or ""."""
        with _calling(self.of):
            if self.observer is None:
                return call(), ""
            with self.observer.watching(paths_in(item), self.function) as watch:
                made = call()
            return made, watch.failure


@contextmanager
def _calling(of: str) -> Iterator[None]:
    token, key = _CALLED_OF.set((*_CALLED_OF.get(), of)), (of, os.getpid(), threading.get_ident())
    _UNDER_WAY[key] = time.monotonic()
    try:
        with _without_autocast():
            yield
    finally:
        _CALLED_OF.reset(token)
        _UNDER_WAY.pop(key, None)


def _from_the_function_on(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this module before it."""
    rest = traceback
    while rest is not None and rest.tb_frame.f_code.co_filename == __file__:
        rest = rest.tb_next
    return rest


def _without_autocast() -> AbstractContextManager[object]:
    """The function is called as outside of `torch.autocast`: what a step makes would be another sample."""
    torch: Any = sys.modules.get("torch")
    asked = getattr(torch, "is_autocast_enabled", None)
    devices = [device for device in _AUTOCAST if asked(device)] if asked is not None else []
    if not devices:
        return _NOTHING
    within = ExitStack()
    for device in devices:
        within.enter_context(torch.autocast(device, enabled=False))
    return within


def paths_in(item: Any) -> list[str]:
    """The names in an item that are files of its own; what the function opens of them is in the digest."""
    return [path for _, leaf in leaves_of(item) for path in _paths_of(leaf)]


def _paths_of(leaf: Any) -> list[str]:
    if isinstance(leaf, str):
        return [leaf] if looks_like_path(leaf) and "\0" not in leaf and os.path.isfile(leaf) else []
    if isinstance(leaf, os.PathLike):
        return [os.fsdecode(leaf)]
    if isinstance(leaf, Plain):
        return []
    if isinstance(leaf, Tree):
        return [os.fsdecode(leaf.value)]
    if leaf is None or isinstance(leaf, int | float | bytes) or type(leaf).__module__ in ("numpy", "torch"):
        return []
    return names_in(leaf)


def weight(sample: Any) -> int:
    """About how many bytes a sample holds. What no column can hold weighs little: it is refused later."""
    total = 0
    for _, leaf in leaves_of(sample):
        try:
            nbytes = getattr(leaf, "nbytes", None)
        except RuntimeError:  # of a sparse tensor
            continue
        is_text = isinstance(leaf, str | bytes)
        total += nbytes if isinstance(nbytes, int) else 64 + (len(leaf) if is_text else 0)
    return total
