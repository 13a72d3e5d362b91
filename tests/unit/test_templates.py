"""Templates: functions that were compiled from files in another language than Python."""

from __future__ import annotations

import pytest

from support.projects import Project, project_fixture  # noqa: F401


@pytest.mark.parametrize("code", ["script", "function"])
def test_a_template_in_a_global_counts_by_its_code(project: Project, code: str) -> None:
    project.write(
        prep="import jinja2, pathlib\nLOADER = jinja2.FileSystemLoader(pathlib.Path(__file__).parent)\n"
        "T = jinja2.Environment(loader=LOADER).get_template('a.j2')\ndef f(x): return T.render(x=x)"
    )
    project.put("a.j2", "{% if x %}one{% endif %}")
    before = project.digest(code=code)
    assert project.digest(code=code) == before
    project.put("a.j2", "{% if x %}two{% endif %}")
    assert project.digest(code=code) != before
