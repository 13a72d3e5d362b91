"""The recipe: code fingerprint, config, environment, version and expand, as one digest and readable parts.

    parts = {
      "format": RECIPE_VERSION, "name": "prep.tokenize",
      "code": {"mode": "script", "files": {name: digest}, "definitions": {label: digest},
               "values": {label: {"digest", "text"}}, "attributes": {place: {"digest", "text"}},
               "variables": {name: value}, "untracked": [names]},
      "config": {path: {"digest", "text"}}, "environment": {...}, "version": ..., "expand": ..., "read": ...
    }

Invariants:
    1. Two recipes differ only where their parts differ, or in secrets, of which parts give no value: every
       miss can be explained. The name and what is untracked are in the parts and not in the digest.
    2. `RECIPE_VERSION` rises when what goes into the digest changes; golden vectors pin it.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Literal, NamedTuple

from blake3 import blake3

from prepcache.digests import RecipeDigest
from prepcache.errors import UnkeyableError
from prepcache.keys.code import project
from prepcache.keys.code.dependencies import Dependencies, notes_on_ranks, refer_classes
from prepcache.keys.code.fingerprint import fingerprint, nested
from prepcache.keys.code.import_graph import ImportGraph
from prepcache.keys.code.names import files_named_in
from prepcache.keys.code.values import SECRET, Value, config_part, holds_secret, is_secret, shown
from prepcache.keys.encoding.encoder import ENCODING_VERSION, Encoder, canonical_order, text_bytes
from prepcache.keys.environment import ENVIRONMENT_VERSION, Environment, check_rebuilt, default_dtype, lately
from prepcache.keys.files.digest import Trust, digest_file
from prepcache.keys.files.stat_cache import path_stamp, user_stat_cache
from prepcache.keys.markers import Plain, rebuild
from prepcache.keys.paths import Read, check_reading, path_hook

RECIPE_VERSION = 25  # first input of the digest; raised whenever the inputs or their order change
DEFAULT_DTYPE = "torch_default_dtype"
PYTHON = f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"
EDITED = "edited after it was loaded"  # of such a file only definitions that were loaded count
LOADED = "import "  # begins the row of a module that is loaded
DEFINITION = "()"  # ends the row of a definition, where the label of a value may be the same
_MATERIAL = (
    "the function's own calls changed {place}, and samples may depend on it. It counts by its present "
    "value, so the next job may preprocess again. Reset it before opening the data set, or exclude it with "
    "untracked=({name!r},)"
)
Code = Literal["script", "function"] | list[Any] | tuple[str | os.PathLike[str], ...] | None
"""A list of files, and not any sequence: a misspelt word is one too."""


class State(NamedTuple):
    """What counted when a recipe was made."""

    digest: RecipeDigest
    rows: dict[str, str | None]  # digests by label, with `config.path` and `$NAME`
    objects: frozenset[str]  # labels of those whose attributes have rows
    variables: frozenset[str]  # all that were set


changed_states: dict[RecipeDigest, dict[str, Any] | list[str]] = {}
"""By the recipe of a state that calls of the function have changed: what it has of the one before the calls,
or, where samples depend on the change, the places of it. See NOTE [ Own state ] in fill/recipe_guard.py."""


@dataclass(frozen=True)
class Recipe:
    """How samples are made. Made by `recipe`; `repr` and `==` go by the digest."""

    digest: RecipeDigest
    parts: dict[str, Any] = field(compare=False, repr=False)
    name: str = field(compare=False)
    config: dict[str, Any] = field(compare=False, repr=False)
    preprocess: Callable[..., Any] | None = field(compare=False, repr=False)
    reached: Mapping[str, tuple[int, ...] | None] = field(compare=False, repr=False)
    """Project files that count, and their stamps; None of those in which only what is reached counts."""
    root: str | None = field(compare=False, repr=False)
    asks_cwd: bool = field(compare=False, repr=False)
    literal_paths: frozenset[str] = field(compare=False, repr=False)  # absolute ones in the checkout
    named_files: frozenset[str] = field(compare=False, repr=False)  # by literals
    notes: tuple[str, ...] = field(compare=False, repr=False)
    asked: dict[str, Any] = field(compare=False, repr=False)  # its arguments
    classes: tuple[type, ...] = field(compare=False, repr=False)
    state: State = field(compare=False, repr=False)  # when it was made, also of what counts as before
    leaves_out: bool = field(compare=False, repr=False)  # some of what it reaches, as asked
    may_ask: bool | None = field(compare=False, repr=False)  # None: not all code is known
    generators: tuple[tuple[str, Any], ...] = field(compare=False, repr=False)
    own: frozenset[str] = field(compare=False, repr=False, default=frozenset())  # what its calls change

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"generators": ()}


def recipe(
    preprocess: Callable[..., Any],
    *,
    config: Mapping[str, Any] | None = None,
    code: Code = "script",
    version: str | int | None = None,
    expand: bool = False,
    untracked: Sequence[str] = (),
    environment: Sequence[str] | None = None,
    read: Read = "path",
    name: str | None = None,
    trust: Trust = "stat",
) -> Recipe:
    """Returns the recipe of a preprocessing function and its config. Needs no daemon.

    Args:
        preprocess: called as `preprocess(item, **config)`.
        config: keyword arguments for it; plain dicts in it count, and are passed, in canonical order.
        code: "script" (its file and all project files that it imports), "function" (the definitions that
            it reaches), a list of files, or None (only `version` counts).
        version: joins the recipe; needed with `code=None`.
        expand: whether one item gives several samples.
        untracked: names of globals, attributes or closure variables that do not count.
        environment: the distributions that count, instead of those that the code imports.
        read: what the function receives for a path: "path", "bytes" or "text".
        name: for people; "module.qualname" by default.
        trust: "content" reads every file of the config and ignores the stat cache.

    Raises:
        UnkeyableError: something has no stable bytes; the message names it and the ways out.
        ValueError, TypeError: an option is invalid; the message names the valid values.
    """
    if not callable(preprocess):
        raise TypeError(f"preprocess must be callable, not {type(preprocess).__name__}")
    if inspect.iscoroutinefunction(preprocess):
        raise TypeError("preprocess must give samples, not coroutines: call asyncio.run(...) in it")
    check_config(config)
    _check_code(code, version)
    check_reading(read, trust)
    for option, names in (("untracked", untracked), ("environment", environment)):
        if isinstance(names, str | bytes):
            raise TypeError(f"{option} must be a list of names, not a str: {option}=[{names!r}]")
    asked = {
        "config": dict(config or {}), "code": code, "version": version, "expand": expand,
        "untracked": untracked, "environment": environment, "read": read, "name": name, "trust": trust,
    }  # fmt: skip
    try:
        return _settled(preprocess, asked)
    except UnkeyableError as error:
        raise error.with_traceback(None) from None


def check_config(config: Any) -> None:
    if config is not None and not isinstance(config, Mapping):
        kind = type(config).__name__
        raise TypeError(
            f"config must be a mapping of keyword arguments, not {kind}: "
            f'config={{"cfg": {kind}(...)}} passes it as keyword argument cfg'
        )
    for key in config or {}:
        if not isinstance(key, str):
            raise TypeError(f"config keys must be str, since they are keyword arguments, not {key!r}")


def _check_code(code: Any, version: Any) -> None:
    is_list = isinstance(code, Collection) and not isinstance(code, str | bytes)
    if not (code is None or is_list or code in ("script", "function")):
        raise ValueError(f"code must be 'script', 'function', a list of paths or None, not {code!r}")
    if is_list and not code:
        raise ValueError("code=[] names no file; use code=None with version=")
    if code is None and version is None:
        raise UnkeyableError("code=None counts no code: give version= to name the code")
    if version is not None and not isinstance(version, str | int):
        raise TypeError(f"version must be a str or int, not {type(version).__name__}")


def _settled(preprocess: Callable[..., Any], asked: dict[str, Any], classes: tuple[type, ...] = ()) -> Recipe:
    """The recipe, in which what calls have changed counts as before if it may."""
    state, parts, reach = _look(preprocess, asked, classes)
    graph, config, root = reach.graph, _copied(asked["config"]), reach.root
    stamps = {path: source.stamp for path, source in graph.sources.items()}
    whole = {path: stamps.get(path) or path_stamp(path) for path in graph.files.values()}
    unused = [one for one in asked["untracked"] if one not in reach.ignored]
    notes = [f"untracked={one!r} names nothing that the code uses: correct or remove it" for one in unused]
    notes += notes_on_ranks(reach)
    leaves_out = bool(reach.ignored) or reach.leaves_out or asked["code"] is None
    is_whole = not (leaves_out or reach.unstable)
    before = changed_states.get(state.digest, [])
    if not isinstance(before, dict):
        for error in reach.unstable.values():
            raise error
        notes += [_MATERIAL.format(place=place, name=place.rpartition(".")[2]) for place in before]
    made = Recipe(
        state.digest, parts, parts["name"], canonical_order(config), preprocess,
        reached=dict.fromkeys(reach.sources) | whole, root=root, asks_cwd="cwd" in reach.asked.topics,
        notes=tuple(notes), classes=classes, state=state,
        literal_paths=frozenset(t for t in reach.asked.literals if root and t.startswith(root + os.sep)),
        named_files=frozenset(path for text in reach.asked.texts for path in files_named_in(text)),
        asked={**asked, "config": config},
        leaves_out=leaves_out, may_ask=reach.asked.may_ask(is_whole=is_whole),
        generators=tuple(reach.generators.values()),
    )  # fmt: skip
    return replace(made, **before) if isinstance(before, dict) else made


def states_now(made: Recipe) -> Iterator[State]:
    """The states that openings of the same function and config would find now, but for those without key."""
    assert made.preprocess is not None
    for classes in dict.fromkeys([(), made.classes]):
        with suppress(UnkeyableError):
            yield _look(made.preprocess, made.asked, classes)[0]


def with_classes(made: Recipe, classes: Iterable[type]) -> Recipe:
    """A recipe that counts the code of items' classes as well."""
    if made.preprocess is None or not (ordered := tuple(sorted(classes, key=project.class_label))):
        return made
    return _settled(made.preprocess, made.asked, ordered)


