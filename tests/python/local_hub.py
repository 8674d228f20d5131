"""A local hub: a server that implements the part of the protocol that downloads from the Hugging Face hub use."""

import contextlib
import hashlib
import http.server
import json
import os
import re
import threading

COMMIT = "c0ffee" * 6 + "c0ff"


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub with the repository `server.repository`. It interrupts one download after `server.most` bytes."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def log_message(self, *_):
        pass

    def answer(self):
        server = self.server
        server.asked.append((self.command, self.path, self.headers.get("Range")))
        here = re.escape(server.repository)
        if re.fullmatch(rf"/api/models/{here}(/revision/[^/]+)?", self.path.split("?")[0]):
            names = [{"rfilename": name} for name in server.files]
            facts = {"id": server.repository, "sha": COMMIT, "siblings": names}
            return self.send(json.dumps(facts).encode())
        if re.match(rf"/api/models/{here}/tree/", self.path):
            tree = [
                {"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                for n, d in server.files.items()
            ]
            return self.send(json.dumps(tree).encode())
        found = re.fullmatch(rf"/{here}/resolve/[^/]+/(.+)", self.path)
        if not re.match(rf"(/api/models)?/{here}", self.path):
            return self.send(b"", 404, {"X-Error-Code": "RepoNotFound"})
        if not found or found[1] not in server.files:
            return self.send(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        data = server.files[found[1]]
        etag = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        status = 200
        if asked:
            begin, end = int(asked[1]), int(asked[2] or len(data) - 1)
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
            data, status = data[begin : end + 1], 206
        most = None
        if self.command == "GET":
            most, server.most = server.most, None
        return self.send(data, status, headers, most)

    def send(self, data, status=200, headers=(), most=None):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(data if most is None else data[:most])
        if most is not None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.close()


@contextlib.contextmanager
def serving(repository, files):
    """Serve the files, bytes by name, of a repository. Yields the server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.repository, server.files = repository, files
    server.asked, server.most = [], None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(server, home, *, down=False):
    """Return the environment of a process that uses this hub, or one that cannot be reached."""
    port = 9 if down else server.server_address[1]
    return os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{port}",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_ETAG_TIMEOUT": "2",
        "NO_PROXY": "*",
    }
