"""What Python's audit events tell of files, for observe.py: those that a process is started with.

NOTE [ Modules that were loaded before ]
    An import of what is loaded opens nothing. So `importlib.import_module` is watched by the function that
    it calls, and a module of the project that it gives counts with all that it imports; one of an
    installed distribution that the recipe does not count, by the distribution. Of "a.b.C" hydra imports
    `a` and gets the rest by attributes: where the caller has such a text, its modules count.

Not here: what the process opens by itself.
"""

from __future__ import annotations

import linecache
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

from prepcache.databases import CONNECTS, files_of

STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.system"})
LISTINGS = frozenset({"os.listdir", "os.scandir", "prepcache.listed"})
AS_TEXT = "prepcache.text"
"""An `open` of a module's file by who reads it, not by who imports it or shows a line of it."""
LOADS = frozenset({"prepcache.loaded", "pickle.find_class", AS_TEXT})
PLACES = frozenset({"os.mkdir", "os.rename", "os.link", "os.symlink"})
"""What puts something under a name without writing a byte."""
_READS = frozenset({"open", "import", "ctypes.dlopen", "prepcache.read"})
_TO_ANOTHER = frozenset({"import", "os.rename", "os.link", "os.symlink"})
"""Those whose second argument is the path."""
EVENTS = frozenset({*_READS, *LISTINGS, *LOADS, *STARTS, CONNECTS, *PLACES})
_ENTERS = frozenset({"cd", "pushd", "-C", "--directory"})
"""Words before the folder in which a command works: of a shell, and of tar, make and git."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_SYSTEM = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
_SCRIPTS = (".py", ".sh", ".pl", ".rb", ".R", ".lua", ".js", ".jar")


def paths_of(event: str, args: tuple[Any, ...]) -> Iterable[Any]:
    """The paths that one of `EVENTS` tells of: those that it makes, reads or lists."""
    if event in LISTINGS:
        return ("." if args[0] is None else args[0],)
    if event == "prepcache.loaded":
        return files_of_import(*args)
    if event == "pickle.find_class":
        return files_of_module(str(args[0]))
    if event in STARTS:
        return list(named_by_start(event, args))
    if event == CONNECTS:
        return files_of(args[0])
    return (args[1] if event in _TO_ANOTHER else args[0],)


def named_by_start(event: str, args: tuple[Any, ...]) -> Iterator[str]:
    """The files that the command line of a process names: programs, scripts, arguments, words of a shell; and
    what reads as a path of one that is not there yet.

    Args:
        event: one of `STARTS`, with its arguments.
    """
    folder: Any = None
    environ: Any = None
    if event == "os.system":
        words = _words_of_shell(_text(args[0]))
    else:
        executable, given = args[0], args[1]
        if event == "subprocess.Popen":
            folder = args[2]
        environ = args[-1]
        texts = [text for one in (executable, *given) if (text := _text(one))]
        words = list(dict.fromkeys([*texts, *(t.partition("=")[2] for t in texts if t.startswith("-"))]))
        if os.path.basename(texts[0]) in _SHELLS:
            words += [word for text in texts for word in _words_of_shell(text)]
        words += _modules_run(words, environ)
    search = environ.get("PATH") if isinstance(environ, Mapping) else None
    folders = [_text(folder), *(words[i + 1] for i, word in enumerate(words[:-1]) if word in _ENTERS)]
    for word in filter(None, words):
        paths = [os.path.join(*folders[:1], above, word) for above in ("", *folders[1:])]
        there = list(dict.fromkeys(filter(os.path.isfile, paths)))
        yield from there
        if not there and os.sep not in word and (found := shutil.which(word, path=search)) is not None:
            yield found
        elif not there and word[0] != "-" and not {"/", "."}.isdisjoint(word):
            yield paths[0]


def is_of_system(path: str, roots: Iterable[str | None]) -> bool:
    """Whether a file is a command of the system's, and below none of the roots, or one of this environment's,
    whose distributions count."""
    folder = os.path.dirname(path)
    if folder == os.path.join(sys.exec_prefix, "bin"):
        return True
    is_command = folder in _SYSTEM or folder in os.get_exec_path()
    return is_command and not any(root is not None and path.startswith(root + os.sep) for root in roots)


def is_program(path: str) -> bool:
    """Whether a file on a command line is what runs, not what is read or written."""
    return path.endswith(_SCRIPTS) or os.access(path, os.X_OK)


def _modules_run(words: list[str], environ: Any) -> list[str]:
    """The files that `python -m name` may run, below its working directory or a folder on its path."""
    variables = environ if isinstance(environ, Mapping) else os.environ
    folders = ["", *_text(variables.get("PYTHONPATH", "")).split(os.pathsep)]
    stems = [words[i + 1].replace(".", os.sep) for i, word in enumerate(words[:-1]) if word == "-m"]
    tails = (".py", f"{os.sep}__main__.py")
    return [os.path.join(folder, stem + tail) for stem in stems for folder in folders for tail in tails]


def _words_of_shell(command: str) -> list[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a quotation that does not end
        return command.split()


def _text(value: Any) -> str:
    return os.fsdecode(value) if isinstance(value, str | bytes | os.PathLike) else ""


def is_by_import(frame: Any) -> bool:
    """Whether the import system lists a folder, for what it may hold."""
    name = frame.f_code.co_filename
    return name.startswith("<frozen importlib") or f"{os.sep}importlib{os.sep}" in name


def is_read_as_text(frame: Any, path: Any) -> bool:
    """Whether a module's file is opened in a frame to be read for itself; `linecache` shows its lines."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path).endswith(".py") or is_by_import(frame):
        return False
    above = frame.f_back
    return above is None or above.f_code.co_filename != linecache.__file__


def files_of_module(module: str) -> list[str]:
    """The files of a loaded module and of the packages it lies in."""
    parts = module.split(".")
    names = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return [path for name in names if (path := file_of(sys.modules.get(name))) is not None]


def files_of_import(module: str, frame: FrameType) -> list[str]:
    """The files of a module that was imported, and of those below it that its importer names in full.

    Args:
        frame: that in which `import_module` is answered; see NOTE [ Modules that were loaded before ].
    """
    called = frame.f_back
    importer = None if called is None else called.f_back
    texts = [] if importer is None else list(importer.f_locals.values())
    named = [text for text in texts if type(text) is str and text.startswith(module + ".")]
    return [path for name in (module, *named) for path in files_of_module(name)]


def file_of(module: Any) -> str | None:
    """The file of a loaded module, if it says one."""
    return getattr(module, "__dict__", {}).get("__file__")


def watch_imports(told: Callable[[str, FrameType], None]) -> None:
    """Calls `told`, which never raises, with each module that `importlib.import_module` gives, and the frame
    that answers it; see NOTE [ Modules that were loaded before ]. Called once in a process."""
    bootstrap: Any = sys.modules["_frozen_importlib"]
    original = getattr(bootstrap, "_gcd_import", None)
    if original is None:
        return

    def gcd_import(name: str, *args: Any) -> Any:
        module = original(name, *args)
        told(module.__name__ if isinstance(module, ModuleType) else name, sys._getframe())
        return module

    # What is opened below it is the import system's, for whoever imports.
    gcd_import.__code__ = gcd_import.__code__.replace(co_filename=original.__code__.co_filename)
    bootstrap._gcd_import = gcd_import
