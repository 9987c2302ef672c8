"""`roskva capture publisher` as a process of its own over a real datastore: what the tests here kill, starve and cut off."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from roskva.cli.capture_control import NotRunning, ask

ROOT: Final = Path(__file__).resolve().parents[3]
WAIT_S: Final = 40.0
ENVIRONMENT: Final = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def until(true: Callable[[], object], what: Callable[[], str], wait_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + wait_s
    while not true():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.02)


class Part:
    """One publisher with its settings file. It may be started again after it was ended. Application `watch` begins with the oldest."""

    def __init__(self, folder: Path, datastore: str, listen: str = "") -> None:
        self.folder = folder
        self.address = listen or f"unix:{folder / 'publisher'}"
        self.settings = folder / "capture.toml"
        self.settings.write_text(
            f"[dataset]\nname = 'shop'\n[datastore]\n{datastore}\n"
            f"[publisher]\nlisten = '{self.address}'\ndata = '{folder / 'data'}'\ndatamarker_period_s = 0.1\n"
            "[applications.watch]\nstart = 'oldest'\n"
        )
        self._output = folder / "out"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "roskva", "capture", "publisher", "--config", str(self.settings)]
        with self._output.open("ab") as out:
            self._process = subprocess.Popen(command, cwd=self.folder, env=ENVIRONMENT, stdout=out, stderr=out)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def key_file(self) -> Path:
        return self.folder / "data" / "key"

    def key(self) -> bytes:
        """The one that it makes at its first start."""
        until(self.key_file.exists, self.said)
        return self.key_file.read_bytes()

    def said(self) -> str:
        return self._output.read_text()

    def status(self) -> dict[str, Any] | None:
        """None: it does not answer yet."""
        try:
            found: dict[str, Any] = ask(self.folder / "data" / "control.sock", "status")
        except NotRunning:
            return None
        return found

    def reads(self) -> None:
        """Waits until it has a place in the log: what is committed before there is a slot is in no log that it may read."""
        until(lambda: (self.status() or {}).get("flows"), self.said)

    def problems(self) -> str:
        return "\n".join((self.status() or {}).get("problems", []))

    def ended(self) -> int:
        """Waits until it ends by itself."""
        process, self._process = self._process, None
        assert process is not None
        try:
            return process.wait(WAIT_S)
        finally:
            process.kill()
            process.wait()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            return process.wait(WAIT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def publishing(datastore: str, listen: str = "") -> Iterator[Part]:
    """In a folder with a path that is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="roskva-part-"))
    part = Part(folder, datastore, listen)
    try:
        part.start()
        yield part
    finally:
        part.kill()
        shutil.rmtree(folder)
