"""Data: every way in which the bytes or the visible name of an item change."""

from .case import (
    Case,
    hard_link,
    link,
    must_change,
    must_stay,
    nothing,
    remove,
    rename,
    replace_keeping_times,
    swap,
    touch,
    write,
    write_keeping_times,
)

READ = {"prep.py": "def f(path):\n    return path.read_bytes()\n", "a.txt": "one", "b.txt": "two"}
ITEM = """
    from pathlib import Path
    from prep import f as fn
    root = Path(__file__).parent
    items = [{}]
"""


def job(item: str, more: str = "") -> str:
    return ITEM.format(item) + "    " + more + "\n"


FILE = job('root / "a.txt"')
FOLDER = job('root / "d"')
DIRECTORY = {**READ, "d/x.txt": "one", "d/sub/y.txt": "two"}

CASES: list[Case] = [
    must_change("file bytes, same size", READ, write("a.txt", "eno"), job=FILE),
    must_change("file bytes, longer", READ, write("a.txt", "one more"), job=FILE),
    must_change("file emptied", READ, write("a.txt", ""), job=FILE),
    must_change("file bytes, size and mtime put back", READ, write_keeping_times("a.txt", "eno"), job=FILE),
    must_change("file replaced by rename, same size and mtime", READ, replace_keeping_times("a.txt", "eno"), job=FILE),
    must_change("file became a link to another", READ, link("a.txt", "b.txt"), job=FILE),
    must_change("written through a link's target", {**READ, "link-target.txt": "one"}, write("link-target.txt", "eno"),
                job='import os, pathlib\np = pathlib.Path(__file__).parent\n(p / "l.txt").exists() or (p / "l.txt").symlink_to("link-target.txt")\nfrom prep import f as fn\nroot = p\nitems = [p / "l.txt"]\n'),
    must_change("written through another hard link", READ, hard_link("other-name", "a.txt"), write("other-name", "eno"), job=FILE),
    must_change("file renamed, name visible", READ, rename("a.txt", "c.txt"), job=job('next(root.glob("[ac].txt"))')),
    must_change("file moved within root", READ, rename("a.txt", "prep.txt"), job=job('min(root.glob("[ap]*.txt"))')),
    must_change("file vanished: a typed name", READ, remove("a.txt"), job=FILE),
    must_change("directory item: a file's bytes", DIRECTORY, write("d/x.txt", "eno"), job=FOLDER),
    must_change("directory item: a nested file's bytes", DIRECTORY, write("d/sub/y.txt", "owt"), job=FOLDER),
    must_change("directory item: a file added", DIRECTORY, write("d/z.txt", ""), job=FOLDER),
    must_change("directory item: a file renamed", DIRECTORY, rename("d/x.txt", "d/w.txt"), job=FOLDER),
    must_change("directory item: a file moved down", DIRECTORY, rename("d/x.txt", "d/sub/x.txt"), job=FOLDER),
    must_change("str that names a file", READ, write("a.txt", "eno"), job=job('str(root / "a.txt")')),
    must_change("path in a dict in a tuple", READ, write("a.txt", "eno"), job=job('(1, {"p": root / "a.txt"})')),
    must_change("tree() in an item", DIRECTORY, write("d/x.txt", "eno"), job="import prepcache\n" + job('prepcache.tree(root / "d")').replace("\n    ", "\n")),
    must_change("read=bytes: bytes", READ, write("a.txt", "eno"), job=job('root / "a.txt"', 'read = "bytes"')),
    must_change("read=text: bytes", READ, write("a.txt", "eno"), job=job('root / "a.txt"', 'read = "text"')),
    must_change("two files of a pair swapped", READ, write("a.txt", "two"), write("b.txt", "one"), job=job('(root / "a.txt", root / "b.txt")')),
    must_change("str that came to name a file", READ, write("n.txt", ""), job=job('str(root / "n.txt")')),
    must_stay("file touched", READ, touch("a.txt"), job=FILE),
    must_stay("file rewritten with the same bytes", READ, write("a.txt", "one"), job=FILE),
    must_stay("file replaced by its copy", READ, replace_keeping_times("a.txt", "one"), job=FILE),
    must_stay("file's permissions", READ, lambda p: (p / "a.txt").chmod(0o600), job=FILE),
    must_stay("hard link made to a file", READ, hard_link("second", "a.txt"), job=FILE),
    must_stay("another item's bytes", READ, write("b.txt", "eno"), job=FILE),
    must_stay("directory item: a file touched", DIRECTORY, touch("d/x.txt"), job=FOLDER),
    must_stay("read=bytes: renamed", READ, rename("a.txt", "c.txt"), job=job('next(root.glob("[ac].txt"))', 'read = "bytes"')),
    must_stay("plain() opts a str out", READ, write("a.txt", "eno"), job="import prepcache\n" + job('prepcache.plain("a.txt")').replace("\n    ", "\n")),
]  # fmt: skip


def value(name: str, before: str, after: str, stays: bool = False) -> Case:
    """A case in which the item itself is another value."""
    code = "import numpy as np, torch\n\nfrom prep import f as fn\nitems = [{}]\n"
    edit = swap("job.py", f"items = [{before}]", f"items = [{after}]") if before != after else nothing
    make = must_stay if stays else must_change
    return make(
        f"item: {name}", {"prep.py": "def f(x):\n    return x\n"}, edit, job=code.replace("{}", before)
    )


CASES += [
    value("int for bool", "1", "True"),
    value("float for int", "1", "1.0"),
    value("str for int", "1", "'1'"),
    value("bytes for str", "'a'", "b'a'"),
    value("list for tuple", "(1, 2)", "[1, 2]"),
    value("order in a tuple", "(1, 2)", "(2, 1)"),
    value("where one str ends", "('ab', 'c')", "('a', 'bc')"),
    value("nesting", "((1,), 2)", "((1, 2),)"),
    value("array: one value", "np.array([1, 2])", "np.array([1, 3])"),
    value("array: dtype of the same bytes", "np.zeros(2, 'i4')", "np.zeros(2, 'f4')"),
    value("array: shape of the same bytes", "np.zeros((2, 3))", "np.zeros((3, 2))"),
    value("array for list", "[1, 2]", "np.array([1, 2])"),
    value("numpy scalar for int", "1", "np.int64(1)"),
    value("tensor: one value", "torch.tensor([1, 2])", "torch.tensor([1, 3])"),
    value("tensor: bfloat16 for float16", "torch.zeros(2).bfloat16()", "torch.zeros(2).half()"),
    value("tensor for array", "np.zeros(2, 'f4')", "torch.zeros(2)"),
    value("array in Fortran order", "np.ones((2, 3))", "np.asfortranarray(np.ones((2, 3)))", stays=True),
    value("tensor not contiguous", "torch.ones(2, 3)", "torch.ones(3, 2).t()", stays=True),
    value("order in a dict", "{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", stays=True),
    value("one NaN", "float('nan')", "-float('nan')", stays=True),
]  # fmt: skip
