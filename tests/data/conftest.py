"""Fixtures: a folder of data sets for each test, and a server to download from."""

import threading
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@pytest.fixture(autouse=True)
def data_folder(tmp_path_factory, monkeypatch):
    """Folder of data sets and their cache in this test."""
    folder = tmp_path_factory.mktemp("data")
    monkeypatch.setenv("SFL_SIM_DATA", str(folder))
    return folder


class Server(ThreadingHTTPServer):
    """Server of `files` by name.

    Attributes:
        requests: (name, Range header) of each request.
        resumes: answer ranges, as an honest server does.
        shift: answer them with what lies so many bytes further on, as a dishonest one might.
        breaks_after: close each connection after so many bytes, once `goes_on` is set.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.resumes = True
        self.shift = 0
        self.breaks_after: int | None = None
        self.goes_on = threading.Event()
        self.goes_on.set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        name, wanted = self.path.lstrip("/"), self.headers["Range"]
        self.server.requests.append((name, wanted))
        if name not in self.server.files:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = self.server.files[name]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.resumes else 0
        if start and start >= len(body):
            self.send_error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        body, total = body[start + self.server.shift :], len(body)
        self.send_response(HTTPStatus.PARTIAL_CONTENT if start else HTTPStatus.OK)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.breaks_after])
        self.wfile.flush()
        self.server.goes_on.wait()

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
