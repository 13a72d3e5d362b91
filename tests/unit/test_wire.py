"""Messages: what is sent comes back, what is wrong is refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepcache.errors import BadRequest, PrepcacheError, all_errors, from_problem
from prepcache.protocol import inspection, wire
from prepcached import problems
from support.programs import python

HEX = "ab" * 32
REF = {"key": HEX, "digest": HEX, "size_bytes": 9, "items": 1, "rows": 2, "cost_s": 0.5}
MESSAGES = [
    value
    for value in {**vars(wire), **vars(inspection)}.values()
    if isinstance(value, type) and issubclass(value, wire.Message) and value is not wire.Message
]


@pytest.mark.parametrize(("change", "field"), [
    ({"generation": -1}, "generation"), ({"generation": True}, "generation"),
    ({"generation": 1.0}, "generation"), ({"generation": 2**63}, "generation"),
    ({"is_complete": 1}, "is_complete"), ({"artifacts": {}}, "artifacts"),
    ({"artifacts": [{**REF, "digest": "../../etc/passwd"}]}, "artifacts[0].digest"),
    ({"artifacts": [REF, {**REF, "key": HEX.upper()}]}, "artifacts[1].key"),
    ({"artifacts": [{**REF, "cost_s": float("nan")}]}, "artifacts[0].cost_s"),
    ({"artifacts": [{**REF, "cost_s": float("inf")}]}, "artifacts[0].cost_s"),
    ({"artifacts": [{**REF, "observed": ["x"]}]}, "artifacts[0].observed[0]"),
    ({"observed": {HEX: ["x"]}}, "observed[...][0]"),
])  # fmt: skip
def test_what_is_wrong_is_named(change, field):
    good = {"generation": 1, "is_complete": True, "artifacts": []}
    with pytest.raises(BadRequest) as caught:
        wire.Resolved.from_json({**good, **change})
    assert caught.value.data["field"] == field
    assert caught.value.message.startswith(field)


def test_a_folder_is_an_absolute_path():
    answer = {"session": "s", "token": "t", "instance": "i", "root": "relative", "staging": "/s"}
    for root in ("relative", "/a\0b"):
        with pytest.raises(BadRequest, match="root must be"):
            wire.SessionAnswer.from_json({**answer, "root": root})


@pytest.mark.parametrize("items", ["0", "0" * 63, "zz" * 32, "00 " * 32, 7, None])
def test_a_run_of_digests_is_hex_of_whole_digests(items):
    with pytest.raises(BadRequest, match="items must be"):
        wire.LeaseRequest.from_json({"lease": "l", "recipe": HEX, "generation": 0, "items": items, "want": 1})


@pytest.mark.parametrize("sign", ["\n", "\x1b[2J", "\x7f", "\x9b2J", "\u2028", "\u202e", "\u2066"])
def test_text_holds_nothing_that_a_terminal_obeys(sign):
    with pytest.raises(BadRequest, match="what must be"):
        inspection.Finding.from_json({"code": "x", "what": f"a{sign}b"})


def test_lists_are_bounded():
    too_many = "00" * 32 * (wire.MAX_ITEMS + 1)
    with pytest.raises(BadRequest, match="items must be `bytes` of length <= 2097152"):
        wire.LeaseRequest.from_json(
            {"lease": "l", "recipe": HEX, "generation": 0, "items": too_many, "want": 1}
        )
    with pytest.raises(BadRequest, match="must be `array` of length <= "):
        wire.BeatRequest.from_json({"used": [HEX] * (wire.MAX_DIGESTS_PER_BEAT + 1)})
    with pytest.raises(BadRequest, match="must be `array` of length <= "):
        wire.BeatRequest.from_json({"lost": ["l"] * (wire.MAX_LEASES + 1)})


def test_what_the_daemon_adds_up_is_bounded():
    lease = {"lease": "l", "recipe": HEX, "generation": 0, "items": "", "want": 1}
    assert wire.LeaseRequest.from_json({**lease, "left": 10**9}).left == 10**9
    with pytest.raises(BadRequest, match="left must be `int` <= 1000000000"):
        wire.LeaseRequest.from_json({**lease, "left": 10**9 + 1})
    with pytest.raises(BadRequest, match="found_items must be `int` <="):
        wire.BeatRequest.from_json({"found_items": 2**53})


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([HEX, "a" * 128, "/abs", "0" * 128, "s.1", ""])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(st.data())
def test_no_json_breaks_a_message_and_what_is_taken_survives(data):
    kind = data.draw(st.sampled_from(MESSAGES))
    members_of = kind.__struct_fields__
    value = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(members_of, JSON)) | JSON)
    try:
        message = kind.from_json(value)
    except BadRequest:
        return
    assert kind.from_json(json.loads(json.dumps(message.to_json()))) == message


LEASE = wire.Lease("a", "b", 1.0)
HOLDER = wire.Holder("other", 1)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (wire.LeaseAnswer(lease=LEASE, granted=(0, 2)), ""),
        (wire.LeaseAnswer(held=(HOLDER,)), ""),
        (wire.LeaseAnswer(is_declined=True), ""),
        (wire.LeaseAnswer(look_again=wire.Resolved(1, True, ())), ""),
        (wire.LeaseAnswer(lease=LEASE, granted=(0, 3)), "not requested"),
        (wire.LeaseAnswer(lease=LEASE, granted=(0, 0)), "wrong or repeated"),
        (wire.LeaseAnswer(lease=LEASE), "wrong or repeated"),
        (wire.LeaseAnswer(granted=(1,)), "wrong or repeated"),
        (wire.LeaseAnswer(), "neither leased nor available"),
    ],
)
def test_what_no_daemon_answers_to_who_asks_for_a_lease_is_told(answer, says):
    lie = answer.lie(3, 2)
    assert says in lie and bool(says) == bool(lie)
    assert wire.LeaseAnswer().lie(3, 0) == wire.LeaseAnswer().lie(0, 3) == "", (
        "who asks for none is given none"
    )


def test_msgspec_looks_at_no_class_after_its_import():
    """Its first look at a class is not safe from a second thread."""
    program = """
