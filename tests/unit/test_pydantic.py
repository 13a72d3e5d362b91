"""What pydantic makes of functions, types and models: its own bookkeeping does not count, all else does."""
# ruff: noqa: E501

from __future__ import annotations

from typing import Any, ClassVar, Generic, Optional, TypeVar

import pydantic
import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

HEAD = "import pydantic, typing\n"
INNER = "class Inner(pydantic.BaseModel):\n    n: {0} = 1\n"
CASES = {
    "a validated function": "@pydantic.validate_call\ndef g(x: {0}): return x\ndef f(x): return g(x)\n",
    "a model that its annotation names": (
        f"{INNER}@pydantic.validate_call\ndef g(x: Inner): return x.n\ndef f(x): return g({{{{'n': x}}}})\n"
    ),
    "the same as text": (
        f"{INNER}@pydantic.validate_call\ndef g(x: 'Inner'): return x.n\ndef f(x): return g({{{{'n': x}}}})\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("case", CASES)
def test_edits_count_and_addresses_do_not(project: Project, case: str, code: Any) -> None:
    digests, given = [], []
    for kind in ("int", "int", "float"):
        project.write(prep=HEAD + CASES[case].format(kind))
        module = project.load()
        given.append(repr(module.f(3)))
        digests.append(recipe(module.f, code=code).digest)
    assert given == ["3", "3", "3.0"]
    assert digests[0] == digests[1] != digests[2]


def test_other_globals_of_a_validated_function_do_not_count(project: Project) -> None:
    digests = set()
    for other in ("[1]", "[2]", "(i for i in ())"):
        project.write(prep=f"{HEAD}OTHER = {other}\n{CASES['a validated function'].format('int')}")
        digests.add(recipe(project.load().f, code="function").digest)
    assert len(digests) == 1


def test_an_adapter_of_a_type_is_refused_by_name(project: Project) -> None:
    project.write(prep=f"{HEAD}T = pydantic.TypeAdapter(int)\ndef f(x): return T.validate_python(x)\n")
    with pytest.raises(UnkeyableError, match=r"prep\.T: .*TypeAdapter.*create it in the function"):
        project.recipe()


@pytest.mark.parametrize(
    ("field", "variable", "counts"),
    [
        ("size: int = 1", "of_it_size", True),
        ("size: dict = {}", "OF_IT_SIZE__X", True),
        ("size: int = pydantic.Field(1, validation_alias='EXTENT')", "EXTENT", True),
        ("size: int = 1", "OF_IT_SIZES", False),
    ],
)
def test_a_class_of_settings_counts_the_variables_that_it_reads(
    project: Project, monkeypatch: pytest.MonkeyPatch, field: str, variable: str, counts: bool
) -> None:
    """pydantic-settings puts their names together, of a prefix and the field's name, when one is made."""
    project.write(pydantic_settings="import pydantic\nclass BaseSettings(pydantic.BaseModel): pass\n")
    head = "import pydantic\nfrom pydantic_settings import BaseSettings\n"
    body = f"class S(BaseSettings):\n    model_config = {{'env_prefix': 'OF_IT_', 'env_nested_delimiter': '__'}}\n    {field}\n"
    project.write(prep=f"{head}{body}def f(x): return S().size * x\n")
    digests = set()
    for value in ("1", "2"):
        monkeypatch.setenv(variable, value)
        digests.add(project.digest(code="function"))
    assert len(digests) == 1 + counts


def test_a_models_fields_count_in_the_config_and_in_a_global(project: Project) -> None:
    """`model_dump(exclude_unset=True)` tells it from what is the default."""
    text = "import pydantic\nclass Over(pydantic.BaseModel):\n    crop: int = 1\n    size: int = 224\n"
    given, keys = [], []
    for made in ("Over(crop=4)", "Over(crop=4)", "Over(crop=4, size=224)", "Over(size=224, crop=4)"):
        project.write(
            prep=f"{text}OVER = {made}\ndef f(x, over=None): return (over or OVER).model_dump(exclude_unset=True)\n"
        )
        module = project.load()
        given.append(sorted(module.f(1)))
        of_config = recipe(module.f, config={"over": module.OVER}, untracked=("OVER",), code="function")
        keys.append((recipe(module.f, code="function").digest, of_config.digest))
    assert given[0] == given[1] != given[2] == given[3]
    assert keys[0] == keys[1] and keys[2] == keys[3]
    assert keys[0][0] != keys[2][0] and keys[0][1] != keys[2][1]


def test_the_first_use_of_a_model_changes_no_key() -> None:
    space: dict[str, Any] = {"__name__": "made", "pydantic": pydantic, "Optional": Optional}
    exec("class A(pydantic.BaseModel):\n    s: Optional['B'] = None\n", space)
    exec("class B(pydantic.BaseModel):\n    k: int = 2\n", space)

    def f(x: Any, kind: Any = space["A"]) -> Any:
        return kind

    before = recipe(f, code="function").digest
    space["A"].model_rebuild(_types_namespace=space)
    assert recipe(f, code="function").digest == before


def test_the_config_of_a_validated_call_counts() -> None:
    def held(config: Any) -> str:
        def g(x: str) -> str:
            return x

        checked = pydantic.validate_call(config=config)(g)
        return recipe(lambda x: checked(x), code="function").digest

    assert held({"str_to_lower": True}) != held({"str_to_upper": True})
    assert held({"str_to_lower": True}) == held({"str_to_lower": True})


T = TypeVar("T")


class Holder(pydantic.BaseModel, Generic[T]):
    value: T


def test_what_a_generic_model_is_given_counts() -> None:
    def digest(k: int) -> str:
        class Given(pydantic.BaseModel):
            number: ClassVar[int] = k

        kind = Holder[Given]
        return recipe(lambda x: kind, code="function").digest

    assert digest(1) != digest(2)
