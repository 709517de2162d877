"""A TLS connection of the load client. The bytes are read from the socket by us and given to OpenSSL in memory, so the kernel's
time of arrival is kept."""

import asyncio
import socket
import ssl

from evalrig.loadgen.connection import READ_BYTES, Answer, Connection, Lost


def trust() -> ssl.SSLContext:
    """The certificates of the machine; `SSL_CERT_FILE` names others, as for every program that uses OpenSSL."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Session:
    """TLS over two buffers in memory."""

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.object = context.wrap_bio(self.incoming, self.outgoing, server_hostname=name)


async def greet(sock: socket.socket, context: ssl.SSLContext, name: str) -> Session:
    """The handshake on a connected socket.

    Raises:
        OSError: the server's certificate is not trusted, or it speaks no TLS (`ssl.SSLError` is one).
    """
    loop = asyncio.get_running_loop()
    session = Session(context, name)
    while True:
        try:
            session.object.do_handshake()
        except ssl.SSLWantReadError:
            await loop.sock_sendall(sock, session.outgoing.read())
            came = await loop.sock_recv(sock, READ_BYTES)
            if not came:
                raise Lost("the server closed the connection during the TLS handshake") from None
            session.incoming.write(came)
        else:
            await loop.sock_sendall(sock, session.outgoing.read())
            return session


class TlsConnection(Connection):
    """A connection whose bytes go through a `Session`."""

    session: Session

    def _take(self, came: bytes) -> None:
        self.session.incoming.write(came)
        self._drain()

    def _idle(self, came: bytes) -> None:
        self.session.incoming.write(came)  # tickets for a later session come when they like
        try:
            self._drain()
        except (Lost, OSError) as error:
            self._lose(Lost(str(error)))

    def _drain(self) -> None:
        """All that can be decrypted now: the socket would not tell of it again."""
        try:
            while plain := self.session.object.read(READ_BYTES):
                self._feed(plain)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            raise Lost("the server closed the connection before the answer ended") from None
        if self.session.outgoing.pending:  # an answer to a change of keys
            super()._write(self.session.outgoing.read())

    def begin(self, answer: Answer, request: bytes, at: int = 0) -> None:
        """Send `request`, encrypted."""
        self.session.object.write(request)
        super().begin(answer, self.session.outgoing.read(), at)
