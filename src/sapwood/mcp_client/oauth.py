"""OAuth 2.1 as MCP uses it: how a server says who signs its users in, and the requests to that authorization server."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote, urlencode, urljoin, urlsplit

import msgspec

from sapwood.errors import Refused, Unavailable
from sapwood.mcp_client.http import LEGACY, SHOWN, Endpoint, client_for
from sapwood.mcp_client.text import line_of, texts_in
from sapwood.wire.frames import read_json

FIELD = r'(?:^|[\s,]){name}=(?:"([^"]*)"|([^\s,]+))'
METHODS = ("none", "client_secret_basic", "client_secret_post")
"""How a client may authenticate itself to a token endpoint."""
OFFLINE = "offline_access"
LONGEST = 10 * 365 * 86_400
"""Seconds for which a token counts as valid at most."""
LONGEST_URL, LONGEST_SCOPES, LONGEST_ID, LONGEST_TOKEN = 2048, 4096, 2048, 32 * 1024
"""Characters that an authorization server may have: they are part of URLs and headers."""


class AuthorizationServer(msgspec.Struct, frozen=True):
    """What signs users of an MCP server in."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None
    resource: str
    """What tokens are asked for: the MCP server."""
    scopes: str | None
    methods: list[str]
    says_issuer: bool
    """Whether it names itself when a user comes back."""


class Client(msgspec.Struct, frozen=True):
    """What an agent is to an authorization server."""

    id: str
    secret: str | None = None
    method: str = "none"
    issuer: str | None = None
    """Where it is registered. `None` means that code has named it."""


class Tokens(msgspec.Struct, frozen=True):
    """What a user has granted."""

    access: str
    refresh: str | None = None
    expires_at: float | None = None
    scopes: str | None = None


class GrantRefused(Refused):
    """An authorization server does not exchange a code or a refresh token."""


