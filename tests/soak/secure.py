"""A second server on the same folder, with TLS and tokens: what may call it, what it answers, and its death.

Where both servers adapt, one of them leads and the other follows; this one is killed at times, so both happen.
"""

import http.client
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from shutil import which

import numpy as np
import psutil
import tritonclient.grpc as triton_grpc

from latebind.bench.ledger.questions import KINDS, LONGEST, MARKS, WORDS
from latebind.bench.server import tree
from research.peers.servers import end, free_port
from tests.soak.beside import PATIENCE, REFUSALS, STREAMED
from tests.soak.network import FORK, SUM, VECTORS, body, check, draw

TOKEN, ADMIN = "token-of-the-soak-0123456789", "admin-of-the-soak-0123456789"
START_SECONDS, END_SECONDS, GONE_SECONDS, PAUSE = 120.0, 60.0, 20.0, 0.1
BAD = ("", "Bearer nobody-has-given-this-token", "Basic dG9rZW4=", TOKEN)  # the scheme is missing from the last


@dataclass(frozen=True, slots=True)
class Keys:
    """Files: a certificate that signs itself, its key, and two tokens."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "Keys":
        """Write them. Needs `openssl`."""
        openssl = which("openssl")
        assert openssl, "install openssl, which makes the certificate"
        keys = cls(folder)
        program = [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1",
            "-subj", "/CN=soak", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-nodes",
            "-keyout", str(folder / "key"), "-out", str(folder / "certificate"),
        ]  # fmt: skip
        subprocess.run(program, check=True, capture_output=True)
        for name, token in (("token", TOKEN), ("admin", ADMIN)):
            (folder / name).write_text(token)
            (folder / name).chmod(0o600)
        return keys

    @property
    def options(self) -> list[str]:
        """Options of `latebind serve`."""
        words = [
            "--tls-cert",
            "certificate",
            "--tls-key",
            "key",
            "--token-file",
            "token",
            "--admin-token-file",
            "admin",
        ]
        return [word if word.startswith("--") else str(self.folder / word) for word in words]

    @property
    def context(self) -> ssl.SSLContext:
        """A context that trusts the certificate and nothing else."""
        return ssl.create_default_context(cafile=str(self.folder / "certificate"))


@dataclass(slots=True)
class SecureServer:
    """The second server: `start`, `kill` and `stop` it; ask it with `ask`."""

    command: Sequence[str]
    keys: Keys
    http: int
    grpc: int
    log: Path
    context: ssl.SSLContext = field(init=False)
    process: "subprocess.Popen[bytes] | None" = None

    def __post_init__(self) -> None:
        """Read the certificate once."""
        self.context = self.keys.context

    def start(self) -> None:
        """Start it and wait until it is ready. Raises `AssertionError` where it is not."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output)
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            assert self.process.poll() is None, f"the second server ended with {self.process.returncode}"
            with suppress(OSError):
                if self.ask("GET", "/v2/models/words/ready")[0] == 200:
                    return
            time.sleep(PAUSE)
        raise AssertionError("the second server is not ready")

    def ask(
        self, method: str, path: str, data: bytes | None = None, *, bearer: str = f"Bearer {TOKEN}"
    ) -> tuple[int, bytes]:
        """Send one request and return status and body of its reply."""
        connection = http.client.HTTPSConnection("localhost", self.http, timeout=PATIENCE, context=self.context)
        try:
            connection.request(method, path, data, {"Authorization": bearer} if bearer else {})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def kill(self) -> None:
        """Kill its first process, as a machine short of memory would; all that it started must end by itself."""
        assert self.process is not None
        every = tree(self.process.pid)
        self.process.kill()
        self.process.wait()
        _, left = psutil.wait_procs(every, timeout=GONE_SECONDS)
        assert not left, f"the second server was killed and {left} are left"

    def stop(self) -> None:
        """End it as an operator does; it ends with 0 and leaves no process."""
        assert self.process is not None
        every = tree(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(END_SECONDS)
        assert code == 0, f"the second server ended with {code}"
        _, left = psutil.wait_procs(every, timeout=10)
        assert not left, left


@contextmanager
def second(folder: Path, options: Sequence[str], log: Path) -> Iterator[SecureServer]:
    """Run the second server on `folder / models` until the block ends."""
    keys, http, grpc = Keys.make(folder), free_port(), free_port()
    command = [sys.executable, "-m", "latebind", "serve", str(folder / "models"), "--port", str(http)]
    command += ["--grpc-port", str(grpc), "--config", str(folder / "often.toml"), *keys.options, *options]
    server = SecureServer(command, keys, http, grpc, log)
    try:
        server.start()
        yield server
        server.stop()
    finally:
        if server.process is not None and server.process.poll() is None:
            end(server.process)


@dataclass(slots=True)
class Visitor:
    """Asks the second server with and without the right token, over HTTP and gRPC, for models of every kind."""

    server: SecureServer
    random: Random

    def __call__(self) -> None:
        """Do one of these."""
        self.random.choice((self._infer, self._infer, self._infer, self._denied, self._plain, self._stream))()

    def _infer(self) -> None:
        model = self.random.choice((SUM, VECTORS, FORK))
        inputs, right = draw(model, self.random)
        status, text = self.server.ask("POST", f"/v2/models/{model}/infer", body(inputs))
        assert status in {200, 503, 504}, (status, text)
        if status == 200:
            check(model, text, right)

    def _denied(self) -> None:
        bearer, path = self.random.choice(BAD), self.random.choice(("sum/infer", "words", "stats"))
        status, text = self.server.ask("POST" if "infer" in path else "GET", f"/v2/models/{path}", bearer=bearer)
        assert status in {401, 403}, (status, text)
        status, text = self.server.ask("POST", "/v2/repository/models/sum/load", b"{}")  # the ordinary token
        assert status in {401, 403}, (status, text)

    def _plain(self) -> None:
        """Speak without TLS: there is no answer in plain text."""
        with socket.create_connection(("127.0.0.1", self.server.http), timeout=PATIENCE) as connection:
            heard = b""
            with suppress(ConnectionError):
                connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                heard = connection.recv(1 << 16)
        assert not heard.startswith(b"HTTP"), heard[:200]

    def _stream(self) -> None:
        """Send sentences to the sequence model on one stream: each has its answer or a refusal, in their order."""
        heard = list[tuple[object, object]]()
        certificate = str(self.server.keys.folder / "certificate")
        client = triton_grpc.InferenceServerClient(
            f"localhost:{self.server.grpc}", ssl=True, root_certificates=certificate
        )
        client.start_stream(
            lambda result, error: heard.append((result, error)), headers={"authorization": f"Bearer {TOKEN}"}
        )
        rows = [self._sentence() for _ in range(STREAMED)]
        for place, row in enumerate(rows):
            given = triton_grpc.InferInput("tokens", list(row.shape), "INT64")
            given.set_data_from_numpy(row)
            client.async_stream_infer("words", [given], request_id=str(place), timeout=5_000_000)
        client.stop_stream()  # waits for the rest
        client.close()
        assert len(heard) == STREAMED, heard
        for place, (result, error) in enumerate(heard):
            if error is not None:
                assert isinstance(error, triton_grpc.InferenceServerException)
                assert str(error.status()) in {*REFUSALS, "None"}, error
                continue
            assert isinstance(result, triton_grpc.InferResult)
            assert result.get_response().id == str(place)
            assert (result.as_numpy("tokens") == KINDS["words"].right(rows[place])).all(), rows[place]

    def _sentence(self) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
        length = self.random.randint(2, LONGEST)
        return np.array([[self.random.randrange(MARKS, WORDS) for _ in range(length)]], np.int64)
