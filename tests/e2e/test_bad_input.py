"""Bad input to a data set: a clear error that names the thing and the ways out, and no entry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.jobs import Jobs
from support.sandbox import sandbox

HELPERS = {
    "fine.py": "def g(x): return x\n",
    "vanishes.py": "def g(x): return x\n",
    "unreadable.py": "def g(x): return x\n",
    "edited.py": "def g(x): return x\n",
    "broken.py": "def (\n",
}
JOB = """
import socket, py_compile, os
import fine, vanishes, unreadable, edited

def good(item): return fine.g(item)
def on_vanished(item): return vanishes.g(item)
def on_unreadable(item): return unreadable.g(item)
def on_edited(item): return edited.g(item)
def on_broken(item):
    import broken
    return broken.g(item)
def on_bytecode(item):
    import bytecode
    return bytecode.g(item)

LINES = (line for line in ())
class Holder:
    def __init__(self): self.lines = (line for line in ())
HOLDER = Holder()
SOCKET = socket.socket()
def on_lines(item): return LINES, item
def on_holder(item): return HOLDER, item
def on_socket(item): return SOCKET, item

class Trap:
    @property
    def boom(self): raise RuntimeError("the property was read")
    def __getstate__(self): return {"boom": self.boom}

def with_config(item, **config): return item

os.unlink("vanishes.py")
os.unlink("unreadable.py"); os.symlink("/proc/self/mem", "unreadable.py")
open("edited.py", "w").write("def g(x): return -x\\n")
open("bytecode.py", "w").write("def g(x): return x\\n")
py_compile.compile("bytecode.py", cfile="bytecode.pyc"); os.unlink("bytecode.py")
cycle = {"a": [1]}
cycle["a"].append(cycle)

def attempt(function, config=None, **options):
    try:
        # Only the function and what it reaches: the script has all of the trouble in one file.
        prepcache.CachedDataset(range(3), function, config, code=options.pop("code", "function"),
                                progress=False, **options)
    except prepcache.PrepcacheError as error:
        return [type(error).__name__, str(error)]
    return None

good_first = attempt(good)
told = {name: attempt(globals()[name]) for name in list(globals()) if name.startswith("on_")}
told["cycle"] = attempt(with_config, {"cycle": cycle})
told["trap"] = attempt(with_config, {"trap": Trap()})
told["held socket"] = attempt(with_config, {"holder": {"deep": [SOCKET]}})
with prepcache.Client() as client:
    entries = len(list(client.entries()))
told["good"] = good_first
told["large"] = attempt(with_config, {"text": "x" * (50 << 20), "size": 3})
with prepcache.Client() as client:
    filled = len(list(client.entries()))
    parts = max(len(json.dumps(dict(client.recipe(one.digest).parts))) for one in client.recipes())
SOCKET.close()
tell(told=told, entries=entries, filled=filled, parts=parts)
"""
NAMED = {
    "on_broken": ("broken.py cannot be parsed", "version="),
    "on_bytecode": ("bytecode", "only as bytecode"),
    "on_lines": ("LINES", "untracked="),
    "on_holder": ("HOLDER", "untracked="),
    "on_socket": ("SOCKET", "untracked="),
    "cycle": ("config.cycle.a[1]", "contains itself"),
    "trap": ("config.trap", "the property was read"),
    "held socket": ("config.holder.deep[0]", "register_key"),
}


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    with sandbox() as box:
        box.start_daemon()  # a job would not wait for it, and keep for the end what it makes meanwhile
        jobs = Jobs(box)
        for name, text in HELPERS.items():
            (box.folder / name).write_text(text)
        yield jobs
        jobs.close()


def test_an_unkeyable_value_is_refused_with_the_ways_out(jobs: Jobs) -> None:
    """All in one job; what is fine, and a config of 50 MB, go through in the same process."""
    found = jobs.run(jobs.write(JOB))
    for name, said in NAMED.items():
        assert found["told"][name] is not None, f"{name} went through"
        _, message = found["told"][name]
        for words in said:
            assert words in message, (name, message)
    for name in ("on_vanished", "on_unreadable", "on_edited"):
        assert found["told"][name] is None, f"{name}: what is loaded counts, whatever became of its file"
    assert found["entries"] == 1 + 4, "that of the start, and those of the functions that have keys"
    assert found["told"]["good"] is None and found["told"]["large"] is None
    assert found["filled"] == 1 + 4 + 1
    assert found["parts"] < 100_000, "a large config is shown short"


DRIFT = """
SIZE = 1
SEEN = {}
def f(item):
    SEEN.setdefault("first", item)
    return item * SIZE

ds = prepcache.CachedDataset(range(6), f, lazy=True, code="function")
before = [ds[0], ds[1]]
SIZE = 10
ds._samples.by.steady._look_at = 0.0
after = [ds[2], ds[3], ds[2]]
try:
    ds.prepare()
    refused = ""
except prepcache.UnkeyableError as error:
    refused = str(error)
SIZE = 1
tell(before=before, after=after, refused=refused)
"""
LOOK = "tell(samples=[ds[i] for i in range(6)])"


def test_a_global_changed_while_open_is_named_and_not_stored(
    jobs: Jobs,
) -> None:
    script = jobs.write(DRIFT, "drift.py")
    running = jobs.start(script)
    out, err = running.process.communicate(timeout=240)
    assert running.process.returncode == 0, err
    said = [line for line in err.splitlines() if "changed since the data set was opened" in line]
    assert len(said) == 1 and "drift.SIZE" in said[0] and "untracked=" in said[0], err
    assert '"after": [20, 30, 20]' in out and "drift.SIZE changed since" in out
    told = jobs.run(jobs.write(DRIFT.partition("before = ")[0] + LOOK, "drift.py"))
    assert told["samples"] == [0, 1, 2, 3, 4, 5]
