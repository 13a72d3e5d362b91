"""What pydantic makes of functions, types and models: its own bookkeeping does not count, all else does."""
# ruff: noqa: E501

from typing import Any, Optional

import pydantic
import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

HEAD = "import pydantic, typing\n"
CALL = "@pydantic.validate_call\ndef g(x: int): return x\ndef f(x): return g(x)\n"


def test_other_globals_of_a_validated_function_do_not_count(project):
    digests = set()
    for other in ("[1]", "[2]", "(i for i in ())"):
        project.write(prep=f"{HEAD}OTHER = {other}\n{CALL}")
        digests.add(recipe(project.load().f, code="function").digest)
    assert len(digests) == 1


def test_an_adapter_of_a_type_is_refused_by_name(project):
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
    project, monkeypatch, field, variable, counts
):
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


def test_the_first_use_of_a_model_changes_no_key():
    space: dict[str, Any] = {"__name__": "made", "pydantic": pydantic, "Optional": Optional}
    exec("class A(pydantic.BaseModel):\n    s: Optional['B'] = None\n", space)
    exec("class B(pydantic.BaseModel):\n    k: int = 2\n", space)

    def f(x: Any, kind: Any = space["A"]) -> Any:
        return kind

    before = recipe(f, code="function").digest
    space["A"].model_rebuild(_types_namespace=space)
    assert recipe(f, code="function").digest == before
