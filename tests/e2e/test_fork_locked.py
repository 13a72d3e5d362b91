"""A fork while other threads hold prepcache's locks: in the child nobody would ever let go of them."""

LOCKED = """
import gc, pickle, signal
import torch
from prepcache.daemon.session import Session

KINDS = (type(threading.Lock()), type(threading.RLock()))

def stream():
    return iter(range(300, 330))

def opened(first):
    eager = prepcache.CachedDataset(range(first, first + 20), make, progress=False)
    lazy = prepcache.CachedDataset(range(first + 100, first + 120), make, lazy=True, progress=False)
    lazy[0]
    listed = prepcache.CachedIterableDataset(range(first + 200, first + 220), make, progress=False)
    streamed = prepcache.CachedIterableDataset(stream, make, progress=False)
    begun = iter(streamed)
    next(begun)
    return eager, lazy, listed, streamed, begun

def locks():
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "prepcache"]
    classes = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    objects = [one for one in gc.get_objects() if str(type(one).__module__).partition(".")[0] == "prepcache"]
    found = {}
    for owner in [*modules, *classes, *(one for one in objects if hasattr(one, "__dict__"))]:
        for name, value in vars(owner).items():
            if type(value) in KINDS:  # isinstance() asks what a weak proxy stands for, which may be gone
                where = type(owner).__name__ if owner in objects else owner.__name__
                found[id(value)] = value, f"{where}.{name}"
    return found.values()

eager, lazy, listed, streamed, begun = opened(0)
held, names, over = threading.Event(), [], threading.Event()

def hold():
    taken = []
    for lock, name in locks():
        if lock.acquire(timeout=5):  # else it is held, too: by a thread that waits for one taken before
            taken.append(lock)
        names.append(name)
    held.set()
    over.wait()
    for lock in taken:
        lock.release()

def headers():
    return {one.header for one in Session._all.values()}

theirs = headers()
holder = threading.Thread(target=hold, daemon=True)
holder.start()
held.wait()
if (child := os.fork()) == 0:
    signal.alarm(120)  # ends it
    assert [int(eager[3][0]), int(lazy[7][0])] == [3, 107]
    assert [int(one[0]) for one in eager.__getitems__([1, 2])] == [1, 2]
    eager.prepare(), lazy.prepare(), eager.cached(), lazy.report(), streamed.report()
    assert [int(one[0]) for one in listed] == list(range(200, 220))
    assert [int(one[0]) for one in begun] == list(range(301, 330))
    assert [int(one[0]) for one in streamed] == list(range(300, 330))
    assert int(pickle.loads(pickle.dumps(lazy))[5][0]) == 105
    opened(1000)
    lazy._samples.on_access.run()
    lazy._samples.on_access.committer.flush()
    assert theirs.isdisjoint(headers()), "a child has sessions of its own"
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
over.set()
holder.join()
tell(code=code, names=sorted(set(names)))
"""


def test_a_forked_child_waits_for_no_lock_of_its_parent(jobs):
    told = jobs.run(jobs.write(LOCKED))
    assert told["code"] == 0
    known = {
        "Session._opening",
        "ArtifactSet.filling",
        "ForkLock._lock",
        "ArtifactSet.lock",
        "Heartbeat._lock",
    }
    assert known <= set(told["names"]), told["names"]