def again(made: Recipe) -> tuple[State, Dependencies]:
    """What counts of the same function and config as it is now, and what they reach."""
    assert made.preprocess is not None
    reach, leaves, _ = _walk(made.preprocess, {**made.asked, "trust": "stat"}, lately())
    refer_classes(made.classes, reach)
    return _state(RecipeDigest(""), leaves, reach), reach


def _look(
    preprocess: Callable[..., Any], asked: dict[str, Any], classes: tuple[type, ...]
) -> tuple[State, dict[str, Any], Dependencies]:
    code, installed = asked["code"], Environment()
    reach, leaves, config_digest = _walk(preprocess, asked, installed)
    if code == "script":
        for path, module in sorted(reach.sources.items()):
            reach.graph.add_file(module, path)
    # By what they reach, also where the function's files count whole: theirs may be a script's.
    refer_classes(classes, reach)
    parts: dict[str, Any] = {
        "format": RECIPE_VERSION,
        "name": asked["name"] or _name_of(preprocess, _function_of(preprocess)),
        "code": code_part(code, reach),
        "config": {path: shown(path, leaf) for path, leaf in leaves.items()},
        "environment": {
            DEFAULT_DTYPE: default_dtype(),
            "python": PYTHON,
            # Asserts and `if __debug__` are there or not by this. Code tells by itself; files do not.
            "optimize": sys.flags.optimize if reach.whole_files else None,
            "formats": {"encoding": ENCODING_VERSION, "environment": ENVIRONMENT_VERSION},
            "distributions": installed.counted(reach.graph.top_levels, asked["environment"]),
        },
        "version": asked["version"],
        "expand": bool(asked["expand"]),
        "read": asked["read"],
    }
    user_stat_cache().flush()
    return _state(_digest(parts, config_digest, reach), leaves, reach), parts, reach


