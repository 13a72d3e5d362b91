"""The daemon's own figures: python -m benchmarks.daemon [--entries N ...] [--out FOLDER]

For each number of entries: how long a start takes beside a bare SELECT of the index's rows in the same run,
and what the whole daemon has resident then; how long a miss takes to explain where all entries have its name;
how long answers of 1,000 artifacts take, and pages of 1,000 entries, and /healthz beside these; 8 clients
that resolve 20 times a second each, while another job commits beyond the budget, so that eviction, merging
and a scrub run, and beside them a client that asks for /healthz, and two threads that pass a byte there and
back, as the measure of the machine's own noise; and what is resident after it. Last, the index's writer is
held for HELD_S, as by a slow disk, while jobs register recipes: clients that look up and beat must not wait
for it.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.entries import NAME, PER_RECIPE, fill, recipe
from prepcache.protocol import wire

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.serving import http_client, open_job, process  # noqa: E402

CLIENTS, RATE = 8, 20
HELD_S = 4.0
REGISTERING = 8
AIMS = {"start": 3.0, "explain_s": 1.0, "p99_ms": 10.0, "answer_ms": 30.0, "held_p99_ms": 20.0}


class Connection(http.client.HTTPConnection):
    """One that is kept open, on a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))

    def ask(self, method: str, path: str, body: Any = None, session: str | None = None) -> Any:
        headers = {wire.PROTOCOL_HEADER: str(wire.PROTOCOL)}
        if session is not None:
            headers[wire.SESSION_HEADER] = session
        self.request(method, path, None if body is None else json.dumps(body), headers)
        response = self.getresponse()
        raw = response.read()
        if response.status >= 400:
            raise SystemExit(raw.decode())
        return raw


def resident_mb(pid: int, name: str = "VmRSS") -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def select_s(root: Path) -> float:
    began = time.perf_counter()
    conn = sqlite3.connect(root / "v1" / "index.sqlite")
    for _ in conn.execute("SELECT * FROM artifacts"):
        pass
    conn.close()
    return time.perf_counter() - began


def latencies(
    path: Path, seconds: float, clients: int, ask: Callable[[Connection, str, int], None]
) -> list[float]:
    """Of requests that clients send at RATE each, whatever the answers take."""
    found: list[float] = []
    until = time.monotonic() + seconds

    def client(number: int) -> None:
        connection = Connection(path)
        opened = json.loads(
            connection.ask("POST", "/v1/sessions", {"name": "load", "pid": os.getpid(), "host": "here"})
        )
        session = wire.session_header(opened["session"], opened["token"])
        due, count = time.monotonic() + number / (clients * RATE), number
        while due < until:
            time.sleep(max(0.0, due - time.monotonic()))
            began = time.perf_counter()
            ask(connection, session, count)
            found.append(time.perf_counter() - began)
            due, count = due + 1 / RATE, count + 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


def resolve(connection: Connection, session: str, number: int) -> None:
    asked = {"recipe": recipe(10**6 + number % 100), "name": "load", "generation": 0, "hold": True}
    connection.ask("POST", "/v1/resolve", asked, session)


def answer(connection: Connection, session: str, number: int) -> None:
    asked = {"recipe": recipe(number % 50), "name": "load", "generation": 0, "hold": True}
    connection.ask("POST", "/v1/resolve", asked, session)


def beat(connection: Connection, session: str, _number: int) -> None:
    connection.ask("POST", f"/v1/sessions/{session.partition('.')[0]}/beat", {}, session)


def register(path: Path, number: int) -> float:
    """Registers a recipe that nobody knows, which needs the writer; how long that took."""
    began = time.perf_counter()
    asked = {"recipe": recipe(3 * 10**6 + number), "name": "load", "generation": 0, "register": {"format": 1}}
    Connection(path).ask("POST", "/v1/resolve", asked)
    return time.perf_counter() - began


