"""Stands in for gateway and pipeline in tests of `up`: the same doors and habits, none of the work.

As the gateway it listens on the shared port, and answers /healthz and /pipeline (from DATA/status.json) at its door. As the pipeline it
starts a process in a group of its own, as Spark's Python daemons are. ROSKVA_TEST_FAULT: "stubborn" ignores SIGTERM, "broken" ends at once.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socketserver
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from roskva.cli.processes import end_with_parent
from roskva.gateway.sharing import RUN, SharedPort, folder_path

IDLE = {"members": ["one"], "sessions": 0, "pipeline": {"alive": False}, "version": "0"}


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        file = Path(option("--data"), "status.json")
        body = file.read_bytes() if file.exists() and self.path == "/pipeline" else json.dumps(IDLE).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Door(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def finish_request(self, request: Any, client_address: Any) -> None:
        Handler(request, ("door", 0), self)


def gateway() -> None:
    data = Path(option("--data"))
    shared = SharedPort(option("--listen"), data)
    shared.socket.listen()
    door = Door("", Handler, bind_and_activate=False)
    path = data / RUN / f"{option('--name')}.sock"
    path.unlink(missing_ok=True)
    with folder_path(data / RUN) as folder:
        door.socket.bind(f"{folder}/{path.name}")
    door.server_activate()
    door.serve_forever()


def pipeline() -> None:
    daemon = subprocess.Popen(["sleep", "300"], start_new_session=True)
    print("pipeline: session started", flush=True)
    write_status(Path(option("--data")), batch=0, lag=0)
    try:
        while True:
            time.sleep(0.1)
    finally:
        daemon.kill()


def write_status(data: Path, batch: int, lag: int) -> None:
    report = {
        **IDLE,
        "pipeline": {
            "alive": True,
            "batch": batch,
            "last_batch_age_s": 0.0,
            "lag": {"updates": {"0": lag}},
            "queries": {"matching": {"steps": batch, "lag": lag}},
        },
    }
    new = data / "status.json.new"
    new.write_text(json.dumps(report))
    new.rename(data / "status.json")


def stop(number: int, frame: object) -> None:
    sys.exit(0)


if __name__ == "__main__":
    fault = os.environ.get("ROSKVA_TEST_FAULT")
    if fault == "broken":
        sys.exit("ERROR this one is broken")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if fault == "stubborn" else stop)
    end_with_parent(os.environ)
    {"gateway": gateway, "pipeline": pipeline}[sys.argv[1]]()
