"""An object store with faults: as much of S3 as obstore asks for, in a thread, in memory."""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from heapq import nsmallest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

SECRETS = {"AWS_ACCESS_KEY_ID": "the-key-id-9f3", "AWS_SECRET_ACCESS_KEY": "the-secret-7c1"}

PAGE = 1000  # objects that one answer to a listing has, as of S3
PIECE_BYTES = 1 << 20


@dataclass
class FakeS3:
    """A bucket `lab`.

    Args:
        objects: by key; a test may look at them, and change them.
        fault: what goes wrong; "" for nothing.
        clock_s: how far its clock is off.
        rate: bytes that it sends a second, to all together.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    fault: str = ""
    clock_s: float = 0.0
    rate: float = inf
    sent_at: float = 0.0
    parts: dict[int, bytes] = field(default_factory=dict)
    """Of the one upload that is under way in parts."""
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def environ(self) -> dict[str, str]:
        """What a daemon has to have in its environment."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1", **SECRETS}

    def artifacts(self) -> list[str]:
        return [key for key in self.objects if "/cas/" in key]

    def listing(self, prefix: str, after: str) -> bytes:
        """A page; a token is the last key of the page before."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() + self.clock_s))
        under = (one for one in list(self.objects.items()) if one[0].startswith(prefix) and one[0] > after)
        page = nsmallest(PAGE + 1, under)
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{at}</LastModified>"
            f'<ETag>"{_tag(data)}"</ETag><Size>{len(data)}</Size></Contents>'
            for key, data in page[:PAGE]
        )
        more = ""
        if len(page) > PAGE:
            more = f"<NextContinuationToken>{escape(page[PAGE - 1][0])}</NextContinuationToken>"
        is_cut = "true" if more else "false"
        text = f"<ListBucketResult><IsTruncated>{is_cut}</IsTruncated>{more}{found}</ListBucketResult>"
        return text.encode()


def _tag(data: bytes) -> str:
    return hashlib.md5(data[: 1 << 16]).hexdigest()  # of all bytes it would take longer than to send them


def _handler(s3: FakeS3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            url = urlsplit(self.path)
            key = unquote(url.path).removeprefix("/lab").lstrip("/")
            query = parse_qs(url.query, keep_blank_values=True)
            length = int(self.headers.get("Content-Length", 0))
            if s3.fault == "killed":
                self.close_connection = True
                return
            if s3.fault == "cut" and self.command == "PUT":
                self.rfile.read(length // 2)
                self.close_connection = True
                return
            body = self.rfile.read(length)
            if s3.fault == "no bucket":
                self.answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            elif s3.fault in ("refused", "skewed"):
                code = "AccessDenied" if s3.fault == "refused" else "RequestTimeTooSkewed"
                self.answer(403, f"<Error><Code>{code}</Code></Error>".encode())
            elif self.command == "PUT":
                if s3.fault == "full":
                    self.answer(500, b"<Error><Code>InternalError</Code></Error>")
                    return
                if "partNumber" in query:
                    s3.parts[int(query["partNumber"][0])] = body
                else:
                    s3.objects[key] = body
                self.answer(200, b"")
            elif self.command == "POST" and "uploads" in query:
                s3.parts.clear()
                self.answer(200, b"<Init><UploadId>1</UploadId></Init>")
            elif self.command == "POST" and "uploadId" in query:
                s3.objects[key] = b"".join(data for _, data in sorted(s3.parts.items()))
                self.answer(200, b'<Done><ETag>"1"</ETag></Done>')
            elif self.command == "POST":  # delete these
                for piece in body.decode().split("<Key>")[1:]:
                    s3.objects.pop(unescape(piece.split("</Key>")[0]), None)
                self.answer(200, b"<DeleteResult></DeleteResult>")
            elif not key:
                given = (query.get(name, [""])[0] for name in ("prefix", "continuation-token"))
                self.answer(200, s3.listing(*given))
            elif key in s3.objects:
                self.answer(200, s3.objects[key])
            else:
                self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_one

        def answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{_tag(data)}"')
            self.send_header("Last-Modified", formatdate(time.time() + s3.clock_s, usegmt=True))
            self.end_headers()
            if self.command == "HEAD":
                return
            if s3.fault == "broken off" and "/cas/" in self.path:
                data, self.close_connection = data[: len(data) // 2], True
            size, rate = (1, 1.0) if s3.fault == "slow" else (PIECE_BYTES, s3.rate)
            with contextlib.suppress(OSError):
                for start in range(0, len(data), size):
                    s3.sent_at = max(s3.sent_at, time.monotonic()) + size / rate
                    s3.ended.wait(s3.sent_at - time.monotonic())
                    self.wfile.write(data[start : start + size])

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextlib.contextmanager
def fake_s3() -> Iterator[FakeS3]:
    s3 = FakeS3()

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A client that hangs up is no error of the test's."""

    with Server(("127.0.0.1", 0), _handler(s3)) as server:
        s3.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield s3
        finally:
            s3.ended.set()
            server.shutdown()
            thread.join()
