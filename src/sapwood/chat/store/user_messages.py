"""Messages of users, in the AI SDK's form: built from an allow-list on arrival, and converted for the model.

A message is never passed on as the client wrote it. `received` copies the fields that are allowed and refuses the rest,
so nothing that a client writes can carry an instruction to Pydantic AI (`force_download`, uploaded file ids, retry
feedback, compaction).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from sapwood.chat.store.file_references import digest_in, reference
from sapwood.chat.store.transcript import Transcript, UIMessage
from sapwood.client.public_hosts import is_public_host
from sapwood.errors import InvalidArguments
from sapwood.wire.inline_files import ATTACHED

if TYPE_CHECKING:
    from sapwood.chat.store.message_files import MessageFiles

ROLES = ("user", "assistant")
MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+")
INLINE_URLS = ("data:", ATTACHED[:5])
"""How the URLs of inline files begin."""
NOT_YOURS = "The `id` {} is that of a message of the assistant. Send the user's message with another `id`."
SHOWN = 80
"""Characters of a client's value that an error quotes."""


def check(message: Any) -> None:
    """Refuse a value that does not have the form of a message."""
    if not isinstance(message, dict):
        raise InvalidArguments(f"A message must be an object with `role` and `parts`, got {_quoted(message)}.")
    fields = cast("dict[str, Any]", message)
    role, id, parts = fields.get("role"), fields.get("id"), fields.get("parts")
    if role not in ROLES:
        raise InvalidArguments(f'The `role` of a message must be "user" or "assistant", got {_quoted(role)}.')
    if not isinstance(id, str | None):
        raise InvalidArguments(f"The `id` of a message must be a string, got {_quoted(id)}.")
    if not isinstance(parts, list):
        raise InvalidArguments(f"The `parts` of a message must be an array, got {_quoted(parts)}.")
    for number, part in enumerate(cast("list[Any]", parts), 1):
        if not isinstance(part, dict) or not isinstance(cast("dict[str, Any]", part).get("type"), str):
            raise InvalidArguments(f"Part {number} of a message must be an object with a `type`, got {_quoted(part)}.")


def check_ids(messages: Sequence[UIMessage], answers: Collection[str]) -> None:
    """Refuse new messages of the user with the same id, or with that of an answer that a turn is about to write."""
    seen: set[str] = set()
    for message in messages:
        if (id := message.get("id")) in answers:
            raise InvalidArguments(NOT_YOURS.format(_quoted(id)))
        if id and id in seen:  # clients would show one of them, and the model would get both
            raise InvalidArguments(f"Each new message must have an `id` of its own, got two with {_quoted(id)}.")
        seen.add(id or "")


def check_role(stored: UIMessage | None) -> None:
    """Refuse an edit of a message that is not the user's."""
    if stored is not None and stored["role"] != "user":
        raise InvalidArguments(NOT_YOURS.format(_quoted(stored["id"])))


def has_files(messages: Sequence[Any]) -> bool:
    """Return whether messages of users have inline files that are to be stored; refuse what is no message."""
    for message in messages:
        check(message)
    return any(
        part["type"] == "file" and isinstance(url := part.get("url"), str) and url[:5].lower() in INLINE_URLS
        for message in messages
        if message["role"] == "user"
        for part in message["parts"]
    )


def check_attached(
    messages: Sequence[UIMessage],
    body: Mapping[str, Any],
    attached: Iterable[str],
    known: Callable[[Iterable[str]], set[str]],
) -> None:
    """Refuse a request that has inline files where no file can be: their bytes were taken out when it arrived."""
    stored = known(str(message["id"]) for message in messages if message.get("id"))
    texts = [
        str(part.get("text"))
        for message in messages
        if message["role"] == "user" and message.get("id") not in stored
        for part in message["parts"]
        if part["type"] == "text"
    ]
    texts.append(msgspec.json.encode(body).decode())
    if any(url in text for text in texts if ATTACHED in text for url in attached):
        raise InvalidArguments("A `data:` URL of this size cannot be in a text. Send files as parts of type file.")


def received(message: UIMessage, schemes: Collection[str], files: MessageFiles | None = None) -> UIMessage:
    """Return a user's message with the fields that are allowed; refuse it if one of its parts cannot be used.

    Args:
        message: A message that `check` accepted.
        schemes: The schemes that URLs of files may have, beside `data`.
        files: The agent's own files, which a message may name by their URL.
    """
    if not message["parts"]:
        raise InvalidArguments("The `parts` of a message must not be empty. Send a text or a file.")
    parts = [_part(number, part, schemes, files) for number, part in enumerate(message["parts"], 1)]
    return {**{key: message[key] for key in ("id", "role", "metadata") if key in message}, "parts": parts}


