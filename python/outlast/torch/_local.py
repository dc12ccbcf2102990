"""What processes of one user on one host share: a secret, a coordinator's key. Nobody else can read it."""

import contextlib
import os
import stat
import tempfile
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

import outlast


def is_loopback(host: str) -> bool:
    """Whether that is this host and nobody else can reach it."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class LocalFiles:
    """The files of one rendezvous on this host, of this user."""

    def __init__(self, name: str) -> None:
        self._folder = _folder()
        self._name = sha256(name.encode()).hexdigest()[:32]

    def key_file(self) -> Path:
        """Where a coordinator that is started here keeps its key."""
        return self._folder / f"{self._name}.key"

    def secret(self) -> str:
        """The secret that all processes of this user on this host find here; the first one makes it."""
        path = self._folder / f"{self._name}.secret"
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError):
                return path.read_text(encoding="utf-8").strip()
            # Written whole, then given its name: whoever finds it finds all of it.
            descriptor, draft = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(outlast.new_secret())
                with contextlib.suppress(FileExistsError):
                    os.link(draft, path)
            finally:
                os.unlink(draft)
        raise outlast.FatalError(f"the secret file {path} appears and vanishes; does something clean that folder up?")


def _folder() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(given) / "outlast" if given else Path(tempfile.gettempdir()) / f"outlast-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    if not is_ours:
        raise outlast.FatalError(f"{folder} must be a folder that belongs to this user and that nobody else can open")
    return folder
