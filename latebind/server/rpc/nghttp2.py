"""A ctypes binding of nghttp2, the HTTP/2 library that curl and Apache use. It knows nothing of gRPC.

It has only what a server needs. Its functions are called on the event loop alone. All connections share one table of
callbacks, which find their connection by the number that its session was created with.
"""

import ctypes as c
from collections.abc import Iterable, Sequence
from ctypes.util import find_library
from typing import Any, Protocol

from latebind.domain.errors import ConfigError

SONAME = "libnghttp2.so.14"

END_STREAM = 0x01  # a flag of frames
DATA_EOF, DATA_NO_END_STREAM = 0x01, 0x02  # flags of a data source
DEFERRED, REFUSED_HEADERS = -508, -521  # what callbacks may return
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 6  # settings
NO_ERROR = 0

Header = tuple[bytes, bytes]


class _Frame(c.Structure):
    _fields_ = (("length", c.c_size_t), ("stream", c.c_int32), ("type", c.c_uint8), ("flags", c.c_uint8))


class _Pair(c.Structure):
    _fields_ = (
        ("name", c.c_char_p),
        ("value", c.c_char_p),
        ("name_length", c.c_size_t),
        ("value_length", c.c_size_t),
        ("flags", c.c_uint8),
    )


class _Setting(c.Structure):
    _fields_ = (("id", c.c_int32), ("value", c.c_uint32))


_POINTER = c.c_void_p
_FRAME = c.POINTER(_Frame)
_BEGIN = c.CFUNCTYPE(c.c_int, _POINTER, _FRAME, _POINTER)
_HEADER = c.CFUNCTYPE(c.c_int, _POINTER, _POINTER, c.c_char_p, c.c_size_t, c.c_char_p, c.c_size_t, c.c_uint8, _POINTER)
_CHUNK = c.CFUNCTYPE(c.c_int, _POINTER, c.c_uint8, c.c_int32, _POINTER, c.c_size_t, _POINTER)
_CLOSED = c.CFUNCTYPE(c.c_int, _POINTER, c.c_int32, c.c_uint32, _POINTER)
_READ = c.CFUNCTYPE(c.c_ssize_t, _POINTER, c.c_int32, _POINTER, c.c_size_t, c.POINTER(c.c_uint32), _POINTER, _POINTER)


class _Source(c.Structure):
    _fields_ = (("pointer", _POINTER), ("read", _READ))


class Block:
    """Headers in nghttp2's form; headers that are sent often are converted once."""

    __slots__ = ("count", "pairs")

    def __init__(self, headers: Iterable[Header]) -> None:
        pairs = [_Pair(name, value, len(name), len(value), 0) for name, value in headers]
        self.count = len(pairs)
        self.pairs = (_Pair * len(pairs))(*pairs)


class Events(Protocol):
    """What a session reports to its owner while it takes bytes in. None of these methods may raise."""

    def begun(self, stream: int) -> None:
        """Headers of a stream follow."""
        ...

    def header(self, name: bytes, value: bytes) -> bool:
        """Take one header; False refuses the stream."""
        ...

    def headed(self, stream: int) -> None:
        """The headers of a stream are complete."""
        ...

    def chunk(self, stream: int, data: bytes) -> None:
        """Take data."""
        ...

    def ended(self, stream: int) -> None:
        """The client sends no more on this stream."""
        ...

    def closed(self, stream: int) -> None:
        """The stream is closed, whoever closed it."""
        ...

    def read(self, stream: int, most: int) -> tuple[bytes, Block | None] | None:
        """Return the next bytes to send, with trailers behind the last ones; None if there are none yet."""
        ...


