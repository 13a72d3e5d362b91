"""cached(): one whole sample tree, such as a vocabulary, normalisation constants or embeddings.

It is a data set of one item: `data`, with all the files in it, is that item.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from prepcache.dataset import CachedDataset
from prepcache.dataset_options import Options, refuse_unknown
from prepcache.keys.recipes import check_config

_NO_DATA: Any = object()

T = TypeVar("T")
P = ParamSpec("P")


class _Whole(CachedDataset[Any]):
    """A data set of one item, which is prepared for `prepcache fill` and `prepcache plan` too."""

    _follows_mode = False


@overload
def cached(
    fn: Callable[..., T], data: Any, config: Mapping[str, Any] | None = None, **options: Unpack[Options]
) -> T: ...


@overload
def cached(
    fn: Callable[P, T], *, config: Mapping[str, Any] | None = None, **options: Unpack[Options]
) -> Callable[P, T]: ...


@overload
def cached(
    fn: None = None, *, config: Mapping[str, Any] | None = None, **options: Unpack[Options]
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def cached(
    fn: Callable[..., Any] | None = None,
    data: Any = _NO_DATA,
    config: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> Any:
    """Computes `fn(data, **config)` once and caches the result; without `data`, a decorator.

        stats = prepcache.cached(mean_and_std, data=files, config={"channels": 3})

        @prepcache.cached(version="2")
        def vocabulary(files, size): ...
        vocabulary(files, size=4096)

    Args:
        fn: returns one sample tree: tensors, arrays, numbers, strings, nested.
        data: a path, a value, or a tuple, list or dict of those; files in it count by their bytes.
        config: keyword arguments; part of the key.
        options: as `CachedDataset` takes them (`name`, `code`, `version`, `root`, `trust`, ...).

    Raises:
        UnkeyableError, PreprocessError, SampleError: as `CachedDataset`.
    """
    refuse_unknown("cached", options)
    if fn is None:
        return functools.partial(_decorated, config=config, options=options)
    if data is _NO_DATA:
        return _decorated(fn, config=config, options=options)
    return _Whole([data], fn, config, **options)[0]


def _decorated(
    fn: Callable[..., Any], *, config: Mapping[str, Any] | None, options: Options
) -> Callable[..., Any]:
    check_config(config)

    @functools.wraps(fn)
    def call(data: Any = _NO_DATA, *others: Any, **more: Any) -> Any:
        if data is _NO_DATA or others:
            name = getattr(fn, "__name__", "fn")
            raise TypeError(
                f"{name}() is cached: call it as {name}(data, option=value). Pass everything that it reads "
                "in the one positional argument"
            )
        return _Whole([data], fn, {**(config or {}), **more}, **options)[0]

    return call
