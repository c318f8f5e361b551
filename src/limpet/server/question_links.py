"""Links to single questions: who has one can answer that question until it expires, and do nothing else.

A link names its run, its question and its end, and is sealed with a key that the store keeps. So all servers of a
store know it, also after a restart, and no list of links is kept.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from typing import Final, NamedTuple

from limpet.errors import UsageError
from limpet.frontends.problems import HttpProblem
from limpet.frontends.server_key import known_server_key, server_key
from limpet.journal.store import Store

LONGEST_LINK: Final = 4000
"""Characters of a link, at most: a longer one isn't looked at."""


class QuestionLink(NamedTuple):
    """What a link allows: to answer one question of a run that was created then.

    `name` is whom it is for, as its `maker` says; the maker is empty where the server doesn't know who made it.
    """

    run_id: str
    created: float
    question: str
    expires: float
    name: str
    maker: str = ""

    @property
    def answers_as(self) -> str:
        """Who has answered, where that is known by the link alone."""
        if not self.maker:
            return self.name or "a link"
        if not self.name:
            return f"a link by {self.maker}"
        return f"{self.name} (link by {self.maker})"


def seal_link(store: Store, link: QuestionLink) -> str:
    """The link as a text for a URL. Raises `UsageError` for a name with which it is too long."""
    content = _encoded(json.dumps(list(link), ensure_ascii=False).encode("utf-8", "surrogatepass"))
    sealed = f"{content}.{_encoded(_seal(server_key(store), content))}"
    if len(sealed) > LONGEST_LINK:
        raise UsageError(f"the name is too long for a link: it has {len(link.name):,} characters")
    return sealed


def open_link(store: Store, text: str, now: float) -> QuestionLink:
    """What a link allows. Raises `HttpProblem` for one that was never sealed here, or has expired."""
    content, _, seal = text.partition(".")
    wrong = no_such_link()
    if len(text) > LONGEST_LINK or not text.isascii():
        raise wrong
    key = known_server_key(store)
    if key is None or not hmac.compare_digest(_encoded(_seal(key, content)), seal):
        raise wrong
    try:
        link = QuestionLink(*json.loads(_decoded(content).decode("utf-8", "surrogatepass")))
    except (ValueError, TypeError, binascii.Error) as problem:
        raise wrong from problem
    if link.expires < now:
        raise HttpProblem(410, "link-expired", "this link has expired; ask for a new one")
    return link


def no_such_link(message: str = "this link isn't one of this server") -> HttpProblem:
    """What is said of a link that allows nothing."""
    return HttpProblem(404, "no-such-link", message)


def _seal(key: bytes, content: str) -> bytes:
    return hmac.digest(key, content.encode(), hashlib.sha256)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
