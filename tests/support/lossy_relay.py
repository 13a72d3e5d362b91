"""A relay before a real daemon, as the answerer of a `FakeDaemon`: it loses requests and answers."""

from collections.abc import Callable
from typing import Literal

import httpx

from support.fake_daemon import Request, reply

Loss = Literal["nothing", "request", "answer"]


class Relay:
    """Passes requests on.

    Args:
        uds: where the daemon listens.
        lose: what of an exchange is lost; the client sees its connection end.
    """

    def __init__(self, uds: str, lose: Callable[[Request], Loss]) -> None:
        self._uds = uds
        self._lose = lose

    def __call__(self, request: Request) -> bytes | None:
        lost = self._lose(request)
        if lost == "request":
            return None
        headers = {name: value for name, value in request.headers.items() if name != "content-length"}
        with httpx.Client(transport=httpx.HTTPTransport(uds=self._uds), base_url="http://d") as http:
            answer = http.request(request.method, request.path, content=request.body, headers=headers)
        if lost == "answer":
            return None
        return reply(answer.json() if answer.content else {}, answer.status_code)
