"""`spec2seq serve` as a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


COMMAND = [sys.executable, "-c", "from spec2seq.cli.main import main; main()"]


class ServerProcess:
    """A server that is ready.

    Attributes:
        url: where it listens, without a slash at the end.
    """

    def __init__(self, model: Path, flags: list[str], log: Path) -> None:
        self._log = log
        command = [*COMMAND, "serve", "--model", str(model), "--port", "0", *flags]
        with log.open("w") as stream:
            self.process = subprocess.Popen(command, stderr=stream)
        self.url = self._wait_for_url()

    def _wait_for_url(self) -> str:
        for _ in range(1200):
            found = re.search(r" on (http://\S+)", self.log())
            if found and "startup complete" in self.log():
                return found.group(1)
            assert self.process.poll() is None, self.log()
            time.sleep(0.1)
        raise AssertionError(f"the server did not start:\n{self.log()}")

    def log(self) -> str:
        """All that it wrote to stderr so far."""
        return self._log.read_text()

    def memory_bytes(self) -> int:
        """Resident memory."""
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * 4096

    def terminate(self) -> None:
        """Ask it to stop."""
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def serving(model: Path, *flags: str) -> Iterator[ServerProcess]:
    """A server with these flags, stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(model, list(flags), Path(folder) / "log")
        try:
            yield server
        finally:
            server.process.kill()
            server.process.wait()
