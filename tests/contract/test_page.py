"""The page for people, over a real socket: what it shows, what it escapes, and who is given it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from prepcache.digests import RecipeDigest
from prepcached import page
from prepcached.peer import Peer
from support.serving import Serving, serving
from support.storing import RECIPE, put

BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64)"}
EVIL = "<script>alert(1)</script>\u202e&\x1b[1m"


class Seen(HTMLParser):
    """The tags of a page, what they link to, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as found:
        yield found


def recipe(number: int) -> RecipeDigest:
    return RecipeDigest(hashlib.sha256(b"%d" % number).hexdigest())


def test_an_empty_store_has_a_page(served: Serving) -> None:
    answer = served.http().get("/", headers=BROWSER)
    seen = Seen(answer.text)
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "nobody is connected" in seen.text and "nothing yet" in seen.text
    assert "of 1.0 GiB" in seen.text


def test_it_shows_who_is_connected_how_far_and_what_is_kept(served: Serving) -> None:
    for name in range(3):
        put(served.store, name)
    job = served.job("train.py")
    job.resolve()
    progress = {"recipe": RECIPE, "name": "prep.tokenise", "done": 3, "total": 12}
    job.beat(progress=[progress], found_items=3)
    text = Seen(served.http().get("/").text).text
    for part in (
        "train.py",
        "prep.tokenise 3 of 12 items",
        "tests.recipe",
        "3 items were there already",
        "1 session",
    ):
        assert part in text
    assert "prepcache purge" in text


def test_what_strangers_call_things_is_text(served: Serving) -> None:
    served.store.register(recipe(1), EVIL, {"format": 1})
    put(served.store, 1, recipe=recipe(1))
    job = served.job("<img src=x>")
    job.beat(progress=[{"recipe": recipe(1), "name": "<b>bold</b>", "done": 1, "total": 2}])
    answer = served.http().get("/")
    seen = Seen(answer.text)
    assert not seen.tags & {"script", "img", "b", "form", "iframe", "link"}
    assert "<script>alert(1)</script>?&?[1m" in seen.text and "<img src=x>" in seen.text
    assert all(character.isprintable() for character in seen.text.replace("\n", ""))


def test_nothing_on_it_comes_from_elsewhere_or_does_anything(served: Serving) -> None:
    answer = served.http().get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "form-action 'none'" in policy
    links = Seen(answer.text).links
    assert links and all(served.http().get(link).status_code == 200 for link in links)
    assert all(link.startswith("/") for link in links) and "url(" not in answer.text


def test_a_page_of_very_much_is_bounded(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_ROWS", 2)
    for number in range(4):
        served.store.register(recipe(number), f"name{number}" + "x" * 1000, {"format": 1})
        put(served.store, number, recipe=recipe(number))
        served.job(f"job{number}")
    text = Seen(served.http().get("/").text).text
    assert len(re.findall("name[0-9]x+…", text)) == 2 and "there are more: /v1/recipes" in text
    assert len(re.findall("job[0-9]", text)) == 2 and "and 2 more: /v1/sessions" in text
    assert "x" * (page.MAX_CHARS + 1) not in text


def test_it_shows_itself_anew_without_a_script(served: Serving) -> None:
    answer = served.http().get("/")
    assert f'<meta http-equiv="refresh" content="{page.REFRESH_S}">' in answer.text
    assert f"anew every {page.REFRESH_S} s" in Seen(answer.text).text
    assert "script" not in answer.headers["content-security-policy"]


def test_items_that_were_given_out_and_not_yet_committed_are_told_as_such(served: Serving) -> None:
    job = served.job("train.py")
    job.resolve()
    job.lease(range(3))
    text = Seen(served.http().get("/").text).text
    assert "3 items given to jobs to make" in text
    assert "0; a job commits what it made every 30 s or so, and at its end" in text


def test_on_a_narrow_screen_links_wrap_and_cells_carry_their_headings(served: Serving) -> None:
    served.job("train.py")
    text = served.http().get("/").text
    (links,) = re.findall("<nav>(.*)</nav>", text)
    assert links.count("</a> <a ") == links.count("<a ") - 1
    assert all(f'data-n="{name}"' in text for name in ("user", "pid", "since", "holds"))
    assert "table{display:flex;flex-direction:column}caption{order:1}" in text  # else above its rows


def test_an_option_is_not_broken_at_its_hyphens(served: Serving) -> None:
    text = served.http().get("/").text
    assert '<span class="whole">(--min-free)</span>' in text and ".whole{white-space:nowrap}" in text


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_fit_the_screen_and_its_colours(served: Serving, path: str) -> None:
    text = served.http().get(path).text
    assert '<meta name="viewport" content="width=device-width,initial-scale=1">' in text
    assert ":root{color-scheme:light dark;" in text and "a{color:inherit}" in text


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/stats", "/docs", "/nowhere"])
def test_head_answers_as_get_without_the_body(served: Serving, path: str) -> None:
    http = served.http()
    head, get = http.head(path), http.get(path)
    assert head.status_code == get.status_code and head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]


def test_over_tcp_it_needs_the_token_as_all_does(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "of", classmethod(lambda cls, connection: cls(None, 0)))
    assert served.http().get("/").status_code == 401
    assert served.http().head("/healthz").status_code == 200


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080"])
def test_a_browser_reaches_the_socket_through_a_port_of_ssh(served: Serving, host: str) -> None:
    assert served.http().get("/", headers={**BROWSER, "host": host}).status_code == 200


def test_a_name_that_leads_another_sites_page_to_that_port_is_refused(served: Serving) -> None:
    def refused(**headers: str) -> httpx.Response:
        return served.http().get("/v1/stats", headers={"host": "evil.example:8080", **headers})

    assert refused(**BROWSER).status_code == 403
    assert refused(origin="http://evil.example:8080").status_code == 403
    assert refused().status_code == 200  # no browser: clients of unix sockets send any Host
