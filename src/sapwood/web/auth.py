"""Ready-made authentication for ``App(authenticate=…)``: signed tokens and API keys.

Each is called with a request or a socket and returns a `User`, or `None` for unknown
clients. An invalid token identifies no user; it never raises.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sapwood.errors import UsageError
from sapwood.web.access_log import client_of
from sapwood.web.origins import TRUSTED, is_from_own_page, is_safe

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

log = logging.getLogger(__name__)

REASONS = {
    "ExpiredSignatureError": "token expired",
    "ImmatureSignatureError": "token not valid yet",
    "InvalidSignatureError": "signature does not match the key",
    "InvalidAlgorithmError": "token signed with another algorithm",
    "InvalidAudienceError": "token for another audience",
    "InvalidIssuerError": "token of another issuer",
    "MissingRequiredClaimError": "token without a required claim: exp, sub, aud or iss",
}
"""What the log says about the exceptions of PyJWT."""
LONGEST = 8192
"""Characters of a token; what is longer is not even looked at."""
SHORTEST_SECRET = 32


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user. Users with the same id are equal."""

    id: str
    """The id of the user: the `sub` of a token, or the name of an API key."""
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """The other claims of the token."""


class JwtAuth:
    """Authenticates users by signed tokens (JWT): ``App(authenticate=JwtAuth(key, algorithms=["HS256"]))``.

    A token is taken from the header `Authorization: Bearer …`; where that is missing, from the
    `cookie` of this name, if you give one; then from the parameter of the URL that `query` names,
    because browsers cannot send headers with a socket. It has to be signed with one of
    `algorithms`, to have `exp` and `sub`, and to be made for this `audience` and by this `issuer`
    where they are given; `leeway` is how many seconds clocks may differ. Needs the extra `auth`.
    """

    def __init__(
        self,
        key: str | bytes | Any,
        *,
        algorithms: Sequence[str],
        audience: str | None = None,
        issuer: str | None = None,
        leeway: float = 0.0,
        cookie: str | None = None,
        query: str | None = "token",
    ) -> None:
        try:
            import jwt
        except ImportError:
            raise UsageError("JwtAuth needs PyJWT. Install it with: pip install 'sapwood[auth]'.") from None
        _check_algorithms(key, algorithms)
        self._jwt: Any = jwt
        self._key = key
        self._algorithms = list(algorithms)
        self._audience = audience
        self._issuer = issuer
        self._leeway = leeway
        self._cookie = cookie
        self._query = query

    def __call__(self, request: HTTPConnection) -> User | None:
        """Return the user of a request or a socket."""
        token = self._token(request)
        if not token:
            return _refused(request, f"no token in {self._places()}")
        if len(token) > LONGEST:
            return _refused(request, f"token longer than {LONGEST} characters")
        try:
            claims = self._jwt.decode(
                token,
                self._key,
                algorithms=self._algorithms,
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp", "sub"]},
            )
        except (self._jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            # Its text may have a part of the token.
            return _refused(request, REASONS.get(type(error).__name__, f"invalid token ({type(error).__name__})"))
        user = claims["sub"]
        return User(user, claims) if isinstance(user, str) and user else _refused(request, "claim sub is empty")

    def _places(self) -> str:
        """Return where a token may be, for the log."""
        cookie = self._cookie and f"cookie {self._cookie}"
        query = self._query and f"parameter {self._query} of the URL"
        return " or ".join(filter(None, ("header Authorization: Bearer", cookie, query)))

    def _token(self, request: HTTPConnection) -> str | None:
        header = request.headers.get("authorization")
        if header is not None:
            return _bearer(header)
        if self._cookie is not None and self._cookie in request.cookies:
            # A browser adds cookies to the requests of any page.
            may_count = request.scope.get(TRUSTED, is_from_own_page(request)) or is_safe(request.scope)
            return request.cookies[self._cookie] if may_count else None
        return request.query_params.get(self._query) if self._query is not None else None


class ApiKeys:
    """Authenticates programs by API keys: ``App(authenticate=ApiKeys({"billing": hash}))``.

    Give the name of each key's owner and the `hash_of` the key, never the key itself. A key is
    taken from `header`, or from `Authorization: Bearer …`. Use long random keys, such as
    ``secrets.token_urlsafe(32)``: a key that can be guessed is not made safe by hashing it.
    """

    def __init__(self, hashes: Mapping[str, str], *, header: str = "x-api-key") -> None:
        for name, value in hashes.items():
            if not re.fullmatch("[0-9a-f]{64}", value):
                raise UsageError(
                    f"ApiKeys expected a hash for {name!r}, as ApiKeys.hash_of(key) returns it. Pass the hash, "
                    "not the key."
                )
        self._users = [(bytes.fromhex(value), User(name)) for name, value in hashes.items()]
        self._header = header

    @staticmethod
    def hash_of(key: str) -> str:
        """Return the hash of a key, to be stored instead of the key."""
        return hashlib.sha256(key.encode()).hexdigest()

    def __call__(self, request: HTTPConnection) -> User | None:
        """Return the owner of the key of a request or a socket."""
        key = request.headers.get(self._header) or _bearer(request.headers.get("authorization", ""))
        if not key:
            return _refused(request, f"no key in header {self._header} or Authorization: Bearer")
        if len(key) > LONGEST:
            return _refused(request, f"key longer than {LONGEST} characters")
        given = hashlib.sha256(key.encode()).digest()
        # All are compared, and each in constant time: how long it takes says nothing.
        found = [user for known, user in self._users if hmac.compare_digest(known, given)]
        return found[0] if found else _refused(request, "unknown API key")


def _refused(request: HTTPConnection, why: str) -> None:
    """Log why a client has no user. The client is not told, and the token is not logged."""
    log.debug("authentication failed client=%s: %s", client_of(request.scope), why)


def _bearer(header: str) -> str | None:
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _check_algorithms(key: Any, algorithms: Sequence[str]) -> None:
    if isinstance(algorithms, str) or not algorithms or any(name.lower() == "none" for name in algorithms):
        raise UsageError(
            'JwtAuth(algorithms=…) must be a list of signature algorithms, such as ["HS256"], without "none".'
        )
    shared = [name for name in algorithms if name.startswith("HS")]
    if shared and len(shared) != len(algorithms):
        raise UsageError(
            "JwtAuth expected either HS… algorithms with a shared secret, or others with a public key, got both. "
            "A public key is not a secret. Use two authenticators."
        )
    if shared and (not isinstance(key, str | bytes) or len(key) < SHORTEST_SECRET):
        raise UsageError(f"The secret of JwtAuth must have at least {SHORTEST_SECRET} bytes. Use secrets.token_hex().")
    if not shared and key in (None, "", b""):
        raise UsageError("JwtAuth needs a key, got an empty one.")