def _walk(
    preprocess: Callable[..., Any], asked: dict[str, Any], installed: Environment
) -> tuple[Dependencies, dict[str, Value], str]:
    """What the function and the config reach, the leaves of the config, and its digest."""
    trust, stat_cache, places = asked["trust"], user_stat_cache(), project.Places(installed.installed)
    function = _function_of(preprocess)
    reach = Dependencies(
        ImportGraph(places), project.Labels(places), asked["untracked"],
        root=None if function is None else project.checkout_of(function),
        file_digest=lambda path: digest_file(path, stat_cache, trust).digest,
        on_path=path_hook(stat_cache, trust),
        counts_code=asked["code"] is not None,
    )  # fmt: skip
    if reach.counts_code:
        reach.count_value("preprocess", preprocess, reach)
        reach.run()
    leaves, config_digest = config_part(asked["config"], reach)
    reach.run()
    return reach, leaves, config_digest


def _state(digest: RecipeDigest, leaves: dict[str, Value], reach: Dependencies) -> State:
    rows: dict[str, str | None] = {name: value.digest for name, value in reach.values.items()}
    rows |= {f"{name}{DEFINITION}": digest for name, digest in reach.definitions.items()}
    rows |= {f"config.{path}": leaf.digest for path, leaf in leaves.items()}
    rows |= {f"${name}": value for name, value in reach.variables.items()}
    rows |= dict.fromkeys(f"{LOADED}{name}" for name in reach.loaded)
    rows[DEFAULT_DTYPE] = default_dtype()
    return State(digest, rows, frozenset(reach.objects), frozenset(os.environ))


