"""A daemon in trouble of its own: the job goes on, and one line says why its samples are not kept."""

import shutil

import pytest

JOB = """
import prepcache
from prepcache.daemon import session
from prepcache.errors import StoreError

def fail(*given, **named):
    raise StoreError("the daemon met an unforeseen error")

session.Session.lease = fail
ds = prepcache.CachedDataset(range(5), abs)
assert list(ds) == list(range(5))
"""


def test_a_fill_that_ends_early_says_why_once(box):
    box.start_daemon()
    said = box.python("-c", JOB).stderr.splitlines()
    assert [line for line in said if "unforeseen" in line] == [
        "prepcache: builtins.abs: new samples are not stored: the daemon met an unforeseen error"
    ]


LATE = """
import prepcache
from prepcache.daemon import session
from prepcache.errors import StoreError

def fail(*given, **named):
    raise StoreError("the daemon stands still for a moment")

resolve, lease = session.Session.resolve, session.Session.lease
session.Session.resolve = session.Session.lease = fail
ds = prepcache.CachedDataset(range(5), abs, lazy=LAZY)
session.Session.resolve, session.Session.lease = resolve, lease
ds.prepare()
print(ds.cached())
"""


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_recipe_that_failed_to_register_is_registered_later(box, is_lazy):
    box.start_daemon()
    done = box.python("-c", LATE.replace("LAZY", str(is_lazy)))
    assert (done.stdout, "is not registered" in done.stderr) == ("5\n", False)


GONE = """
import os, sys
os.mkdir("gone")
os.chdir("gone")
os.rmdir(os.getcwd())
sys.path[0] = os.path.dirname(sys.argv[1])
import prepcache, prep
ds = prepcache.CachedDataset(["a", sys.argv[1], 3], prep.f, progress=False, lazy="lazy" in sys.argv)
print([ds[i] for i in range(3)], ds.report().hit)
"""


def test_a_job_works_in_a_removed_working_directory(box):
    box.start_daemon()
    read = box.folder / "prep" / "read"
    read.parent.mkdir()
    read.write_text("1")
    read.with_name("item").write_text("an item")
    read.with_name("prep.py").write_text(f"def f(item): return str(item)[-4:] + open({str(read)!r}).read()")

    def run(*options: str) -> str:
        return box.python("-c", GONE, read.with_name("item"), *options).stdout

    assert run("lazy") == "['a1', 'item1', '31'] 0\n"
    assert run() == "['a1', 'item1', '31'] 3\n"
    read.write_text("2")
    assert run() == "['a2', 'item2', '32'] 0\n"


EMBEDDED = """
import sys
sys.executable = None
del sys.argv
import prepcache, prep
ds = prepcache.CachedDataset(range(3), prep.f)
print(list(ds), ds.report().computed)
"""


@pytest.mark.parametrize("is_running", [False, True], ids=["no daemon", "a daemon"])
def test_a_program_that_embeds_python_has_its_samples(box, is_running):
    """R's reticulate and C++ applications have no interpreter of their own to name, and no command line."""
    (box.folder / "prep.py").write_text("def f(item): return item")
    if is_running:
        box.start_daemon()
    done = box.python("-c", EMBEDDED)
    assert done.stdout == "[0, 1, 2] 3\n"
    assert ("start `prepcached serve` yourself" in done.stderr) is not is_running


FULL = """
import prepcache
ds = prepcache.CachedDataset(range(5), abs, lazy=LAZY, num_workers=WORKERS)
assert list(ds) == list(range(5))
print(ds.report().declined)
"""


def test_no_room_for_a_recipe_is_said_with_the_remedy(box):
    why = f"no room for new samples: the disk under {box.folder}/cache/prepcache has "
    free = shutil.disk_usage(box.folder)
    full = {"PREPCACHED_MIN_FREE": str((free.free + free.total) // 2)}
    box.start_daemon(full)
    done = box.python("-c", FULL.replace("LAZY", "False").replace("WORKERS", "2"))
    lazy = box.python("-c", FULL.replace("LAZY", "True").replace("WORKERS", "0"))
    status = box.python("-m", "prepcache", "status")
    explained = box.python("-m", "prepcache", "explain")
    (opening,) = [line for line in done.stderr.splitlines() if why in line]
    assert "miss builtins.abs: no room" in opening
    assert "set PREPCACHED_MIN_FREE, then run `prepcached stop`" in opening
    assert done.stdout == "5\n"
    assert "is not registered" not in done.stderr + lazy.stderr
    assert lazy.stdout == "5\n" and lazy.stderr.count(why) == 1
    assert "saturated: new samples are not stored; the disk has " in status.stdout
    assert why in explained.stdout
