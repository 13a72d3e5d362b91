"""What classes keep of values that their text only names: slots, annotations, what libraries make of fields."""
# ruff: noqa: E501

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}
HEAD = "from typing import *\nimport dataclasses, json, pathlib, typing\n"
PYDANTIC = f"{HEAD}import pydantic\nfrom pydantic import Field\n"
# Each row: a module whose `f` does not change, and what its constant C is before and after.
ROWS = {
    "slots": (HEAD, "class R:\n    __slots__ = tuple(C)\ndef f(x): return R.__slots__", "['a', 'b']", "['b', 'a']"),
    "slots of a view": (HEAD, "class R:\n    __slots__ = dict.fromkeys(C).keys()\ndef f(x): return R", "'ab'", "'ac'"),
    "slots of an iterator": (HEAD, "class R:\n    __slots__ = (n for n in C)\ndef f(x): return R", "'ab'", "'ac'"),
    "slots of a class within": (
        HEAD, "class O:\n    class R:\n        __slots__ = list(C)\ndef f(x): return O.R.__slots__", "'ab'", "'ac'",
    ),
    "slots of a class made at run time": (HEAD, "R = type('R', (), {'__slots__': C})\ndef f(x): return R", "'ab'", "'ac'"),
    "what a pattern matches by": (HEAD, "class R:\n    __match_args__ = tuple(C)\n    a = b = 1\ndef f(x): return R", "'ab'", "'ba'"),
    "data in an annotation": (
        HEAD, "class R:\n    n: Annotated[int, C]\ndef f(x): return get_type_hints(R, include_extras=True)", "1", "2",
    ),
    "the same within another": (HEAD, "class R:\n    n: list[Annotated[int, C]]\ndef f(x): return R", "1", "2"),
    "the same in a callable's": (HEAD, "class R:\n    n: Callable[[Annotated[int, C]], int]\ndef f(x): return R", "1", "2"),
    "an object in an annotation": (
        HEAD, "class Meta:\n    def __init__(self, n): self.n = n\nclass R:\n    n: Annotated[int, Meta(C)]\ndef f(x): return R", "1", "2",
    ),
    "data in an annotation as text": (
        f"from __future__ import annotations\n{HEAD}",
        "class R:\n    n: Annotated[int, C]\ndef f(x): return get_type_hints(R, include_extras=True)", "1", "2",
    ),
    "data in an annotation of a function as text": (
        f"from __future__ import annotations\n{HEAD}",
        "def g(n: Annotated[int, C]): return n\ndef f(x): return get_type_hints(g, include_extras=True)", "1", "2",
    ),
    "data of a module in an annotation as text": (
        f"from __future__ import annotations\nimport prep\n{HEAD}",
        "class R:\n    n: Annotated[int, prep.C]\ndef f(x): return get_type_hints(R, include_extras=True)", "1", "2",
    ),
    "literals of names": (HEAD, "class R:\n    n: Literal[tuple(C)]\ndef f(x): return R", "'ab'", "'ac'"),
    "annotation of a function that is a text": (HEAD, "def g(a: C): return a\ndef f(x): return g.__annotations__", "'a'", "'b'"),
    "annotation of a function that is a list": (HEAD, "def g(a: C): return a\ndef f(x): return g.__annotations__", "[1, 2]", "[1, 3]"),
    "data in a base": (
        HEAD, "T = TypeVar('T')\nclass B(Generic[T]): pass\nclass R(B[Literal[C]]): pass\ndef f(x): return R.__orig_bases__", "1", "2",
    ),
    "metadata of attrs": (
        f"import types\n{HEAD}", "class R: pass\nR.__attrs_attrs__ = (types.SimpleNamespace(name='n', metadata={'s': C}),)\ndef f(x): return R", "1", "2",
    ),
    "limit of a field": (PYDANTIC, "class M(pydantic.BaseModel):\n    n: int = Field(le=C)\ndef f(x): return M(n=x)", "5", "6"),
    "the same where annotations are text": (
        f"from __future__ import annotations\n{PYDANTIC}",
        "class M(pydantic.BaseModel):\n    n: int = Field(le=C)\ndef f(x): return M(n=x)", "5", "6",
    ),
    "limit of a field that is computed": (
        PYDANTIC, "def limit(): return C\nclass M(pydantic.BaseModel):\n    n: int = Field(le=limit())\ndef f(x): return M(n=x)", "5", "6",
    ),
    "limit of a type": (PYDANTIC, "class M(pydantic.BaseModel):\n    n: pydantic.constr(max_length=C)\ndef f(x): return M(n=x)", "5", "6"),
    "limit of a type within": (
        PYDANTIC, "class M(pydantic.BaseModel):\n    n: list[pydantic.constr(max_length=C)]\ndef f(x): return M(n=x)", "5", "6",
    ),
    "limit of a field in a function": (
        PYDANTIC,
        "def made(c):\n    class M(pydantic.BaseModel):\n        n: int = Field(le=c)\n    return M\nM = made(C)\ndef f(x): return M(n=x)", "5", "6",
    ),
    "limit of a parameter of a generic model": (
        PYDANTIC,
        "T = TypeVar('T')\nclass G(pydantic.BaseModel, Generic[T]):\n    n: T\nM = G[Annotated[int, Field(le=C)]]\ndef f(x): return M(n=x)", "5", "6",
    ),
    "limit of a field of a dataclass": (
        PYDANTIC, "import pydantic.dataclasses as d\n@d.dataclass\nclass M:\n    n: int = Field(le=C)\ndef f(x): return M(n=x)", "5", "6",
    ),
    "alias of a field": (PYDANTIC, "class M(pydantic.BaseModel):\n    n: int = Field(0, alias=C)\ndef f(x): return M(**x)", "'a'", "'b'"),
    "literals of a field": (PYDANTIC, "class M(pydantic.BaseModel):\n    n: Literal[tuple(C)]\ndef f(x): return M(n=x)", "'ab'", "'ac'"),
    "description of a field": (
        PYDANTIC, "class M(pydantic.BaseModel):\n    n: int = Field(description=C)\ndef f(x): return M.model_json_schema()", "'a'", "'b'",
    ),
    "fields that a validator is for": (
        PYDANTIC,
        "class M(pydantic.BaseModel):\n    a: int = 1\n    b: int = 2\n    @pydantic.field_validator(*C)\n    def check(cls, v): return -v\n"
        "def f(x): return M(a=x, b=x)", "'a'", "'b'",
    ),
    "alias of a computed field": (
        PYDANTIC,
        "class M(pydantic.BaseModel):\n    @pydantic.computed_field(alias=C)\n    @property\n    def n(self) -> int: return 1\n"
        "def f(x): return M().model_dump(by_alias=True)", "'a'", "'b'",
    ),
    "private attribute": (PYDANTIC, "class M(pydantic.BaseModel):\n    _n: int = C\ndef f(x): return M()._n", "1", "2"),
    "factory of a private attribute": (
        PYDANTIC, "class M(pydantic.BaseModel):\n    _n: int = pydantic.PrivateAttr(default_factory=lambda c=C: c)\ndef f(x): return M()._n", "1", "2",
    ),
}  # fmt: skip
READ = "C = json.loads(pathlib.Path(__file__).with_name('c.json').read_text())\n"


