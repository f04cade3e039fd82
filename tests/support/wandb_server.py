"""As much of a W&B server as an upload asks for, on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """What it was given, and how it behaves."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: dict[str, list[str]] = {}
        """History lines by run id."""
        self.status = 200
        self.wait_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        if "UpsertBucket" in query:
            project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "r", "name": given["name"], "displayName": given["name"], "project": project}
            return {
                "upsertBucket": {"bucket": bucket | {"config": "{}", "historyLineCount": 0}, "inserted": True}
            }
        if "CreateRunFiles" in query:
            files = [{"name": f, "uploadUrl": f"{self.url}/{f}"} for f in given["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if "CreateArtifact" in query:
            artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": {"latestArtifact": {"id": "a"}}}
            return {"createArtifact": {"artifact": artifact}}
        if "viewer" in query:
            teams: dict[str, Any] = {"edges": []}
            viewer = {"id": "v", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": teams}
            return {"viewer": viewer}
        return {}


@contextmanager
def serving() -> Iterator[Server]:
    """A server that runs meanwhile."""
    http = Server()
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield http
    finally:
        http.shutdown()
        http.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._reply({})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._reply({})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.server.wait_s)
        if "json" not in self.headers.get("Content-Type", ""):  # its own telemetry, in another format
            self._reply({})
            return
        body = json.loads(data)
        if self.path == "/graphql":
            self._reply({"data": self.server.answer(body["query"], body.get("variables") or {})})
            return
        run, files = self.path.split("/")[-2], body.get("files", {})
        lines = files.get("wandb-history.jsonl")
        if lines:
            self.server.taken.setdefault(run, [])[lines["offset"] :] = lines["content"]
        self._reply({})

    def _reply(self, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
