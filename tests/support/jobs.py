"""Jobs: real training processes that share a sandbox's daemon and log every call of their function."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.forked import Forked, JobServers
from support.sandbox import Sandbox

PREAMBLE = '''
import json, os, sys, threading, time
from pathlib import Path
import numpy as np
import prepcache
from prepcache.daemon import waits
from prepcache.daemon.waits import PROCESS

# On a crowded machine a daemon may take longer to start, and to store what was made, than a job would wait.
if "BUDGET_S" not in os.environ:
    PROCESS.__init__(240.0)
    waits.SPARE_S = waits.HANDOVER_S = waits.BUDGET_S = 240.0
else:
    PROCESS.__init__(float(os.environ["BUDGET_S"]))

def called(item):
    """Notes one call; an append of a short line is atomic."""
    fd = os.open(os.environ["CALL_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (json.dumps(item if not isinstance(item, Path) else item.name) + "\\n").encode())
    os.close(fd)

def make(item):
    """What jobs that are about nothing else preprocess with."""
    called(item)
    return np.full(100, item)

def barrier():
    """Says that the imports are done, and waits until all jobs are told to go."""
    print("ready", flush=True)
    sys.stdin.readline()

def listening():
    """What is logged from now on."""
    import logging
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("prepcache").addHandler(handler)
    logging.getLogger("prepcache").setLevel("INFO")
    return lines

def tell(ds=None, **facts):
    """The last line of a job: what it saw."""
    if ds is not None:
        report = ds.report()
        names = "items hit computed waited declined bytes seconds seconds_saved why not_stored"
        facts |= {name: getattr(report, name) for name in names.split()}
    print(json.dumps(facts), flush=True)
'''


@dataclass
class Running:
    process: subprocess.Popen[str] | Forked

    def ready(self) -> None:
        self.says("ready")

    def says(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == f"{word}\n", (line, self.process.communicate()[1])

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def facts(self, exit_code: int = 0) -> Any:
        """What it told; it must have ended with that exit code."""
        out, err = self.process.communicate(timeout=240)
        assert self.process.returncode == exit_code, f"exit code {self.process.returncode}\n{out}\n{err}"
        lines = out.splitlines()
        return json.loads(lines[-1]) if lines and exit_code == 0 else err


def facts_together(running: list[Running]) -> list[Any]:
    """What jobs told that were all let go at once, after their imports."""
    for one in running:
        one.ready()
    for one in running:
        one.go()
    return [one.facts() for one in running]


@dataclass
class Jobs:
    """Scripts in a folder of their own, run against the sandbox's daemon.

    Args:
        servers: which fork jobs, for less than a start of Python; None starts every one.
    """

    box: Sandbox
    servers: JobServers | None = None
    started: list[Running] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.box.folder / "calls"

    def write(self, body: str, name: str = "job.py") -> Path:
        path = self.box.folder / name
        path.write_text(PREAMBLE + body)
        return path

    def start(self, script: Path, *arguments: Any, **environ: str) -> Running:
        """Starts a job, and before the first of them the daemon that it would start."""
        if self.box.daemons and not self.started and not {"PREPCACHE", "PREPCACHE_URL"} & environ.keys():
            self.box.start_daemon(environ)
        arguments = tuple(map(str, (script, *arguments)))
        is_forked = self.servers is not None and not any(name.startswith("PYTHON") for name in environ)
        environ = self.box.environ_of(script) | {"CALL_LOG": str(self.log)} | environ
        process: subprocess.Popen[str] | Forked
        if self.servers is not None and is_forked:
            process = self.servers.start(arguments, environ, self.box.folder)
        else:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environ,
                cwd=self.box.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        self.started.append(Running(process))
        return self.started[-1]

    def begin(self, script: Path, *arguments: Any, **environ: str) -> Running:
        """Starts a job that waits at its barrier after its imports, and lets it go on."""
        one = self.start(script, *arguments, **environ)
        one.ready()
        one.go()
        return one

    def run(self, script: Path, *arguments: Any, exit_code: int = 0, **environ: str) -> Any:
        return self.start(script, *arguments, **environ).facts(exit_code)

    def told(self, script: Path, *arguments: Any, **environ: str) -> str:
        """What a job says on its standard error, however it ends."""
        return self.start(script, *arguments, **environ).process.communicate(timeout=240)[1]

    def said(self, script: Path, *arguments: Any, **environ: str) -> tuple[Any, str]:
        """What a job that ends well told, and what it says on its standard error."""
        process = self.start(script, *arguments, **environ).process
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        return json.loads(out.splitlines()[-1]), err

    def together(self, script: Path, each: list[tuple[Any, ...]], **environ: str) -> list[Any]:
        """Runs a job for each tuple of arguments, all let go at once after their imports."""
        return facts_together([self.start(script, *arguments, **environ) for arguments in each])

    def calls(self) -> Counter[Any]:
        """How often the function was called for each item, over all jobs, since the last `forget`."""
        return Counter(map(json.loads, self.log.read_text().splitlines())) if self.log.exists() else Counter()

    def forget(self) -> None:
        self.log.unlink(missing_ok=True)

    def close(self) -> None:
        for one in self.started:
            if one.process.poll() is None:
                one.process.kill()
            one.process.communicate()
