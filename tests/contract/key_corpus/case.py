"""One case of the key corpus: a small project, an edit of it, and whether the key must change.

A case's `job.py` sets `fn`, and may set `config`, `items`, `options` (keyword arguments of
`prepcache.recipe`), `read` and `root`. It is run as `__main__` in a process of its own, before and after the
edit, and fingerprinted in both code modes; see `fingerprint.py`.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

Edit = Callable[[Path], None]
BOTH = ("script", "function")
JOB = "from prep import f as fn\n"


@dataclass(frozen=True)
class Case:
    """What `run.py` needs to know of a case.

    Args:
        changes: the modes in which the key must change; in the others it must stay.
        runs: whether `fn` is called on `items[0]` before the edit, so that observed inputs count.
        environ: environment variables, {name: (before, after)}.
        flags: interpreter flags after the edit, which then has an interpreter of its own.
        is_refused: whether there is no key: the value is refused by name.
    """

    name: str
    files: Mapping[str, str]
    edit: Edit
    changes: tuple[str, ...]
    runs: bool = False
    environ: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    is_refused: bool = False

    @property
    def is_must_change(self) -> bool:
        return bool(self.changes)

    def make(self, folder: Path) -> None:
        """Writes the project as it is before the edit."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))


def must_change(
    name: str,
    files: Mapping[str, str],
    *edits: Edit,
    job: str = JOB,
    changes: tuple[str, ...] = BOTH,
    **more: object,
) -> Case:
    """A case whose key changes in the named modes (both, unless said otherwise)."""
    return Case(name, {"job.py": job, **files}, every(*edits), changes, **more)  # type: ignore[arg-type]


def must_stay(
    name: str,
    files: Mapping[str, str],
    *edits: Edit,
    job: str = JOB,
    script_changes: bool = False,
    **more: object,
) -> Case:
    """A case whose key stays; `script_changes`: the default mode counts whole files, and so changes."""
    changes = ("script",) if script_changes else ()
    return Case(name, {"job.py": job, **files}, every(*edits), changes, **more)  # type: ignore[arg-type]


def one(name: str, source: str, old: str, new: str, **more: object) -> Case:
    """A case whose project is one module, prep.py."""
    return must_change(name, {"prep.py": source}, swap("prep.py", old, new), **more)  # type: ignore[arg-type]


def two(
    name: str, importing: str, helper: str, old: str, new: str, file: str = "helper.py", **more: str
) -> Case:
    """A case in which prep.py reaches another file, and the edit is there."""
    return must_change(name, {"prep.py": importing, file: helper, **more}, swap(file, old, new))


def by_job(name: str, source: str, job: str, **files: str) -> Case:
    """A case in which the entry script sets something to 5, then to 6."""
    return must_change(name, {"prep.py": source, **files}, swap("job.py", "5", "6"), job=JOB + job)


def every(*edits: Edit) -> Edit:
    def apply(project: Path) -> None:
        for edit in edits:
            edit(project)

    return apply


def swap(name: str, old: str, new: str) -> Edit:
    """Replaces the one place where `old` stands in a file."""

    def apply(project: Path) -> None:
        text = (project / name).read_text()
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {name}"
        (project / name).write_text(text.replace(old, new))

    return apply


def write(name: str, text: str) -> Edit:
    """Writes a file, in place if it is there."""

    def apply(project: Path) -> None:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(dedent(text))

    return apply


def write_keeping_times(name: str, text: str) -> Edit:
    """Writes a file of the same size and puts its access and modification times back."""

    def apply(project: Path) -> None:
        path = project / name
        stat = path.stat()
        assert len(text) == stat.st_size
        path.write_text(text)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    return apply


def replace_keeping_times(name: str, text: str) -> Edit:
    """Renames another file of the same size and times over a file."""

    def apply(project: Path) -> None:
        path, other = project / name, project / f"{name}.new"
        stat = path.stat()
        other.write_text(text)
        os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        other.replace(path)

    return apply


def rename(old: str, new: str) -> Edit:
    return lambda project: (project / old).rename(project / new) and None


def remove(name: str) -> Edit:
    return lambda project: (project / name).unlink()


def link(name: str, target: str) -> Edit:
    """Makes `name` a symbolic link to `target`, whatever it was."""

    def apply(project: Path) -> None:
        (project / name).unlink(missing_ok=True)
        (project / name).symlink_to(target)

    return apply


def hard_link(name: str, target: str) -> Edit:
    return lambda project: os.link(project / target, project / name)


def touch(name: str) -> Edit:
    return lambda project: os.utime(project / name, (1, 1))


def move_project(project: Path) -> None:
    """Moves the project; the link that is left leads the next pass to its new place."""
    copy = project.with_name("elsewhere")
    shutil.move(project, copy)
    project.symlink_to(copy, target_is_directory=True)


def nothing(project: Path) -> None:
    """The edit of cases in which only the circumstances differ."""
