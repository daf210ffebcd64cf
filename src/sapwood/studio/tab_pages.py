"""The pages of tabs that classes add to the studio, below `/studio/tabs/<type>/<number>/`.

The studio shows such a page in a sandboxed frame, which has an origin of its own. The policy of the page forbids it
to load or send anything, except scripts, styles and pictures of tabs. The frame reaches the studio by a message
port only.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response

from sapwood.admin.studio_tabs import tabs_of_type
from sapwood.capabilities.studio_tabs import page_of
from sapwood.errors import UsageError
from sapwood.kernel.node.node import Node
from sapwood.web.asgi_types import Scope
from sapwood.web.pages import Pages

TABS = "/tabs/"
SCRIPT = "tab.js"
"""What connects a page to the studio: `../../tab.js`, as a page names it."""
CLIENT = Path(__file__).parent / "client"
NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)
CONDITIONS = (b"if-none-match", b"if-modified-since", b"range", b"if-range")
POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; connect-src 'none'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)


class TabPages:
    """Answers with the files of tabs. They are the same for every user, and contain no data."""

    def __init__(self, node: Callable[[], Node]) -> None:
        self._node = node
        self._client = Pages(str(CLIENT))

    async def answer(self, scope: Scope, prefix: str) -> Response:
        """Return the file of a request, with headers of its own."""
        type_id, slash, rest = _rest(scope, f"{prefix}{TABS}").partition("/")
        number, more, file = rest.partition("/")
        # Whole files only: a page whose policy has changed must not be used again.
        own = {**scope, "headers": [one for one in scope["headers"] if one[0] not in CONDITIONS]}
        if not slash and type_id == SCRIPT:
            response = await self._client.answer({**own, "root_path": f"{_root(scope)}{prefix}{TABS.rstrip('/')}"})
        elif (page := self._page(type_id, number)) is None:
            response = PlainTextResponse("Not Found", 404)
        elif not more:
            response = RedirectResponse(f"{_root(scope)}{prefix}{TABS}{quote(type_id)}/{number}/")
        elif page.is_dir():
            below_tab = f"{_root(scope)}{prefix}{TABS}{type_id}/{number}"
            response = await Pages(str(page)).answer({**own, "root_path": below_tab})
        elif file:
            response = PlainTextResponse("Not Found", 404)
        else:
            response = await Pages(str(page.parent)).answer({**own, "path": f"/{page.name}", "root_path": ""})
        hashes = _hashes(response) if isinstance(response, FileResponse) else ""
        policy = POLICY.format(hashes=hashes)
        response.headers["content-security-policy"] = f"{policy}, {_only_tabs(scope, prefix)}"
        return response

    def _page(self, type_id: str, number: str) -> Path | None:
        try:
            tabs = tabs_of_type(self._node(), type_id)
        except UsageError:  # the server has not started, or shuts down
            return None
        if NUMBER.fullmatch(number) is None or int(number) >= len(tabs):
            return None
        return page_of(*tabs[int(number)])


def below(scope: Scope, prefix: str) -> str:
    """Return the tabs of any server as sources of a policy. Together with `'self'`, they are those of this one."""
    path = quote(f"{_root(scope)}{prefix}{TABS}")
    return f"http://*:*{path} https://*:*{path}"


def _only_tabs(scope: Scope, prefix: str) -> str:
    return f"default-src {below(scope, prefix)} 'unsafe-inline' data: blob:"


def _root(scope: Scope) -> str:
    return str(scope.get("root_path", ""))


def _rest(scope: Scope, prefix: str) -> str:
    return str(scope["path"]).removeprefix(_root(scope)).removeprefix(prefix)


def _hashes(response: FileResponse) -> str:
    """Return the hashes of the scripts in a page as sources of a policy: no other script in it may run."""
    if not (response.media_type or "").startswith("text/html") or (stat := response.stat_result) is None:
        return ""
    return _hashes_in(str(response.path), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _hashes_in(page: str, _modified_at: int, _size: int) -> str:
    """Return the hashes of the scripts in a page, which is read again after each change."""
    found = _Scripts()
    found.feed(Path(page).read_text("utf-8", "replace"))
    digests = (hashlib.sha256(text.encode()).digest() for text in found.texts)
    return "".join(f" 'sha256-{b64encode(digest).decode()}'" for digest in digests)


class _Scripts(HTMLParser):
    """Finds the scripts that are written in a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self._is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self._is_inside = True
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self._is_inside:
            self.texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = self._is_inside and tag != "script"
