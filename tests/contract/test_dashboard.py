"""The page for people, over a real socket: what it shows, what it escapes, and who is given it."""

import hashlib
import os
import re
import shutil
import subprocess
import threading
import time
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import httpx
import pytest

from prepcache.digests import RecipeDigest
from prepcached.auth import Peer
from prepcached.dashboard import pages
from support.serving import serving, wait_until
from support.stores import RECIPE, put

BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64)"}
EVIL = "<script>alert(1)</script>\u202e&\x1b[1m"


class Seen(HTMLParser):
    """The tags of a page, what they link to, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.scripts: list[str | None] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.scripts += [dict(attrs).get("src")] if tag == "script" else []
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def recipe(number: int) -> RecipeDigest:
    return RecipeDigest(hashlib.sha256(b"%d" % number).hexdigest())


def test_an_empty_store_has_a_page(served):
    answer = served.http().get("/", headers=BROWSER)
    seen = Seen(answer.text)
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "nobody is connected" in seen.text and "nothing yet" in seen.text
    assert "of 1.0 GiB" in seen.text
    refreshed = f'<noscript><meta http-equiv="refresh" content="{pages.REFRESH_S}"></noscript>'
    assert refreshed in answer.text, "where scripts are off"


def test_it_shows_hits_jobs_and_what_is_kept(served):
    for name in range(3):
        put(served.store, name, cost_s=1.0)
    job = served.job("train.py")
    generation = job.resolve().json()["generation"]
    progress = {"recipe": RECIPE, "name": "prep.tokenise", "done": 3, "total": 12}
    job.lease(["new"], generation)
    job.heartbeat(progress=[progress], found_items=3, saved_s=90.0)
    text = Seen(served.http().get("/").text).text
    for part in (
        "75.0 %hit rate",
        "1.5 minof preprocessing saved",
        "train.py",
        "prep.tokenise 3 of 12 items",
        "tests.recipe",
        "1 session",
    ):
        assert part in text, part


def test_what_strangers_call_things_is_text(served):
    served.store.register(recipe(1), EVIL, {"format": 1})
    put(served.store, 1, recipe=recipe(1))
    job = served.job("<img src=x>")
    job.heartbeat(progress=[{"recipe": recipe(1), "name": "<b onclick=x>", "done": 1, "total": 2}])
    http = served.http()
    for address in ("/", f"/?search={quote(EVIL)}", f"/confirm?action=purge&name={quote(EVIL)}"):
        seen = Seen(http.get(address).text)
        assert "alert(1)" in seen.text and "<script>alert(1)</script>?&?[1m" in seen.text
        assert seen.scripts in ([], ["/dashboard.js"]) and not seen.tags & {"img", "iframe", "object"}
        assert all(character.isprintable() for character in seen.text.replace("\n", ""))


def test_nothing_is_loaded_from_elsewhere(served):
    put(served.store, 1)
    http = served.http()
    answer = http.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    seen = Seen(answer.text)
    assert seen.scripts == ["/dashboard.js"] and "style" not in seen.tags
    links = {link.partition("#")[0] for link in seen.links}
    assert links and all(link.startswith("/") for link in links)
    assert all(http.get(link).status_code == 200 for link in links)
    for asset in ("/dashboard.css", "/dashboard.js"):
        assert "http" not in http.get(asset).text and "url(" not in http.get(asset).text


def test_a_page_is_light_and_follows_within_two_seconds(served):
    for number in range(30):
        served.store.register(recipe(number), f"project.tokenize_{number}", {"format": 1})
        put(served.store, number, recipe=recipe(number))
    http = served.http()
    assert sum(len(http.get(path).content) for path in ("/", "/dashboard.css", "/dashboard.js")) < 60_000
    [every_ms] = re.findall(r"EVERY_MS = (\d+);", http.get("/dashboard.js").text)
    assert int(every_ms) <= 2000


needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")


def in_chromium(served, folder, *options: str, around: str = "") -> tuple[str, list[str | None]]:
    """The page after 2.5 s behind a port as `ssh -L` makes one, and how it was asked for; each time there is
    one entry more. With a page around it it has no policy."""
    asked: list[str | None] = []

    class Port(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                asked.append(self.headers["sec-fetch-dest"])
                put(served.store, len(asked))
            answer = served.http().get(self.path)
            if self.path == "/around":
                answer = httpx.Response(200, html=around)
            self.send_response(answer.status_code)
            for name in ("content-type", "content-length", *(() if around else ("content-security-policy",))):
                self.send_header(name, answer.headers.get(name, ""))
            self.end_headers()
            self.wfile.write(answer.content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Port) as port:
        threading.Thread(target=port.serve_forever).start()
        command = ["chromium", "--headless", "--no-sandbox", f"--user-data-dir={folder / 'chromium'}"]
        command += [*options, "--virtual-time-budget=2500", "--dump-dom"]
        command += [f"http://127.0.0.1:{port.server_port}/{'around' if around else ''}"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        port.shutdown()
    return shown, asked


@needs_chromium
def test_a_browser_follows_without_reloading(served, tmp_path):
    shown, asked = in_chromium(served, tmp_path)
    assert asked[:3] == ["document", "empty", "empty"] and "document" not in asked[1:]
    assert f"<b>{len(asked)}</b><span>entries" in shown


@needs_chromium
@pytest.mark.parametrize(
    ("width", "scheme", "background"), [(400, 0, "rgb(18, 22, 29)"), (2000, 1, "rgb(255, 255, 255)")]
)
def test_a_page_fits_its_window_dark_and_light(served, tmp_path, width, scheme, background):
    served.store.register(RECIPE, "a" * 200, {"format": 1})
    around = f"""<iframe id="f" width="{width}" src="/"></iframe><script>f.onload = () => {{
        const page = f.contentDocument; document.title = page.documentElement.scrollWidth
        + getComputedStyle(page.body).backgroundColor }}</script>"""
    options = ("--hide-scrollbars", f"--blink-settings=preferredColorScheme={scheme}")
    shown, _ = in_chromium(served, tmp_path, *options, around=around)
    assert f"<title>{width}{background}</title>" in shown


def test_a_page_of_very_much_is_bounded(served):
    for number in range(pages.MAX_NAMES + 2):
        name = f"name{number}" + "<&>" * 80
        served.store.register(recipe(number), name[:250], {"format": 1})
        put(served.store, number, recipe=recipe(number))
    for number in range(pages.MAX_SESSIONS + 2):
        job = served.job(f"job{number}" + "<" * 100)
        told = [{"recipe": recipe(n), "name": "<&>" * 60, "done": 1, "total": 2} for n in range(2)]
        job.heartbeat(progress=told)
    page = served.http().get("/").text
    text = Seen(page).text
    assert "there are more: /v1/recipes" in text and "and 2 more: /v1/sessions" in text
    assert "there are more: search" in text
    assert len(page) < 250_000  # of names that are nothing but markup


def test_names_sort_by_each_column_largest_first(served):
    for number, items in enumerate((2, 9, 5)):
        served.store.register(recipe(number), f"name{number}", {"format": 1})
        put(served.store, *[f"{number}.{k}" for k in range(items)], recipe=recipe(number))
    http = served.http()

    def order(sort: str) -> list[str]:
        page = http.get("/", params={"sort": sort}).text
        return re.findall("name[0-9]", page[page.index('id="names"') : page.index('class="search"')])[::2]

    assert order("items") == order("size") == order("nonsense") == ["name1", "name2", "name0"]
    assert order("name") == ["name0", "name1", "name2"]


def test_entries_are_searched_by_name_and_recipe(served):
    for number, name in enumerate(("alpha.one", "alpha.two", "beta")):
        served.store.register(recipe(number), name, {"format": 1})
        put(served.store, number, recipe=recipe(number))
    http = served.http()

    def found(search: str) -> int:
        page = http.get("/", params={"search": search}).text
        return page[page.index('id="entries"') :].count("/v1/entries/")

    assert (found(""), found("alpha"), found("beta*"), found(recipe(0)[:10]), found("no")) == (3, 2, 1, 1, 0)


def test_a_miss_shows_its_reason_and_difference(served):
    served.store.register(recipe(1), "prep", {"format": 1, "name": "prep", "config": {"size": "1"}})
    put(served.store, "a", recipe=recipe(1))
    job = served.job()
    job.recipe = recipe(2)
    parts = {"format": 1, "name": "prep", "config": {"size": "2"}}
    job.resolve(name="prep", register=parts)
    http = served.http()
    http.post("/v1/explain", json={"name": "prep"})
    page = http.get("/").text
    assert re.search('<td class="n" data-n="when">(now|[0-9.]+ s ago)<td>', page)
    assert "config.size 1 -&gt; 2" in page and f"/explain?recipe={recipe(2)}" in page
    text = Seen(http.get(f"/explain?recipe={recipe(2)}").text).text
    assert "configsize12" in text.replace("\n", "").replace(" ", "")


def form(http: httpx.Client, address: str) -> dict[str, str]:
    """The fields of a confirmation's form."""
    page = http.get(address)
    assert page.status_code == 200, page.text
    return dict(re.findall('<input type="hidden" name="([^"]*)" value="([^"]*)">', page.text))


