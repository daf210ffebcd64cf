"""Authentication: signed tokens, API keys, and the users that they identify."""

from sapwood.roles import ANY_CLIENT
from sapwood.web.auth import ApiKeys, JwtAuth, User

__all__ = ["ANY_CLIENT", "ApiKeys", "JwtAuth", "User"]
