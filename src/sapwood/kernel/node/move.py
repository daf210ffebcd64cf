"""Moves of trees to another address of the same app, whichever process runs them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sapwood.address import Address
from sapwood.errors import UsageError
from sapwood.kernel.marshal.values import pack
from sapwood.kernel.node.fork import NodeOrder
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.server_move import move_to_server
from sapwood.kernel.node.tree_move import TreeMove
from sapwood.kernel.ports.placement import Moved

RECEIVE = "receive a tree that is moved"
SEND = "send a tree that is moved"


class MoveRequest(msgspec.Struct, array_like=True):
    """What another process is asked to do for a move."""

    source: str
    target: str


_read_request = msgspec.msgpack.Decoder(MoveRequest).decode


async def move(node: Node, root: Address, to: str, token: str | None = None) -> Address:
    """Give a root another name, or move it to the server of a URL; return its new address. Its work continues there."""
    is_url = "://" in to
    if token is not None and not is_url:
        raise UsageError(f"`token` is for moves to another server, and `to` is the name {to!r}. Pass a URL.")
    if root != root.root:
        raise UsageError(f"{root} is part of the tree of {root.root}, and trees are moved as a whole.")
    if node.keeper is not None:
        raise UsageError(f"{root} cannot be moved: a cluster does not support moves yet. Use a fork, or an export.")
    if node.unfinished_work().has_driver:
        raise UsageError(f"{root} cannot be moved: the app has a driver, which knows turns by the address.")
    node.erasing.check_tree(root)
    if is_url:
        return await move_to_server(node, root, to, token)
    target = Address.root_of(root.type, to)
    if target == root:
        raise UsageError(f"{root} has this name already. Pass another name.")
    request = MoveRequest(str(root), str(target))
    if node.far is None or node.owns(target):
        await _receive(node, request)
    else:
        await node.far.ask_owner(target, RECEIVE, pack(request))
    return target


async def _receive(node: Node, request: MoveRequest) -> None:
    source = Address.parse(request.source)

    async def send() -> None:
        if node.far is None or node.owns(source):
            await _send(node, request)
        else:
            await node.far.ask_owner(source, SEND, pack(request))

    await _of(node, request).receive(send)


async def _send(node: Node, request: MoveRequest) -> None:
    await _of(node, request).send()


def _of(node: Node, request: MoveRequest) -> TreeMove:
    return TreeMove(node, node.loader, node.removal, Address.parse(request.source), Address.parse(request.target))


async def _answer_receive(node: Node, message: bytes) -> bytes:
    request = _read_request(message)
    if not node.owns(target := Address.parse(request.target)):
        raise Moved(target)
    await _receive(node, request)
    return b""


async def _answer_send(node: Node, message: bytes) -> bytes:
    request = _read_request(message)
    if not node.owns(source := Address.parse(request.source)):
        raise Moved(source)
    await _send(node, request)
    return b""


MOVE_ORDERS: Mapping[str, NodeOrder] = {RECEIVE: _answer_receive, SEND: _answer_send}
"""What a process does for moves if another one asks it to."""
