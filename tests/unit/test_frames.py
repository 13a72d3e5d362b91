"""Globals that a library looks up in the frame of its caller, by a text: pandas', numexpr's, duckdb's."""
# ruff: noqa: E501

import pytest

from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}
# Each row: a module whose `f` does not change, and which names TH, or `keep`, in a text only.
ROWS = {
    "of pandas": "def f(x): return x.query('a > @TH')",
    "of numexpr": "import math as numexpr\ndef f(x): return numexpr.evaluate('a*TH')",
    "by a word": "def f(x): return x.evaluate('TH')",
    "of duckdb": "import math as duckdb\ndef f(x): return duckdb.sql('select sum(a) from TH')",
    "of a connection": "def f(x): return x.execute('select sum(a) from TH')",
    "in a text that is put together": "def f(x): return x.query(f'a > @TH and b > {x.n}')",
    "a function": "def keep(a): return a > TH\ndef f(x): return x.query('@keep(a)')",
    "an attribute of a namespace": "import types\nargs = types.SimpleNamespace(th=TH, other=1)\ndef f(x): return x.query('a > @args.th')",
    "in a function within": "def f(x):\n    def g(y): return y.query('a > @TH')\n    return g(x)",
    "in a global": "RULE = 'a > @TH'\ndef f(x): return x.query(RULE)",
    "by a word in a global": "RULE = 'TH'\ndef f(x): return x.sql(f'select * from {RULE}')",
    "by a word in a list": "RULES = ['TH']\ndef f(x): return [x.sql(f'select * from {r}') for r in RULES]",
    "by a word in a dict": "RULES = {'one': 'TH'}\ndef f(x): return [x.sql(f'select * from {r}') for r in RULES.values()]",
    "by a word in a default": "def f(x, rule='TH'): return x.sql(f'select * from {rule}')",
    "in an object": (
        "class Rule:\n    def __init__(self, text): self.text = text\n    def of(self, x): return x.query(self.text)\n"
        "rule = Rule('a > @TH')\ndef f(x): return rule.of(x)"
    ),
    "in code that hands it over": "def g(x, rule): return x.query(rule)\ndef f(x): return g(x, 'a > @TH')",
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("name", ROWS)
def test_what_a_text_names_counts_by_value(project, name, code):
    project.write(prep=f"TH = 5\n{ROWS[name]}")
    module = project.load()
    before = recipe(module.f, code=code).digest
    module.TH = 6
    if hasattr(module, "args"):
        module.args.th = 6
    assert recipe(module.f, code=code).digest != before


@pytest.mark.parametrize(
    "text",
    ["def f(x): return x.select('a > @TH')", "import other as TH\ndef f(x): return x.query('a > TH')"],
    ids=["nobody looks it up", "module"],
)
def test_other_words_do_not_count(project, text):
    project.write(prep=f"TH = 5\n{text}", other="X = 1")
    values = project.recipe(**FUNCTION).parts["code"]["values"]
    assert values.keys().isdisjoint({"prep.TH", "other.X"})


PANDAS = "import pandas as pd\nTH = 1\nd = pd.DataFrame({'a': [1, 2, 3]})\ndef f(x): return d.query('a > @TH')['a'].sum()"
NUMEXPR = "import numexpr\nTH = 1\ndef f(x): return int(numexpr.evaluate('x * TH'))"
DUCKDB = "import duckdb, pandas as pd\nTH = pd.DataFrame({'a': [1, 2]})\ndef f(x): return duckdb.sql('select sum(a) from TH').fetchall()"


@pytest.mark.parametrize("text", [PANDAS, NUMEXPR, DUCKDB], ids=["pandas", "numexpr", "duckdb"])
def test_the_libraries_look_there(project, text):
    for library in ("pandas", "numexpr", "duckdb"):
        if library in text:
            pytest.importorskip(library)
    project.write(prep=text)
    module = project.load()
    before, given = recipe(module.f).digest, module.f(2)
    assert recipe(module.f).digest == before
    module.TH = module.TH * 2
    assert module.f(2) != given
    assert recipe(module.f).digest != before


def test_what_a_text_in_the_config_names_counts(project):
    text = "TH = {}\ndef f(x, rule): return x.query(rule)"
    project.write(prep=text.format(5))
    config = {"rule": "a > @TH"}
    assert changes(project, lambda: project.write(prep=text.format(6)), config=config, **FUNCTION)