class OAuth:
    """Requests to the authorization server of one MCP server. None of them carries a secret of that MCP server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def discovered(self, challenge: str, granted: str | None) -> AuthorizationServer:
        """Return who signs users in. `challenge` is how the server refused, `granted` the scopes of the last token."""
        url = self._endpoint.url
        about = await self._resource(field_of(challenge, "resource_metadata"))
        resource, servers = url.partition("#")[0], texts_in(about.get("authorization_servers"))
        if about:
            named = about.get("resource")
            if not isinstance(named, str) or not _is_within(url, named):
                raise Refused(f"The server says that it is another one: {line_of(named, SHOWN)!r}.")
            resource = named
        issuer = servers[0] if servers else origin_of(url)
        metadata = await self._metadata(issuer, is_named=bool(servers))
        scopes = field_of(challenge, "scope") or " ".join(texts_in(about.get("scopes_supported"))) or None
        if scopes and OFFLINE in texts_in(metadata.get("scopes_supported")):
            scopes = _united(scopes, OFFLINE)
        if field_of(challenge, "error") == "insufficient_scope":
            scopes = _united(granted, scopes)
        if scopes is not None and len(scopes) > LONGEST_SCOPES:
            raise Refused(f"The server wants scopes with more than {LONGEST_SCOPES} characters.")
        registers = "registration_endpoint" in metadata
        return AuthorizationServer(
            issuer=cast("str", metadata["issuer"]),
            authorization_endpoint=_url(metadata, "authorization_endpoint"),
            token_endpoint=_url(metadata, "token_endpoint"),
            registration_endpoint=_url(metadata, "registration_endpoint") if registers else None,
            resource=resource,
            scopes=scopes,
            methods=texts_in(metadata.get("token_endpoint_auth_methods_supported")),
            says_issuer=metadata.get("authorization_response_iss_parameter_supported") is True,
        )

    async def _resource(self, named: str | None) -> dict[str, Any]:
        """Return what the server says of itself as a protected resource; nothing if it says nothing."""
        parts = urlsplit(self._endpoint.url)
        well_known = f"{origin_of(self._endpoint.url)}/.well-known/oauth-protected-resource"
        path = parts.path.rstrip("/")
        urls: list[str] = [*([named] if named else []), *([well_known + path] if path else []), well_known]
        for url in urls:
            if (found := await self._json(url)) is not None:
                return found
        return {}

    async def _metadata(self, issuer: str, *, is_named: bool) -> dict[str, Any]:
        """Return the metadata of an authorization server. Raises `Refused` if it is of another one."""
        origin, path = origin_of(issuer), urlsplit(issuer).path.rstrip("/")
        oauth, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
        urls = [f"{origin}{oauth}{path}", f"{origin}{openid}{path}", *([f"{origin}{path}{openid}"] if path else [])]
        for url in urls if is_named else [origin + oauth]:
            found = await self._json(url)
            if found is None:
                continue
            if not isinstance(named := found.get("issuer"), str) or named.rstrip("/") != issuer.rstrip("/"):
                raise Refused(f"The metadata of {issuer} is of another server: {line_of(named, SHOWN)!r}.")
            if "S256" not in texts_in(found.get("code_challenge_methods_supported")):
                raise Refused(f"{issuer} does not support PKCE with S256, without which a sign-in is not safe.")
            return found
        if is_named:
            raise Refused(f"{issuer} has no metadata about how users sign in.")
        # As the first revision had it: fixed paths beside the server.
        paths = {
            "authorization_endpoint": "/authorize",
            "token_endpoint": "/token",
            "registration_endpoint": "/register",
        }
        return {"issuer": issuer, **{name: origin + path for name, path in paths.items()}}

    async def registered(self, server: AuthorizationServer, redirect_url: str, name: str) -> Client:
        """Register an agent, and return what it is from then on."""
        if server.registration_endpoint is None:
            raise Refused(f"{server.issuer} registers no clients. Register one there, and pass client_id=… to add().")
        method = next((one for one in METHODS if one in server.methods), "none" if not server.methods else None)
        about = {
            "client_name": name,
            "redirect_uris": [redirect_url],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method or "client_secret_basic",
            "application_type": "web",
            **({"scope": server.scopes} if server.scopes else {}),
        }
        status, answer = await self._post(server.registration_endpoint, about, {"content-type": "application/json"})
        id, secret = answer.get("client_id"), answer.get("client_secret")
        if status not in (200, 201) or not isinstance(id, str) or len(id) > LONGEST_ID:
            raise Refused(f"{server.issuer} did not register a client: {_reason(answer, status)}")
        secret = secret if isinstance(secret, str) and secret else None
        chosen = answer.get("token_endpoint_auth_method")
        chosen = chosen if isinstance(chosen, str) and chosen else method if secret is None else "client_secret_basic"
        if chosen not in METHODS or (chosen != "none" and secret is None):
            raise Refused(f"{server.issuer} wants a way of authentication that is not known: {line_of(chosen, 80)!r}.")
        return Client(id, secret, chosen, server.issuer)

    async def exchanged(
        self, server: AuthorizationServer, client: Client, form: Mapping[str, str], now: float
    ) -> Tokens:
        """Exchange a code or a refresh token. Raises `GrantRefused` if it is no longer valid."""
        fields = {**form, "resource": server.resource}
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        if client.method == "client_secret_basic" and client.secret is not None:
            pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            fields["client_id"] = client.id
            if client.method == "client_secret_post" and client.secret is not None:
                fields["client_secret"] = client.secret
        status, answer = await self._post(server.token_endpoint, urlencode(fields).encode(), headers)
        access, kind = answer.get("access_token"), answer.get("token_type")
        if status != 200 or not isinstance(access, str) or not _is_header(access):
            raise GrantRefused(f"{server.issuer} gave no token: {_reason(answer, status)}")
        if not isinstance(kind, str) or kind.lower() != "bearer":
            raise GrantRefused(f"{server.issuer} gave a token of an unknown kind: {line_of(kind, 80)!r}.")
        refresh, scopes, lasts = answer.get("refresh_token"), answer.get("scope"), answer.get("expires_in")
        lasts = max(min(lasts, LONGEST), 0) if isinstance(lasts, int | float) else None  # no float may hold it
        return Tokens(
            access,
            refresh if isinstance(refresh, str) else form.get("refresh_token"),
            None if lasts is None else now + lasts,
            scopes if isinstance(scopes, str) else form.get("scope"),
        )

    async def _json(self, url: str) -> dict[str, Any] | None:
        """Return the JSON at a URL; `None` if there is none."""
        if urlsplit(url).scheme not in ("http", "https"):
            return None
        async with await client_for(self._bare(url)) as client:
            response = await client.get(url, headers={"accept": "application/json", "mcp-protocol-version": LEGACY})
        if response.status_code >= 500:
            raise Unavailable(f"{origin_of(url)} answered {response.status_code}.")
        return _object(response.content) if response.status_code == 200 else None

    async def _post(self, url: str, body: Any, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with await client_for(self._bare(url)) as client:
            response = await client.post(url, content=content, headers=headers)
        if response.status_code >= 500 or response.status_code == 429:
            raise Unavailable(f"{origin_of(url)} answered {response.status_code}.")
        return response.status_code, _object(response.content) or {}

    def _bare(self, url: str) -> Endpoint:
        return Endpoint(url, {}, self._endpoint.rules, self._endpoint.timeout)


def sign_in_url(server: AuthorizationServer, client: Client, redirect_url: str, state: str, verifier: str) -> str:
    """Return where a user signs in."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    asked = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect_url,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": server.resource,
        **({"scope": server.scopes} if server.scopes else {}),
        **({"prompt": "consent"} if server.scopes and OFFLINE in server.scopes.split() else {}),
    }
    mark = "&" if "?" in server.authorization_endpoint else "?"
    return f"{server.authorization_endpoint}{mark}{urlencode(asked)}"


def field_of(challenge: str, name: str) -> str | None:
    """Return a field of the header `WWW-Authenticate`."""
    found = re.search(FIELD.format(name=name), challenge)
    return None if found is None else found[1] or found[2] or None


def origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _is_within(url: str, resource: str) -> bool:
    """Return whether a server may be a part of what it says to be: the same origin, and a path below."""
    if origin_of(url).lower() != origin_of(resource).lower():
        return False
    path, above = (f"{urlsplit(one).path.rstrip('/')}/" for one in (url, resource))
    return path.startswith(above)


def _url(metadata: Mapping[str, Any], name: str) -> str:
    url: Any = metadata.get(name)
    is_url = isinstance(url, str) and len(url) <= LONGEST_URL and url.isprintable()
    if not is_url or urlsplit(url).scheme not in ("http", "https"):
        raise Refused(f"The {name} of {metadata['issuer']} is not a URL: {line_of(url, SHOWN)!r}.")
    return urljoin(cast("str", metadata["issuer"]), url)


def _is_header(token: str) -> bool:
    """Return whether a token can be sent as a header."""
    return len(token) <= LONGEST_TOKEN and token.isascii() and token.isprintable()


def _united(first: str | None, second: str | None) -> str | None:
    return " ".join(dict.fromkeys([*(first or "").split(), *(second or "").split()])) or None


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = read_json(content, object)
    except msgspec.MsgspecError:
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _reason(answer: dict[str, Any], status: int) -> str:
    text = line_of(answer.get("error_description") or answer.get("error"), SHOWN)
    return text or f"it answered {status}."
