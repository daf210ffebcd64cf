"""The commands that erase agents, and that check the receipts of erasures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from sapwood.address import Address
from sapwood.admin.admin import Admin
from sapwood.cli import remote
from sapwood.cli.parameters import Agent, Data, Yes
from sapwood.cli.quantities import counted
from sapwood.cli.terminal import confirm, say
from sapwood.clock import SystemClock
from sapwood.errors import Refused, UsageError
from sapwood.kernel.erasure.backup_erasure import erase_from_backup
from sapwood.kernel.erasure.receipt import ErasureReceipt, fingerprint_of, private_key, verify_receipt
from sapwood.kernel.erasure.records import ErasureRecords
from sapwood.storage.files import Files

receipt = App(name="receipt", help="Check the receipts of erasures.")

ErasureKey = Annotated[
    str | None,
    Parameter(env_var="SAPWOOD_ERASURE_KEY", help="The setting of the server. Default: the key in the folder."),
]
Id = Annotated[
    str | None,
    Parameter(name="--id", help="The id of the erasure. The same id joins one that runs, or prints its receipt again."),
]


def erase(
    address: Agent,
    /,
    *,
    yes: Yes = False,
    backup: Annotated[Path | None, Parameter(help="Erase the tree from this backup only.")] = None,
    erasure_id: Id = None,
    erasure_key: ErasureKey = None,
    data: Data = "sapwood-data",
) -> None:
    """Erase an agent and everything below it, with all that is known of them. Prints a signed receipt as JSON.

    Backups are not changed: the receipt names those that still hold the tree. Erase it from each with `--backup`.
    """
    subject = Address.parse(address)
    if backup is not None and erasure_id is not None:
        raise UsageError("--id is of an erasure from the data folder. Leave it out with --backup.")
    where = data if backup is None else str(backup)
    past = "" if subject.parent is None else f", and the history of the whole tree of {subject.root}"
    confirm(f"Erase {subject} and everything below it from {where}{past}, for good?", "Nothing was erased.", yes=yes)
    if backup is not None:
        _tell(erase_from_backup(Path(data), backup, subject, SystemClock().now(), erasure_key or ""))
        return

    async def here(operator: Admin) -> dict[str, Any]:
        assert operator.node.erasures is not None
        return {"receipt": msgspec.to_builtins(await operator.node.erasures.erase(subject, by="cli", id=erasure_id))}

    answer = remote.ask_or_open(
        data, "erase", here, erasure_key or "", address=str(subject), name=subject.name, id=erasure_id
    )
    _tell(msgspec.convert(answer["receipt"], ErasureReceipt))


def _tell(found: ErasureReceipt) -> None:
    say(found.json().rstrip("\n"))
    if not found.agents:
        say("warning: there was no agent of this address any more. Other places were searched again.", file=sys.stderr)
    say(f"Erased {counted(found.agents, 'agents')}. The id of the erasure is {found.id}.", file=sys.stderr)
    for place in found.remains:
        until = f" until {place.until}" if place.until else ""
        note = f" {place.note}" if place.note else ""
        say(f"{' '.join(filter(None, (place.place, place.where)))}: {place.state}{until}.{note}", file=sys.stderr)


@receipt.command
def fingerprint(
    *,
    erasure_key: ErasureKey = None,
    data: Data = "sapwood-data",
) -> None:
    """Print the fingerprint of the key that signs the receipts of a server, to publish it.

    If the data folder has no key yet, it gets one.
    """
    if not Path(data).is_dir():
        raise UsageError(f"There is no data folder {data!r}.")
    key = ErasureRecords(Path(data), Files()).key(erasure_key or "")
    say(fingerprint_of(private_key(key).public_key().public_bytes_raw()))


@receipt.command
def verify(
    file: Annotated[Path, Parameter(help="A receipt, as `sapwood erase` prints it.")],
    /,
    *,
    address: Annotated[str | None, Parameter(help="Check that it is about this agent.")] = None,
    fingerprint: Annotated[str | None, Parameter(help="Check that it is signed by the key with this SHA-256.")] = None,
) -> None:
    """Check the signature of a receipt. Needs no data folder, server or network.

    Exits with 1 if the receipt was changed after it was signed. Compare the fingerprint of the key with the one that
    the operator publishes, or pass it.
    """
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error.strerror}.") from None
    found = verify_receipt(text, fingerprint=fingerprint)
    if address is not None and not found.is_about(str(Address.parse(address))):
        raise Refused(f"The receipt is not about {address}.")
    say(f"The signature is valid. Key: {found.fingerprint}")
    what = "A sub-agent and everything below it" if found.is_subtree else "A tree"
    say(f"{what} was erased: {counted(found.agents, 'agents')}, asked by {found.by}, finished {found.finished_at}.")
    for place in found.remains:
        words = ("Remains:", place.place, place.where, place.state, place.until and f"until {place.until}")
        say(" ".join(filter(None, words)) + ".")
