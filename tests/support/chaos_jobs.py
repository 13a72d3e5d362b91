"""The six jobs of the chaos test: a script that checks every sample, and says what its data sets did."""

from support.jobs import PREAMBLE

KINDS = [("fill", 0), ("workers", 1), ("lazy", 2), ("loader", 0), ("expand", 1), ("expand", 2)]
"""The six jobs: how each works, and on which of the three data sets."""
SALTS = 2
"""Configs that a job draws from at every opening: what nobody has open is idle, and may be evicted."""
DIED = 75
"""The exit code of a job one of whose workers was killed."""
JOB = (
    PREAMBLE
    + f"\nSALTS, DIED = {SALTS}, {DIED}\n"
    + """
import faulthandler, random, signal

faulthandler.register(signal.SIGUSR2, chain=False)
wait = threading.Event()

def step():
    fd = os.open(os.environ["CALL_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, b"x")
    os.close(fd)

def sample(item, salt):
    return np.random.default_rng([item, salt]).integers(0, 256, (3, 32, 32), np.uint8), item

def make(item, salt):
    wait.wait(0.002 + item % 5 / 500)
    step()
    return sample(item, salt)

def parts(item, salt):
    for number in range(item % 4):
        yield sample(1000 * item + number, salt)

def expand(item, salt):
    wait.wait(0.005)
    step()
    yield from parts(item, salt)

def same(got, want):
    assert got[0].dtype == want[0].dtype and np.array_equal(got[0], want[0]), want[1]
    assert got[1] == want[1], (got[1], want[1])

def epoch(ds, want, order):
    for start in range(0, len(order), 32):
        for at, got in zip(order[start : start + 32], ds.__getitems__(order[start : start + 32])):
            same(got, want[at])
        step()

class Died(Exception):
    pass

def loaded(ds, want, salt):
    from torch.utils.data import DataLoader

    seen = []
    batches = iter(DataLoader(ds, batch_size=32, shuffle=True, num_workers=2))
    try:
        for values, items in batches:
            step()
            for value, item in zip(values.numpy(), items.tolist()):
                same((value, item), sample(item, salt))
                seen.append(item)
    except Exception as error:  # a killed worker shows as any of many errors of torch's queues
        for worker in batches._workers:
            worker.join(1)
        if any(worker.exitcode == -signal.SIGKILL for worker in batches._workers):
            raise Died(error) from error
        raise
    assert sorted(seen) == sorted(item for _, item in want)

def main():
    kind, items, seed, rounds = sys.argv[1], range(*map(int, sys.argv[2].split(","))), *map(int, sys.argv[3:])
    draw = random.Random(seed)
    for _ in range(rounds):
        salt = draw.randrange(SALTS)
        options = {"config": {"salt": salt}, "untracked": ("wait",), "progress": False}
        mine = draw.sample(items, len(items))
        if kind == "expand":
            want = [row for item in mine for row in parts(item, salt)]
            ds = prepcache.CachedDataset(mine, expand, expand=True, **options)
        else:
            want = [sample(item, salt) for item in mine]
            ds = prepcache.CachedDataset(
                mine, make, num_workers=2 * (kind == "workers"), lazy=kind == "lazy", **options
            )
        assert len(ds) == len(want)
        for _ in range(2):
            if kind in ("lazy", "loader"):
                loaded(ds, want, salt)
            else:
                epoch(ds, want, draw.sample(range(len(want)), len(want)))

if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # torch's handler of SIGCHLD raises wherever the job is
        is_told = "worker died" in str(error) or "DataLoader worker" in str(error)
        if not is_told and not isinstance(error, Died):
            raise
        print(error, file=sys.stderr)
        sys.exit(DIED)
"""
)