def test_a_purge_is_confirmed_and_says_what_it_frees(served):
    ref = put(served.store, "a").artifact
    http = served.http()
    fields = form(http, "/confirm?action=purge&name=tests.recipe")
    assert re.search("Frees [0-9.]+ KiB: 1 entry.", http.get("/confirm?action=purge&name=tests.recipe").text)
    assert served.store.entry(ref.key).items == 1  # looking changes nothing
    done = http.post("/act", data=fields)
    assert (done.status_code, done.headers["location"]) == (303, "/?done=purge")
    assert "Purged." in http.get(done.headers["location"]).text
    assert http.get(f"/v1/entries/{ref.key}").status_code == 404


def test_pin_and_unpin_from_the_page(served):
    ref = put(served.store, "a").artifact
    http = served.http()
    for action, is_pinned in (("pin", True), ("unpin", False)):
        assert (
            http.post("/act", data=form(http, f"/confirm?action={action}&key={ref.key}")).status_code == 303
        )
        assert served.store.entry(ref.key).is_pinned is is_pinned
        assert f"/confirm?action={'unpin' if is_pinned else 'pin'}&amp;key={ref.key}" in http.get("/").text
    assert http.post("/act", data=form(http, f"/confirm?action=purge&key={ref.key}")).status_code == 303
    assert http.get(f"/v1/entries/{ref.key}").status_code == 404