def held_writer(path: Path, root: Path) -> dict[str, Any]:
    """What look-ups and beats take while the index's writer is held and registrations wait for it."""
    holder = sqlite3.connect(root / "v1" / "index.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(REGISTERING + 2) as beside:
        registered = [beside.submit(register, path, number) for number in range(REGISTERING)]
        looked = beside.submit(in_process, latencies, path, HELD_S, CLIENTS // 2, resolve)
        beaten = beside.submit(in_process, latencies, path, HELD_S, CLIENTS // 2, beat)
        figures = {"resolve": told(looked.result()), "beat": told(beaten.result())}
        assert not any(one.done() for one in registered), "the writer was not held"
        holder.execute("ROLLBACK")
        waited_ms = max(one.result() for one in registered) * 1e3
    holder.close()
    return {**figures, "registered_ms": waited_ms}


def explain_s(path: Path) -> float:
    """How long the explanation of a new recipe takes, of the name that all entries have."""
    began = time.perf_counter()
    Connection(path).ask("POST", "/v1/explain", {"name": NAME, "parts": {"format": 1, "version": "new"}})
    return time.perf_counter() - began


def health(connection: Connection, _session: str, _number: int) -> None:
    connection.ask("GET", "/healthz")


def passed(seconds: float) -> list[float]:
    """How long a byte takes to a waiting thread and back, RATE times a second: no daemon has a part in it."""
    ours, theirs = socket.socketpair()

    def give_back() -> None:
        while theirs.recv(1):
            theirs.sendall(b"a")

    other = threading.Thread(target=give_back)
    other.start()
    found: list[float] = []
    due = time.monotonic()
    until = due + seconds
    while due < until:
        time.sleep(max(0.0, due - time.monotonic()))
        began = time.perf_counter()
        ours.sendall(b"a")
        ours.recv(1)
        found.append(time.perf_counter() - began)
        due += 1 / RATE
    ours.close()
    other.join()
    theirs.close()
    return found


def listing(connection: Connection, _session: str, _number: int) -> None:
    connection.ask("GET", "/v1/entries?limit=1000")


def churn(path: Path, staging: str) -> None:
    """A job that commits small artifacts, and a large one now and then, until it is ended."""
    http, count = http_client(path), 0
    job = open_job(http, "churn")
    while True:
        count += 1
        is_large = count % 20 == 0
        size_bytes = 8 << 20 if is_large else 20_000
        job.fill(staging, [f"{os.getpid()} {count} {number}" for number in range(4)], size_bytes=size_bytes)
        if is_large:  # who goes on holding it, or looks its recipe up, is declined the next
            job.close()
            job = open_job(http, "churn")
            job.recipe = recipe(2 * 10**6 + count)
        time.sleep(0.1)


def in_process(work: Callable[..., Any], *args: Any) -> Any:
    """Runs it where the interpreter is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, args)


def told(found: list[float]) -> dict[str, float]:
    ordered = sorted(found)
    return {
        "requests": len(found),
        "p50_ms": statistics.median(ordered) * 1e3,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1e3,
    }


def measure(folder: Path, entries: int, seconds: float) -> dict[str, Any]:
    root, path = folder / "root", folder / "s.sock"
    fill(root, entries)
    selects, starts, explained, resident = [], [], [], []
    for _ in range(3):
        selects.append(select_s(root))
        began = time.perf_counter()
        with process(folder, "--max-bytes", "1TiB", "--min-free", "0") as daemon:
            Connection(path).ask("GET", "/healthz")
            starts.append(time.perf_counter() - began)
            explained.append(explain_s(path))
            resident.append(resident_mb(daemon.pid))
    figures: dict[str, Any] = {
        "entries": entries,
        "select_s": min(selects),
        "start_s": min(starts),
        "start_to_select": statistics.median(a / b for a, b in zip(starts, selects, strict=True)),
        "explain_s": max(explained),
        "resident_mb": max(resident),
    }
    return figures | _under_load(folder, path, root, entries, seconds)


def _under_load(folder: Path, path: Path, root: Path, entries: int, seconds: float) -> dict[str, Any]:
    budget = f"{entries * 8192 * 100 // 98 + (64 << 20)}"
    context = multiprocessing.get_context("spawn")
    with process(folder, "--max-bytes", budget, "--min-free", "0") as daemon:
        alone = told(in_process(latencies, path, seconds / 2, 1, answer)) if entries >= PER_RECIPE else None
        with ThreadPoolExecutor(1) as beside:
            asked = beside.submit(in_process, latencies, path, seconds / 2, 1, health)
            listed = told(in_process(latencies, path, seconds / 2, 1, listing))
            beside_listing = told(asked.result())
        job = context.Process(target=churn, args=(path, str(root / "v1" / "staging")))
        job.start()
        with ThreadPoolExecutor(2) as beside:
            asked = beside.submit(in_process, latencies, path, seconds, 1, health)
            bare = beside.submit(in_process, passed, seconds)
            busy = in_process(latencies, path, seconds, CLIENTS, resolve)
        job.kill()
        job.join()
        stats = json.loads(Connection(path).ask("GET", "/v1/stats"))
        held = held_writer(path, root)
        return {
            "answer_1000": alone,
            "listing_1000": listed,
            "healthz_beside_listing": beside_listing,
            "resolve_under_load": told(busy),
            "healthz_under_load": told(asked.result()),
            "byte_under_load": told(bare.result()),
            "writer_held": held,
            "background": {
                name: stats[name] for name in ("merges", "evictions", "scrubbed_bytes", "commits")
            },
            "resident_after_load_mb": resident_mb(daemon.pid),
            "resident_peak_mb": resident_mb(daemon.pid, "VmHWM"),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daemon", description=__doc__)
    parser.add_argument("--entries", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=30.0, help="of load")
    parser.add_argument("--folder", type=Path, help="on which disk; default the system's temporary folder")
    parser.add_argument("--out", type=Path, help="for daemon.json")
    args = parser.parse_args()
    found = []
    for entries in args.entries:
        with tempfile.TemporaryDirectory(prefix="prepcache-benchmarks-", dir=args.folder) as name:
            found.append(measure(Path(name), entries, args.seconds))
        print(json.dumps(found[-1], indent=1), flush=True)
    print(f"aims: {AIMS}; resident 100 MB at 100,000 entries, 250 MB at 1,000,000")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "daemon.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