class Library:
    """nghttp2, and the sessions that are open. Raises `ConfigError` if it is not installed."""

    def __init__(self) -> None:
        try:
            self._functions = c.CDLL(find_library("nghttp2") or SONAME)
        except OSError:
            raise ConfigError(
                "server.grpc_stack is 'nghttp2', which is not there: install libnghttp2, or take 'official'"
            ) from None
        self._sessions: dict[int, Events] = {}
        self._numbers = 0
        self._callbacks = _POINTER()
        self._options = _POINTER()
        self._begun, self._header = _BEGIN(self._on_begin), _HEADER(self._on_header)
        self._framed, self._chunk = _BEGIN(self._on_frame), _CHUNK(self._on_chunk)
        self._closed, self._read = _CLOSED(self._on_close), _READ(self._on_read)
        self.source = _Source(None, self._read)
        self._declare()
        self._make_tables()

    def open(self, events: Events, settings: Sequence[tuple[int, int]], *, window: int) -> "Session":
        """Return a session for a new connection; its client may have `window` bytes on their way."""
        self._numbers += 1
        session = Session(self._functions, self._sessions, self._numbers, self.source)
        self._sessions[self._numbers] = events
        session.begin(self._callbacks, self._options, settings, window)
        return session

    def _declare(self) -> None:
        """Tell ctypes the argument and result types of the functions that are called for every request."""
        functions: Any = self._functions
        functions.nghttp2_session_mem_recv.argtypes = (_POINTER, c.c_char_p, c.c_size_t)
        functions.nghttp2_session_mem_recv.restype = c.c_ssize_t
        functions.nghttp2_session_mem_send.argtypes = (_POINTER, c.POINTER(_POINTER))
        functions.nghttp2_session_mem_send.restype = c.c_ssize_t
        block = (_POINTER, c.c_int32, c.POINTER(_Pair), c.c_size_t)
        functions.nghttp2_submit_response.argtypes = (*block, c.POINTER(_Source))
        functions.nghttp2_submit_trailer.argtypes = block
        functions.nghttp2_submit_settings.argtypes = (_POINTER, c.c_uint8, c.POINTER(_Setting), c.c_size_t)
        functions.nghttp2_submit_rst_stream.argtypes = (_POINTER, c.c_uint8, c.c_int32, c.c_uint32)
        functions.nghttp2_submit_ping.argtypes = (_POINTER, c.c_uint8, c.c_char_p)
        functions.nghttp2_session_resume_data.argtypes = (_POINTER, c.c_int32)
        functions.nghttp2_session_consume.argtypes = (_POINTER, c.c_int32, c.c_size_t)
        functions.nghttp2_session_set_local_window_size.argtypes = (_POINTER, c.c_uint8, c.c_int32, c.c_int32)
        functions.nghttp2_session_terminate_session.argtypes = (_POINTER, c.c_uint32)
        for name in ("want_read", "want_write", "del"):
            getattr(functions, f"nghttp2_session_{name}").argtypes = (_POINTER,)

    def _make_tables(self) -> None:
        functions: Any = self._functions
        functions.nghttp2_session_callbacks_new(c.byref(self._callbacks))
        for name, callback in (
            ("begin_headers", self._begun),
            ("header", self._header),
            ("frame_recv", self._framed),
            ("data_chunk_recv", self._chunk),
            ("stream_close", self._closed),
        ):
            getattr(functions, f"nghttp2_session_callbacks_set_on_{name}_callback")(self._callbacks, callback)
        functions.nghttp2_option_new(c.byref(self._options))
        functions.nghttp2_option_set_no_auto_window_update(self._options, 1)

    def _on_begin(self, session: int, frame: Any, number: int) -> int:
        del session
        self._sessions[number].begun(frame.contents.stream)
        return 0

    def _on_header(
        self, session: int, frame: int, name: bytes, length: int, value: bytes, size: int, flags: int, number: int
    ) -> int:
        del session, frame, length, size, flags
        return 0 if self._sessions[number].header(name, value) else REFUSED_HEADERS

    def _on_frame(self, session: int, frame: Any, number: int) -> int:
        del session
        head = frame.contents
        if head.type > 1:  # neither DATA nor HEADERS
            return 0
        events, stream = self._sessions[number], head.stream
        if head.type == 1:
            events.headed(stream)
        if head.flags & END_STREAM:
            events.ended(stream)
        return 0

    def _on_chunk(self, session: int, flags: int, stream: int, data: int, length: int, number: int) -> int:
        del session, flags
        self._sessions[number].chunk(stream, c.string_at(data, length))
        return 0

    def _on_close(self, session: int, stream: int, error: int, number: int) -> int:
        del session, error
        self._sessions[number].closed(stream)
        return 0

    def _on_read(self, session: int, stream: int, place: int, most: int, flags: Any, source: int, number: int) -> int:
        del source
        found = self._sessions[number].read(stream, most)
        if found is None:
            return DEFERRED
        data, trailers = found
        c.memmove(place, data, len(data))
        if trailers is not None:
            flags[0] |= DATA_EOF | DATA_NO_END_STREAM
            self._functions.nghttp2_submit_trailer(session, stream, trailers.pairs, trailers.count)
        return len(data)