def test_a_form_that_this_page_did_not_make_is_refused(served):
    ref = put(served.store, "a").artifact
    http = served.http()
    fields = form(http, "/confirm?action=purge&name=tests.recipe")
    own = {"origin": "http://localhost", "user-agent": BROWSER["user-agent"]}
    for token in ("", "0" * 64, fields["token"][:-1] + "\xe9"):
        answer = http.post("/act", data={**fields, "token": token}, headers=own)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert http.post("/act", data=fields, headers={"origin": "http://evil.example"}).status_code == 403
    for wrong in ({"action": "drop"}, {"name": "tests.*"}, {"name": ""}):
        assert http.post("/act", data={**fields, **wrong}).json()["code"] == "bad-request"
    assert http.get("/act").status_code == 405
    assert served.store.entry(ref.key).items == 1
    assert http.post("/act", data=fields, headers=own).status_code == 303


def test_others_entries_cannot_be_changed(served, monkeypatch):
    ref = put(served.store, "a").artifact
    token = form(served.http(), "/confirm?action=purge&name=tests.recipe")["token"]
    monkeypatch.setattr(Peer, "of", classmethod(lambda cls, connection: cls(54321, 0)))
    http = served.http()
    assert "/confirm?action=pin" not in http.get("/").text
    assert http.get(f"/confirm?action=purge&key={ref.key}").json()["code"] == "forbidden"
    fields = form(http, "/confirm?action=purge&name=tests.recipe")
    assert fields["token"] != token
    assert http.post("/act", data={**fields, "token": token}).json()["code"] == "forbidden"
    assert http.post("/act", data=fields).headers["location"] == "/?done=purge", "of what is his: nothing"
    fields |= {"action": "unpin", "key": ref.key}
    assert http.post("/act", data=fields).json()["code"] == "forbidden"
    assert served.store.entry(ref.key).items == 1


def test_charts_go_on_after_a_restart(tmp_path):
    now = time.time()
    with serving(tmp_path) as served:
        served.store.keep_sample((now - 90_000.0, 5.0, 5.0, 5.0, 5.0), since=0.0)
        served.store.keep_sample((now - 600.0, 10.0, 10.0, 0.0, 0.0), since=0.0)
        served.store.keep_sample((now - 300.0, 30.0, 10.0, 60.0, 1000.0), since=now - 86_400.0)
        assert [one[1] for one in served.store.history()] == [10.0, 30.0], "a day is kept"
    with serving(tmp_path) as served:
        http = served.http()
        assert wait_until(lambda: "hit rate, last hour: up to 75 %" in http.get("/").text)
        job = served.job()
        job.resolve()
        job.heartbeat(found_items=9)
        job.lease(["new"])
        assert "hit rate, last hour: up to 90 %" in http.get("/").text, "what is counted now is in it"


def test_head_answers_as_get_without_the_body(served):
    http = served.http()
    for path in ("/", "/healthz", "/v1/stats", "/docs", "/nowhere"):
        head, get = http.head(path), http.get(path)
        assert head.status_code == get.status_code and head.content == b"", path
        assert head.headers["content-type"] == get.headers["content-type"], path


def test_a_browser_comes_by_ssh_and_not_by_rebinding(served):
    for host in ("localhost:8080", "127.0.0.1:8080", "[::1]:8080"):
        assert served.http().get("/", headers={**BROWSER, "host": host}).status_code == 200, host

    def refused(**headers: str) -> httpx.Response:
        return served.http().get("/v1/stats", headers={"host": "evil.example:8080", **headers})

    assert refused(**BROWSER).status_code == 403
    assert refused(origin="http://evil.example:8080").status_code == 403
    assert refused().status_code == 200  # no browser: clients of unix sockets send any Host


def test_quotas_are_on_the_page_and_in_the_metrics(tmp_path):
    with serving(tmp_path, user_quota="1MiB", quotas={os.getuid(): "64KiB"}) as served:
        put(served.store, "a", size_bytes=3000)
        http = served.http()
        text = Seen(http.get("/").text).text
        exposed = http.get("/metrics").text
    assert "Users" in text and "64.0 KiB" in text
    assert f'prepcache_user_quota_bytes{{uid="{os.getuid()}"}} 65536.0' in exposed
    assert re.search(rf'prepcache_user_bytes{{uid="{os.getuid()}"}} [0-9.]+', exposed)
