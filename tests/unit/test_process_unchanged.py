"""An import of prepcache changes nothing of the process, and a watched function adds one audit hook."""

import os

from support.programs import python
from support.sandbox import NO_TORCH

JOB = """
import sys
added = []
sys.addaudithook(lambda event, args: added.append(event) if event == "sys.addaudithook" else None)
import concurrent.futures.thread, gc, genericpath, importlib, importlib.util, io, os, pathlib, posixpath
import builtins, contextvars, signal, threading
forks = []
register, os.register_at_fork = os.register_at_fork, lambda **calls: forks.append(calls)

MODULES = (os, posixpath, genericpath, pathlib, importlib, importlib._bootstrap, concurrent.futures.thread,
           concurrent.futures, threading, io, builtins, signal, contextvars, sys)

def functions(space):
    for name, value in sorted(vars(space).items()):
        if hasattr(value, "__code__"):
            yield name, id(value), id(value.__code__)
        elif callable(value):
            yield name, id(value), 0

def state():
    monitoring = getattr(sys, "monitoring", None)
    found = {"tools": [monitoring.get_tool(i) for i in range(6)] if monitoring else []}
    for module in MODULES:
        found[module.__name__] = list(functions(module))
        for name, value in sorted(vars(module).items()):
            if isinstance(value, type):
                found[f"{module.__name__}.{name}"] = list(functions(value))
    found |= {
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), list(map(id, gc.callbacks))),
        "finders": (list(map(id, sys.meta_path)), list(map(id, sys.path_hooks)), list(sys.path)),
        "threads": [thread.name for thread in threading.enumerate()],
        "signals": [signal.getsignal(one) for one in sorted(signal.valid_signals())],
        "environ": dict(os.environ),
        "tracing": (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()),
        "modules": {name for name in sys.modules if name.partition(".")[0] in ("numpy", "torch", "httpx")},
    }
    return found

def differing(before, after):
    return sorted(name for name in before if before[name] != after[name])

before = state()
import prepcache
assert differing(before, state()) == [] and not added and not forks, (differing(before, state()), added)
os.register_at_fork = register

from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import recipe
path = sys.argv[1]

def asks(item):
    with open(f"{path}") as file:
        there = os.path.exists(path + ".absent"), pathlib.Path(path).exists()
        return file.read(), there, len(os.listdir("."))

before = state()
observer = Observer(recipe(asks, untracked=("path",)))
for item in range(3):
    with observer.watching([], asks) as watch:
        assert asks(item)[0] == "text"
    assert not watch.failure
    kinds = {(row["kind"], os.path.basename(row["name"])) for row in observer.taken()}
    assert kinds >= {("file", "a.txt"), ("file", "a.txt.absent"), ("folder", "cwd:.")}, kinds
    assert differing(before, state()) == ["modules"][: before["modules"] != state()["modules"]]
assert added == ["sys.addaudithook"], added
"""


def test_nothing_of_the_process_is_changed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text")
    python("-c", JOB, path, cwd=tmp_path)


LAST = """
import builtins, contextlib, json, sys
import prepcache
from prepcache.keys.observation import watches

class Last:
    '''Opens a file when it is collected, as temporary files and loggers of libraries do.'''
    def __del__(self, open=open, write=sys.stdout.write):
        try:
            open("/dev/null").close()
        except BaseException as error:
            write(f"failed: {error!r}\\n")
        write("tried\\n")

prepcache.CachedDataset([1], str, progress=False)
for module in (prepcache, watches, builtins, contextlib, json, sys):
    module.last_of_all = Last()
"""


def test_what_opens_files_at_the_end_does_not_fail(tmp_path):
    environ = os.environ | {"PREPCACHE": "off", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(NO_TORCH)}
    done = python("-c", LAST, env=environ)
    assert "tried" in done.stdout and "failed" not in done.stdout, done.stdout
    assert not done.stderr, done.stderr
