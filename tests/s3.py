"""A real S3 over HTTP on this machine: moto's server, behind a front that counts and makes trouble."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from werkzeug.test import run_wsgi_app
from werkzeug.wrappers import Request, Response

Trouble = Callable[[Request], Response | int | None]


def no_trouble(_: Request) -> None:
    """Lets every request through."""


@dataclass
class S3:
    """The server: `asked` are the requests so far, `sent` the bytes of what was got.

    `trouble` sees every request first: it may give an answer, or how many bytes of the answer are sent.
    """

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    sent: int = 0
    trouble: Trouble = no_trouble

    def __post_init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: Any, start: Any) -> Any:
        """Answers as WSGI has it."""
        request = Request(environ)
        self.asked.append((request.method, request.path))
        made = self.trouble(request)
        if isinstance(made, Response):
            return made(environ, start)
        content, status, headers = run_wsgi_app(self._moto, environ, buffered=True)
        body = b"".join(content)[: made if isinstance(made, int) else None]
        self.sent += len(body) if request.method == "GET" else 0
        start(status, list(headers))
        return [body]

    def put(self, key: str, content: bytes) -> None:
        """Puts an object."""
        self._client().put_object(Bucket="corpus", Key=key, Body=content)

    def delete(self, key: str) -> None:
        """Removes an object."""
        self._client().delete_object(Bucket="corpus", Key=key)

    def put_tree(self, tree: Path, below: str) -> None:
        """Puts all files of a directory."""
        for path in tree.rglob("*"):
            if path.is_file():
                self.put(f"{below}/{path.relative_to(tree)}", path.read_bytes())

    def empty(self) -> None:
        """Makes the bucket anew, and forgets what was asked."""
        import requests

        self.trouble = no_trouble
        requests.post(f"{self.url}/moto-api/reset", timeout=10)
        self._client().create_bucket(Bucket="corpus")
        self.asked.clear()
        self.sent = 0

    def _client(self) -> Any:
        import boto3

        return boto3.client("s3", endpoint_url=self.url, region_name="us-east-1")


@contextmanager
def serving() -> Iterator[S3]:
    """Serves until the context ends."""
    found = S3()
    server = make_server("127.0.0.1", 0, found, threaded=True)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