def _part(
    number: int, part: dict[str, Any], schemes: Collection[str], files: MessageFiles | None = None
) -> dict[str, Any]:
    where = f"Part {number} of the message ({part['type'][:SHOWN]})"
    if part["type"] == "text":
        if not isinstance(part.get("text"), str):
            raise InvalidArguments(f"{where}: `text` must be a string, got {_quoted(part.get('text'))}.")
        return {"type": "text", "text": part["text"]}
    if part["type"] != "file":
        raise InvalidArguments(f"{where} is not accepted from clients. Send parts of type text or file.")
    media_type, url, filename = part.get("mediaType"), part.get("url"), part.get("filename")
    if not isinstance(media_type, str) or not MEDIA_TYPE.match(media_type):
        raise InvalidArguments(
            f'{where}: `mediaType` must be a media type such as "image/png", got {_quoted(media_type)}.'
        )
    if not isinstance(filename, str | None):
        raise InvalidArguments(f"{where}: `filename` must be a string, got {_quoted(filename)}.")
    if not isinstance(url, str):
        raise InvalidArguments(f"{where}: `url` must be a string, got {_quoted(url)}.")
    named = {} if filename is None else {"filename": filename}
    if digest_in(url) is not None:
        if files is None or (row := files.row_at(url)) is None:
            raise InvalidArguments(f"{where}: `url` must name a file of this agent, got {_quoted(url)}.")
        return {"type": "file", "mediaType": row.media_type, **named, "url": url}
    if wrong := _wrong_with(url, schemes):
        raise InvalidArguments(f"{where}: {wrong}")
    return {"type": "file", "mediaType": media_type, **named, "url": url}


def _wrong_with(url: str, schemes: Collection[str]) -> str:
    """Return a sentence that says why a file cannot be read from this URL, or an empty string."""
    if url[:5].lower() == "data:":
        return "" if _content(url, "") is not None else "`url` must be base64, as in data:image/png;base64,iVBORw…"
    try:
        parsed = urlsplit(url)
        host, _ = parsed.hostname, parsed.port
    except ValueError:
        return f"`url` is not a valid URL: {_quoted(url)}."
    if parsed.scheme not in schemes:
        expected = " or ".join(f"{one}:" for one in ("data", *schemes))
        return f"`url` must begin with {expected}, got {_quoted(parsed.scheme or url)}."
    # What one URL parser takes for the host another may take for the path: refuse the spellings they differ on.
    odd = not url.isprintable() or any(sign in url for sign in ' \\<>"') or "@" in parsed.netloc
    # A public name may still lead to a private address. Pydantic AI resolves it again when it downloads the file, and
    # refuses such an address, because a client cannot set `force_download`.
    if odd or not host or not is_public_host(host):
        return f"`url` must name a public host, got {_quoted(url)}. Send the file as a data: URL instead."
    return ""


def _content(url: str, media_type: str) -> Any:
    """Return the content of a `data:` URL; None if it cannot be decoded."""
    from pydantic_ai.messages import BinaryContent

    try:
        found = BinaryContent.from_data_uri(f"data:{url[5:]}")
    except ValueError:
        return None
    if not MEDIA_TYPE.match(found.media_type):
        return BinaryContent.narrow_type(BinaryContent(found.data, media_type=media_type))
    return found


def request_of(said: Sequence[UIMessage], *, joined: bool = False) -> Any:
    """Return the model's form of messages that `received` built; `joined`, of their texts as one prompt."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    if all(part["type"] == "text" for message in said for part in message["parts"]):
        texts = ["".join(part["text"] for part in message["parts"]) for message in said]
        if joined:
            texts = ["\n\n".join(texts)]
        return ModelRequest(parts=[UserPromptPart(text) for text in texts])
    return ModelRequest(parts=[UserPromptPart([_prompt(part) for part in message["parts"]]) for message in said])


def _prompt(part: dict[str, Any]) -> Any:
    from pydantic_ai.messages import AudioUrl, DocumentUrl, ImageUrl, VideoUrl

    if part["type"] == "text":
        return part["text"]
    url, media_type = part["url"], part["mediaType"]
    if digest_in(url) is not None:
        return reference(url, media_type)
    if url[:5].lower() == "data:":
        return _content(url, media_type)
    kinds: dict[str, Any] = {"image": ImageUrl, "video": VideoUrl, "audio": AudioUrl}
    return kinds.get(media_type.partition("/")[0], DocumentUrl)(url=url, media_type=media_type)


def add_request(transcript: Transcript, said: Sequence[UIMessage], *, joined: bool = False) -> None:
    """Store the model's form of messages of the user's, as one request of the last of them."""
    parts = {message["id"]: request_of([message]) for message in said} if len(said) > 1 else {}
    transcript.add(said[-1]["id"], request_of(said, joined=joined), parts)


def _quoted(value: Any) -> str:
    """Return a client's value for an error, cut short."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def trailing(messages: Sequence[UIMessage]) -> list[str]:
    """Return the ids of the messages of the user's at the end."""
    found: list[str] = []
    for message in reversed(messages):
        if message["role"] != "user":
            break
        if message.get("id"):
            found.insert(0, message["id"])
    return found


def ids_of(said: str) -> list[str]:
    return [message["id"] for message in msgspec.json.decode(said)]