@pytest.mark.parametrize("name", ROWS)
def test_a_value_that_went_into_a_class_changes_the_key(project: Project, name: str) -> None:
    head, text, before, after = ROWS[name]
    project.write(prep=f"{head}C = {before}\n{text}")
    assert changes(project, lambda: project.write(prep=f"{head}C = {after}\n{text}"), **FUNCTION)


@pytest.mark.parametrize("name", ["slots", "data in an annotation as text", "limit of a field"])
def test_so_does_one_that_was_read_from_a_file(project: Project, name: str) -> None:
    head, text, before, after = ROWS[name]
    project.write(prep=head + READ + text)
    project.put("c.json", before.replace("'", '"'))
    assert changes(project, lambda: project.put("c.json", after.replace("'", '"')))


def test_the_metadata_of_fields_of_attrs_counts(project: Project) -> None:
    pytest.importorskip("attr")
    text = "import attrs\n@attrs.define\nclass R:\n    n: int = attrs.field(metadata={'s': $})\ndef f(x): return attrs.fields(R)"
    project.write(prep=text.replace("$", "1"))
    assert changes(project, lambda: project.write(prep=text.replace("$", "2")), **FUNCTION)


LAZY = "import dataclasses, json, pathlib, typing\n{0}class R:\n    n: typing.Literal[{1}]\n"