import contextlib, os, sys
from prepcache import artifact
from prepcache.artifact.writer import Writer
from prepcache.errors import BadRequest
from prepcache.protocol import inspection, wire
from prepcached.tier import manifests
file = os.memfd_create("artifact")
writer = Writer("ab" * 32, 0)
writer.add(bytes(32), [{"x": 1}], 0.5)
writer.write(file, producer={}, observed=())
looks = []
sys.setprofile(lambda frame, event, _: "msgspec" in frame.f_code.co_filename and looks.append(frame.f_code))
for one in [*vars(wire).values(), *vars(inspection).values()]:
    if isinstance(one, type) and issubclass(one, wire.Message):
        with contextlib.suppress(BadRequest):
            one.from_json({})
artifact.check(file)
manifests.decode(b'{"version": 1, "artifacts": []}')
sys.setprofile(None)
print(looks)
"""
    assert python("-c", program).stdout == "[]\n"


def test_every_error_comes_out_as_itself():
    for cls in all_errors():
        error = cls("what, where, and what to do", lease="abc", count=3, names=["x"])
        answer = problems.response(error)
        assert answer.status_code == cls.status and answer.media_type == problems.PROBLEM_TYPE
        again = from_problem(json.loads(bytes(answer.body)))
        assert type(again) is cls and again.message == error.message
        assert (again.lease, again.count, again.names) == ("abc", 3, ["x"])


def test_a_problem_document_holds_only_plain_extra_members():
    error = PrepcacheError("text", status=7, code="x", thing=object(), bad=[object()], path="/a")
    body = json.loads(bytes(problems.response(error).body))
    assert (body["status"], body["code"], body["path"]) == (500, "prepcache-error", "/a")
    assert "thing" not in body and "bad" not in body