def _copied(value: Any) -> Any:
    """A config as it is now: its caller may change the lists, dicts and sets that he gave."""
    if type(value) is Plain:
        return Plain(_copied(value.value))
    copy = rebuild(value, _copied)
    return type(value)(value) if copy is value and type(value) in (list, dict, OrderedDict, set) else copy


def _function_of(value: Any) -> FunctionType | None:
    """The Python function behind a callable, if there is one, for its name and its checkout."""
    for _ in range(16):
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, MethodType):
            value = value.__func__
        elif isinstance(value, FunctionType | functools._lru_cache_wrapper) and "__wrapped__" in vars(value):
            value = vars(value)["__wrapped__"]
        elif isinstance(value, FunctionType):
            return value
        else:
            calls = (vars(base).get("__call__") for base in type(value).__mro__)
            held = vars(value).values() if isinstance(value, type) else calls
            value = next((one for one in held if isinstance(one, FunctionType)), None)
    return None


def _name_of(preprocess: Any, function: FunctionType | None) -> str:
    if function is not None and not function.__qualname__.endswith("__call__"):
        return f"{project.module_label(function.__globals__)}.{function.__qualname__}"
    is_named = isinstance(preprocess, type | BuiltinFunctionType)
    return project.class_label(preprocess if is_named else type(preprocess))


def _digest(parts: dict[str, Any], config_digest: str, reach: Dependencies) -> RecipeDigest:
    code, values = parts["code"], {label: value.digest for label, value in reach.values.items()}
    tables = [
        b"".join(text_bytes(text) for row in sorted(rows.items()) for text in row)  # there may be thousands
        for rows in (code["files"], code["definitions"], values)
    ]
    counted = parts | {"name": "", "code": (code["mode"], reach.variables, *tables), "config": config_digest}
    encoded = Encoder().encode(counted, path="recipe")
    return RecipeDigest(blake3(b"prepcache recipe v%d\0" % RECIPE_VERSION + encoded).hexdigest())


def code_part(code: str | Sequence[Any] | None, reach: Dependencies) -> dict[str, Any]:
    """What a recipe says of its code: digests of files and definitions, and of values, which are shown."""
    graph, mode, paths = reach.graph, code, reach.graph.files
    if code is not None and not isinstance(code, str):
        absolute = [os.path.abspath(os.fspath(path)) for path in code]
        base = os.path.commonpath([os.path.dirname(path) for path in absolute])
        mode, paths = "files", {os.path.relpath(path, base): path for path in absolute}
    codes = reach.codes if mode == "script" else {}
    files = {file: source_digest(path, graph, codes.get(path, ())) for file, path in sorted(paths.items())}
    values = sorted(reach.values.items())
    return {
        "mode": mode,
        "files": files,
        "definitions": dict(sorted(reach.definitions.items())) if isinstance(code, str) else {},
        "values": {label: shown(label, value) for label, value in values if value.holder is None},
        "variables": {
            name: SECRET if value and (is_secret(name) or holds_secret(value)) else value
            for name, value in sorted(reach.variables.items())
        },
        "attributes": {label: shown(label, value) for label, value in values if value.holder is not None},
        "untracked": sorted(reach.ignored),
    }


def source_digest(path: str, graph: ImportGraph, codes: Iterable[CodeType] = ()) -> str:
    if path in graph.edited:
        return EDITED
    if (source := graph.sources.get(path)) is not None:
        return source.digest if all(map(source.makes, codes)) else EDITED
    check_rebuilt(path)
    return digest_file(path, user_stat_cache()).digest.hex()


def static_key(path: str | os.PathLike[str], function_name: str) -> dict[str, Any]:
    """What the code part of a recipe is made of, for a name in a file that is never run or imported."""
    file = os.path.abspath(os.fspath(path))
    installed = Environment()
    search = [os.path.dirname(file), project.package_root(file), *sys.path]
    graph = ImportGraph(project.Places(installed.installed), search)
    graph.add_file(project.dotted_name(file), file)
    codes = [code for code in nested(graph.sources[file].code) if "<" not in code.co_qualname]
    definitions = {code.co_qualname: fingerprint(code) for code in codes}
    if function_name not in definitions:
        known = ", ".join(sorted(definitions)[:10]) or "nothing"
        raise UnkeyableError(f"{path} does not define {function_name!r}; it defines {known}")
    return {
        "files": {n: source_digest(p, graph) for n, p in sorted(graph.files.items())},
        "definitions": definitions,
        "distributions": installed.counted(graph.top_levels),
    }
