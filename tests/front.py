"""A balancer in front of a server: while the server is away, its clients wait here.

Clients that give up after two attempts would otherwise measure how fast a machine starts a process.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from tests.machine import patience


class Front:
    """Listens at a port of its own, and passes every connection on to that of the server."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._is_closed = True
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if (server := self._connected()) is None:
                return
            with server:
                back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                back.start()
                _pass_on(client, server)
                back.join()

    def _connected(self) -> socket.socket | None:
        """Return a connection to the server, as soon as there is one."""
        end = time.monotonic() + patience(60)
        while time.monotonic() < end and not self._is_closed:
            try:
                return socket.create_connection(("127.0.0.1", self._behind), 1)
            except OSError:
                time.sleep(0.02)
        return None


def _pass_on(source: socket.socket, to: socket.socket) -> None:
    """Pass bytes on until one of both ends; then both connections are cut, as a balancer does."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            to.sendall(data)
    for one in (source, to):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
