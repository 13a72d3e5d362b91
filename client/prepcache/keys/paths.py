"""Paths: what a str or path in an item or a config stands for, and the bytes that it adds to the key.

    f name digest   a regular file           t name digest   a directory, by all that is under it
    0 name          a path that names nothing
    b digest, x digest   a file whose contents the function receives, as bytes or text: no name

A name is `r` (relative to `root=`) or `n` (as passed), its length, its bytes. A digest is always the last 32
bytes, so that it can be filled in when it is known.

Invariants:
    1. A str is a path only if it looks like one and names a regular file. All other text costs no stat, and
       what lies on the disk under its name does not change its key.
    2. Only ENOENT and ENOTDIR mean that a path names nothing; any other failure is an error.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from prepcache.keys.encoding.encoder import Encoder, length
from prepcache.keys.files.digest import Trust, digest_file, digest_tree, kind_of, printable, stat_or_none
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.markers import Tree

Read = Literal["path", "bytes", "text"]

_NO_FILE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)  # of what no function could open
_TAGS = {"a file": b"f", "a directory": b"t", "missing": b"0"}
LONGEST = 4096  # PATH_MAX on Linux


def check_reading(read: Any, trust: Any) -> None:
    for name, given, choices in (("read", read, get_args(Read)), ("trust", trust, get_args(Trust))):
        if given not in choices:
            raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, not {given!r}")


def looks_like_path(text: str) -> bool:
    """Whether a str may name a file: it holds a separator or ends in a suffix, not dots and slashes alone.

    Not so: "cat", "train", ".", "/", ".bashrc", "U.S.", "He left. She stayed".
    """
    if "/" in text:
        return len(text) < LONGEST and bool(text.strip("./"))
    stem, _, suffix = text.rpartition(".")
    return bool(stem.strip(".")) and suffix.split() == [suffix] and len(text) < LONGEST


def name_bytes(name: str) -> bytes:
    """A name as the filesystem has it, whatever the locale that it was listed under."""
    try:
        return os.fsencode(name)
    except UnicodeEncodeError:  # a literal that the locale lacks, or a lone surrogate
        return name.encode("utf-8", "surrogatepass")


class Named(NamedTuple):
    """What a str or path names: its payload but for the digest, and its stat, None for nothing."""

    name: str
    head: bytes
    info: os.stat_result | None
    is_tree: bool


class PathRules:
    """Decides what strs and paths stand for. Names under `root` count relative to it."""

    def __init__(
        self, root: str | os.PathLike[str] | None = None, read: Read = "path", takes_directories: bool = True
    ) -> None:
        self.read = read
        self.takes_directories = takes_directories  # without `tree()`: in items, not in configs
        self.has_looked = False  # whether something was met that may name a file
        roots = () if root is None else (os.fspath(root) or ".", os.path.abspath(root))
        self._roots = tuple(os.path.join(one, "") for one in roots)

    def look_up(self, value: Any, encoder: Encoder) -> Named | None:
        """What a str, path or `tree()` names; None for a str that is text."""
        is_tree = isinstance(value, Tree)
        target = value.value if is_tree else value
        is_text = isinstance(target, str) and not is_tree
        # Contents are given for paths that `items.load` can replace, and a str that is the whole item.
        is_read = self.read != "path" and not is_tree and encoder.opaque_depth == 0
        is_read &= not is_text or len(encoder.steps) == 1
        if is_text and not is_read and not looks_like_path(target):
            return None
        self.has_looked = True
        name = os.fsdecode(target)
        try:
            info = stat_or_none(name)
        except OSError as error:
            if is_text and (error.errno in _NO_FILE or isinstance(error, PermissionError)):
                return None
            raise encoder.refuse(f"{printable(name)} cannot be looked up: {error.strerror}") from error
        kind = "missing" if info is None else kind_of(info)
        if is_text and not is_read and kind != "a file":
            return None
        wanted = "a directory" if is_tree else "a file" if is_read else kind
        if kind != wanted:
            by = f"read={self.read!r}" if is_read else "tree()"
            raise encoder.refuse(f"{printable(name)} is {kind}, but {by} takes {wanted}")
        if kind not in _TAGS:
            raise encoder.refuse(f"{printable(name)} is {kind}, which has no bytes to hash")
        if kind == "a directory" and not (is_tree or self.takes_directories):
            raise encoder.refuse(
                f"{printable(name)} is a directory; pass prepcache.tree(path) to count all files under it, "
                "or prepcache.plain(value) to count only the name"
            )
        contents = b"b" if self.read == "bytes" else b"x"
        head = contents if is_read else _TAGS[kind] + self.named(name)
        return Named(name, head, info, kind == "a directory")

    def named(self, name: str) -> bytes:
        relative = self._relative(name) if self._roots else None
        raw = name_bytes(name if relative is None else relative)
        return (b"n" if relative is None else b"r") + length(len(raw)) + raw

    def _relative(self, name: str) -> str | None:
        if "//" not in name and "/." not in name:
            for root in self._roots:
                if name.startswith(root):
                    return name[len(root) :]
        absolute = os.path.join(os.path.abspath(name), "")
        is_inside = absolute.startswith(self._roots[-1])
        return absolute[len(self._roots[-1]) : -1] if is_inside else None


def path_hook(stat_cache: StatCache | None, trust: Trust) -> Callable[[Any, Encoder], bytes | None]:
    """The `on_path` hook for configs and run-time values: file rules, directories only by `tree()`."""
    rules = PathRules(takes_directories=False)

    def on_path(value: Any, encoder: Encoder) -> bytes | None:
        named = rules.look_up(value, encoder)
        if named is None:
            return None
        if named.info is None:
            return named.head
        digest = digest_tree if named.is_tree else digest_file
        return named.head + digest(named.name, stat_cache, trust).digest

    return on_path
