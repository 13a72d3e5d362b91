"""Problem documents: every error of the tree passes through one and comes out as itself."""

from __future__ import annotations

import json

from prepcache.errors import PrepcacheError, all_errors, from_problem
from prepcached import problems


def test_every_error_comes_out_as_itself() -> None:
    for cls in all_errors():
        error = cls("what, where, and what to do", lease="abc", count=3, names=["x"])
        answer = problems.response(error)
        assert answer.status_code == cls.status and answer.media_type == problems.PROBLEM_TYPE
        again = from_problem(json.loads(bytes(answer.body)))
        assert type(again) is cls and again.message == error.message
        assert (again.lease, again.count, again.names) == ("abc", 3, ["x"])


def test_a_problem_document_holds_only_plain_extra_members() -> None:
    error = PrepcacheError("text", status=7, code="x", thing=object(), bad=[object()], path="/a")
    body = json.loads(bytes(problems.response(error).body))
    assert (body["status"], body["code"], body["path"]) == (500, "prepcache-error", "/a")
    assert "thing" not in body and "bad" not in body
