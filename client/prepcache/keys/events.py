"""What Python's audit events tell of files, for observe.py: those that a process is started with.

NOTE [ Modules that were loaded before ]
    An import of what is loaded opens nothing. So `importlib.import_module` is watched by the function that
    it calls, and a module of the project that it gives counts with all that it imports; one of an
    installed distribution that the recipe does not count, by the distribution. Of "a.b.C" hydra imports
    `a` and gets the rest by attributes: where the caller has such a text, its modules count.

Not here: what the process opens by itself.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.system"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_SCRIPTS = (".py", ".sh", ".pl", ".rb", ".R", ".lua", ".js", ".jar")


def named_by_start(event: str, args: tuple[Any, ...]) -> Iterator[str]:
    """The files that the command line of a process names: programs, scripts, arguments, words of a shell.

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
        words += _modules_run(texts)
    search = environ.get("PATH") if isinstance(environ, Mapping) else None
    for word in filter(None, words):
        path = word if folder is None else os.path.join(_text(folder), word)
        if os.path.isfile(path):
            yield path
        elif os.sep not in word and (found := shutil.which(word, path=search)) is not None:
            yield found


def is_program(path: str) -> bool:
    """Whether a file on a command line is what runs, not what is read or written."""
    return path.endswith(_SCRIPTS) or os.access(path, os.X_OK)


def _modules_run(texts: list[str]) -> list[str]:
    """The files that `python -m name` may run, below its working directory."""
    stems = [texts[i + 1].replace(".", os.sep) for i, text in enumerate(texts[:-1]) if text == "-m"]
    return [stem + tail for stem in stems for tail in (".py", f"{os.sep}__main__.py")]


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
        told(module.__name__, sys._getframe())
        return module

    # What is opened below it is the import system's, for whoever imports.
    gcd_import.__code__ = gcd_import.__code__.replace(co_filename=original.__code__.co_filename)
    bootstrap._gcd_import = gcd_import
