"""A proxy that hands what lies below a prefix of the path on to a server, as an ingress does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx


@contextmanager
def below_prefix(url: str, prefix: str) -> Iterator[str]:
    """The address of a proxy, on a free port, whose paths below `prefix` are those of the server at `url`."""
    client = httpx.Client(base_url=url, timeout=60, trust_env=False)

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.pass_on()

        def do_POST(self) -> None:
            self.pass_on()

        def pass_on(self) -> None:
            if not self.path.startswith(prefix + "/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: self.headers[name] for name in ("Accept", "Content-Type") if name in self.headers}
            response = client.request(self.command, self.path.removeprefix(prefix), content=body, headers=headers)
            self.send_response(response.status_code)
            for name in ("Content-Type", "Content-Security-Policy"):
                if name in response.headers:
                    self.send_header(name, response.headers[name])
            self.send_header("Content-Length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: the server behind logs."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            client.close()
