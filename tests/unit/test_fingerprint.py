"""The fingerprint of loaded code: what does nothing to what runs changes none, all else does."""

import pytest

from prepcache.keys.code.fingerprint import fingerprint, nested
from support.programs import python


def of(text: str) -> str:
    """The fingerprint of the one function that a text defines."""
    (code,) = [
        code for code in nested(compile(text, "x.py", "exec", dont_inherit=True)) if code.co_name == "f"
    ]
    return fingerprint(code)


ALIKE = {
    "a docstring": ("def f(x):\n  'One.'\n  return x", "def f(x):\n  return x"),
    "another docstring of a class": (
        "def f(x):\n  class A:\n    'One.'\n    k = 1",
        "def f(x):\n  class A:\n    'Two.'\n    k = 1",
    ),
    "a docstring before a loop": (
        "def f(x):\n  class A:\n    'One.'\n    for k in x: pass",
        "def f(x):\n  class A:\n    for k in x: pass",
    ),
    "where it stands": ("def f(x):\n  return x", "\n\n\nK = 1\ndef f(x):\n\n  return (\n    x)"),
    "a pass": ("def f(x):\n  if x: pass\n  return x", "def f(x):\n  if x:\n\n    pass\n  return x"),
    "a try on one line": (
        "def f(x):\n  try: return g(x)\n  except KeyError: pass",
        "def f(x):\n  try:\n    return g(x)\n  except KeyError:\n    pass",
    ),
    "names of other functions": ("def f(x):\n  return x", "def g(y): return 1\ndef f(x):\n  return x"),
}
DIFFERING = {
    "the type of a constant": ("def f(x): return x + 1", "def f(x): return x + 1.0"),
    "a bool for an int": ("def f(x): return x == 1", "def f(x): return x == True"),
    "the sign of a zero": ("def f(x): return 0.0", "def f(x): return -0.0"),
    "a constant in a tuple": ("def f(x): return x in (1, 2)", "def f(x): return x in (1, True)"),
    "a constant in a set": ("def f(x): return x in {1, 'a'}", "def f(x): return x in {1, 'b'}"),
    "an attribute": ("def f(x): return x.real", "def f(x): return x.imag"),
    "a global": ("def f(x): return abs(x)", "def f(x): return len(x)"),
    "a global for a local": ("def f(x): return x", "def f(y): return x"),
    "where a loop goes on": (
        "def f(x):\n  for y in x:\n    if y: continue\n    g(y)\n    h(y)",
        "def f(x):\n  for y in x:\n    if y: break\n    g(y)\n    h(y)",
    ),
    "what a handler is for": (
        "def f(x):\n  try:\n    g(x)\n    h(x)\n  except KeyError:\n    k(x)",
        "def f(x):\n  g(x)\n  try:\n    h(x)\n  except KeyError:\n    k(x)",
    ),
    "a keyword-only argument": ("def f(x, y): return y", "def f(x, *, y): return y"),
    "what it compiles": ("def f(x):\n  exec(x)", "from __future__ import annotations\ndef f(x):\n  exec(x)"),
}


@pytest.mark.parametrize("what", ALIKE)
def test_what_does_nothing_to_what_runs_does_not_count(what):
    before, after = ALIKE[what]
    assert of(before) == of(after)


@pytest.mark.parametrize("what", DIFFERING)
def test_what_runs_otherwise_has_another_fingerprint(what):
    before, after = DIFFERING[what]
    assert of(before) != of(after)


def test_long_code_with_far_jumps_has_a_fingerprint_of_its_own():
    lines = "\n".join(f"    y = x[{n}] if x else y.a{n}" for n in range(600))
    text = f"def f(x, y=0):\n  for z in x:\n{lines}\n  return y"
    assert of(text) == of(text.replace("\n  return y", "\n\n\n  return y"))
    assert of(text) != of(text.replace("x[599]", "x[598]"))


def test_neither_the_hash_seed_nor_what_has_run_counts():
    ask = (
        "from prepcache.keys.code.fingerprint import fingerprint\n"
        "def f(x): return x in {'aa', 'bb', 'cc'} or (x + x)[: len(x)]\n"
        "before = fingerprint(f.__code__.replace())\nfor _ in range(2000): f('aa'), f('c')\n"
        "assert fingerprint(f.__code__.replace()) == before\nprint(before)"
    )
    found = {python("-c", ask, env={"PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")}
    assert len(found) == 1
