"""Who is believed: a secret that is rotated, certificates of one's own authority, a key that outlives a restart."""

import shutil
import subprocess
import threading

import numpy as np
import outlast
import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")


def sum_of(coordinator, *options):
    """One peer for each of `options`, with a secret or certificates of its own: the sum of as many ones."""
    results, errors = [], []

    def work(chosen):
        try:
            chosen = {"preset": "local", "timeout": 20.0, "listen": "127.0.0.1:0"} | chosen
            comm = outlast.Communicator(coordinator.address, **chosen)
            try:
                comm.connect(min_world=len(options))
                x = np.ones(1000, np.float32)
                comm.all_reduce(x)
                results.append(float(x[0]))
            finally:
                comm.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[chosen]) for chosen in options]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return results


def test_old_and_new_secret_meet_while_it_is_rotated():
    old, new, foreign = (outlast.new_secret() for _ in range(3))
    with outlast.Coordinator(preset="local", secret=new, accept_secret=old) as coordinator:
        rotated, behind = {"secret": new, "accept_secret": old}, {"secret": old, "accept_secret": new}
        assert sum_of(coordinator, rotated, behind) == [2.0, 2.0]
        with pytest.raises(outlast.Unauthorized):
            sum_of(coordinator, {"secret": foreign})


def test_without_accepting_it_the_old_secret_is_refused():
    old, new = outlast.new_secret(), outlast.new_secret()
    with outlast.Coordinator(preset="local", secret=new) as coordinator:
        with pytest.raises(outlast.Unauthorized):
            sum_of(coordinator, {"secret": old})
        assert sum_of(coordinator, {"secret": new}) == [1.0]


@pytest.mark.parametrize("kind", [outlast.Coordinator, outlast.Communicator])
def test_what_is_no_secret_or_no_certificate_is_refused_with_words(kind, tmp_path):
    given = {} if kind is outlast.Coordinator else {"coordinator": "127.0.0.1:1", "secret": outlast.new_secret()}
    with pytest.raises(outlast.InvalidArgument, match="secret"):
        kind(**given, accept_secret="hunter2")
    missing = tuple(tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    with pytest.raises(outlast.InvalidArgument, match="tls: .*ca.pem"):
        kind(**given, tls=missing)


class Authority:
    """An authority as somebody might run it, with openssl."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder
        self.ca, self.key = folder / "ca.pem", folder / "ca-key.pem"
        self._openssl("req", "-x509", "-nodes", "-subj", "/CN=authority", "-keyout", self.key, "-out", self.ca)

    def _openssl(self, *arguments):
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"] if arguments[0] == "req" else []
        command = ["openssl", arguments[0], *new_key, *map(str, arguments[1:])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def certify(self, name):
        """The three files that an administrator hands out for `name`."""
        cert, key, wish = (self.folder / f"{name}{end}" for end in (".pem", "-key.pem", ".csr"))
        self._openssl("req", "-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", wish)
        names = self.folder / f"{name}.names"
        names.write_text(f"subjectAltName=DNS:{name}.example\n")
        issuer = ["-CA", self.ca, "-CAkey", self.key, "-CAcreateserial"]
        self._openssl("x509", "-req", "-in", wish, *issuer, "-days", "3", "-extfile", names, "-out", cert)
        return self.ca, cert, key


@needs_openssl
def test_peers_of_one_authority_meet_and_others_are_refused(tmp_path):
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    with outlast.Coordinator(preset="local", tls=ours.certify("coordinator")) as coordinator:
        secret = coordinator.secret
        members = [{"secret": secret, "tls": ours.certify(name)} for name in ("one", "two")]
        assert sum_of(coordinator, *members) == [2.0, 2.0]
        for tls in (theirs.certify("one"), None):
            with pytest.raises(outlast.Unauthorized):
                sum_of(coordinator, {"secret": secret, "tls": tls})


def test_a_kept_key_survives_a_restart(tmp_path):
    key_file, secret = tmp_path / "coordinator.key", outlast.new_secret()

    def kept(**options):
        with outlast.Coordinator(preset="local", secret=secret, **options) as coordinator:
            assert sum_of(coordinator, {"secret": secret}) == [1.0]
            return coordinator.status()["key_is_kept"]

    assert kept(key_file=key_file) is True
    key = key_file.read_bytes()
    assert key_file.stat().st_mode & 0o077 == 0, "only its user can read it"
    assert kept(key_file=key_file) is True
    assert key_file.read_bytes() == key, "read again, not made anew"
    assert kept() is False