def test_a_lazy_modules_class_text_does_not_count_twice(project: Project) -> None:
    project.write(prep="def f(x):\n    from late import R\n    return R", late=LAZY.format("", "'a', 5"))
    module = project.load()
    before = recipe(module.f).digest
    module.f(1)
    assert recipe(module.f).digest == before


def test_what_a_lazy_modules_class_names_counts(project: Project) -> None:
    project.write(
        prep="import late\ndef f(x):\n    from late import R\n    return R", late=LAZY.format(READ, "C")
    )
    project.put("c.json", "1")
    assert changes(project, lambda: project.put("c.json", "2"))


def test_a_model_that_is_completed_at_its_first_use_has_one_key(project: Project) -> None:
    project.write(
        prep=PYDANTIC
        + "class M(pydantic.BaseModel):\n    model_config = pydantic.ConfigDict(alias_generator=str.upper, defer_build=True)\n"
        "    n: 'Later | None' = Field(None, title='n')\n    m: int = Field(0, le=5)\n"
        "    @pydantic.computed_field\n    @property\n    def c(self) -> 'Later | None': return None\n"
        "class Later(pydantic.BaseModel): pass\ndef f(x): return M()"
    )
    module = project.load()
    before = recipe(module.f, **FUNCTION)
    module.f(1)
    assert module.M.__pydantic_complete__
    assert recipe(module.f, **FUNCTION).digest == before.digest


def test_docstrings_of_computed_fields_do_not_count(project: Project) -> None:
    text = (
        PYDANTIC
        + "class M(pydantic.BaseModel):\n    @pydantic.computed_field\n    @property\n    def n(self) -> int:\n"
        "        '''$'''\n        return 1\ndef f(x): return M().n"
    )
    project.write(prep=text.replace("$", "one"))
    assert not changes(project, lambda: project.write(prep=text.replace("$", "two")), **FUNCTION)


ALL = (
    f"{PYDANTIC}C = 'ab'\nclass Meta:\n    def __init__(self, n): self.n = n\n"
    "class M(pydantic.BaseModel):\n    a: Annotated[str, Field(max_length=5), Meta({1, 2})] = Field('a', alias='q', pattern='a+')\n"
    "    b: list[pydantic.constr(max_length=5, strip_whitespace=True)] = Field([], discriminator=None, examples=[1])\n"
    "    c: Literal['x', 'y'] = 'x'\n    d: Annotated[int, pydantic.AfterValidator(lambda n: n + 1)] = 1\n"
    "    e: Annotated[int, pydantic.WithJsonSchema({'type': 'integer'}), pydantic.Strict()] = Field(1, gt=0, multiple_of=1)\n"
    "    g: pydantic.SecretStr | pydantic.HttpUrl | None = Field(None, union_mode='left_to_right', json_schema_extra={'a': 1})\n"
    "    _p: dict = pydantic.PrivateAttr(default_factory=dict)\n"
    "    @pydantic.field_validator('a', 'c', mode='before')\n    def v(cls, v): return v\n"
    "    @pydantic.model_validator(mode='after')\n    def w(self): return self\n"
    "    @pydantic.field_serializer('d')\n    def s(self, v) -> int: return v\n"
    "    @pydantic.computed_field(alias='z')\n    @property\n    def n(self) -> int: return 1\n"
    "class R:\n    __slots__ = {*C}\nclass S:\n    __slots__ = [*C]\ndef f(x): return M(q='a'), R, S\n"
)
PRINT = "import prep\nfrom prepcache.keys.recipes import recipe\nprint(recipe(prep.f).digest)\nprep.f(1)\nprint(recipe(prep.f).digest)"


def test_one_class_has_one_key_in_every_process(project: Project) -> None:
    project.write(prep=ALL)
    printed = []
    for seed in ("1", "2"):
        path = os.pathsep.join([str(project.folder), *sys.path])
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        made = subprocess.run(
            [sys.executable, "-c", PRINT], env=environ, capture_output=True, text=True, check=True
        )
        printed += made.stdout.split()
    assert len(printed) == 4
    assert len(set(printed)) == 1