class Session:
    """HTTP/2 on one connection: bytes in, events out, and the reverse. `Library.open` makes it."""

    def __init__(self, functions: Any, sessions: dict[int, Events], number: int, source: _Source) -> None:
        self._functions = functions
        self._sessions = sessions
        self._number = number
        self._source = source
        self._session: Any = _POINTER()
        self._out = _POINTER()
        self._out_place = c.byref(self._out)
        self._receive, self._send = functions.nghttp2_session_mem_recv, functions.nghttp2_session_mem_send

    def begin(self, callbacks: Any, options: Any, settings: Sequence[tuple[int, int]], window: int) -> None:
        """Create the session and send the server's settings."""
        functions, number = self._functions, c.c_void_p(self._number)
        functions.nghttp2_session_server_new2(c.byref(self._session), callbacks, number, options)
        found = (_Setting * len(settings))(*[_Setting(*setting) for setting in settings])
        functions.nghttp2_submit_settings(self._session, 0, found, len(settings))
        functions.nghttp2_session_set_local_window_size(self._session, 0, 0, window)

    def receive(self, data: bytes) -> bool:
        """Take bytes in, which reports events; return whether the connection can go on."""
        return bool(self._receive(self._session, data, len(data)) >= 0)

    def to_send(self) -> bytes:
        """Return the bytes to send now."""
        parts = []
        while (size := self._send(self._session, self._out_place)) > 0:
            parts.append(c.string_at(self._out.value or 0, size))
        return b"".join(parts)

    def respond(self, stream: int, head: Block, *, data: bool) -> None:
        """Answer with these headers; if there are `data`, `Events.read` is asked for them."""
        source = c.byref(self._source) if data else None
        self._functions.nghttp2_submit_response(self._session, stream, head.pairs, head.count, source)

    def resume(self, stream: int) -> None:
        """Ask `Events.read` again."""
        self._functions.nghttp2_session_resume_data(self._session, stream)

    def reset(self, stream: int, error: int) -> None:
        """Reset a stream, with or without an answer before."""
        self._functions.nghttp2_submit_rst_stream(self._session, 0, stream, error)

    def consume(self, stream: int, size: int) -> None:
        """Let the client send `size` bytes more, on this stream and on the connection."""
        self._functions.nghttp2_session_consume(self._session, stream, size)

    def ping(self) -> None:
        """Ask the client to show that it is still there."""
        self._functions.nghttp2_submit_ping(self._session, 0, None)

    def terminate(self) -> None:
        """Announce that no new stream is accepted and that the connection will end."""
        self._functions.nghttp2_session_terminate_session(self._session, NO_ERROR)

    def is_over(self) -> bool:
        """Tell whether there is nothing left to read or write."""
        functions, session = self._functions, self._session
        return not (functions.nghttp2_session_want_read(session) or functions.nghttp2_session_want_write(session))

    def close(self) -> None:
        """Free the session's memory; nothing may be called after this."""
        self._functions.nghttp2_session_del(self._session)
        del self._sessions[self._number]
