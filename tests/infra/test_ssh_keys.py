"""Our key pairs, by the word of the real ssh-keygen."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from infra.errors import ProviderError
from infra.ssh_keys import make_pair

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


def keygen(*arguments: str | Path) -> str:
    done = subprocess.run(
        ["ssh-keygen", *map(str, arguments)], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    return done.stdout


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys of ours" / "id_ed25519"


def test_openssh_reads_the_pair_and_it_is_one(path: Path) -> None:
    public = make_pair(path, comment="trainstack/s")
    assert keygen("-y", "-f", path).split()[:2] == public.split()
    bits, fingerprint, comment, kind = keygen("-l", "-f", path.with_name("id_ed25519.pub")).split()
    assert (bits, comment, kind) == ("256", "trainstack/s", "(ED25519)")
    assert keygen("-l", "-f", path).split()[1] == fingerprint


def test_it_is_the_users_alone_and_nothing_lies_beside_it(path: Path) -> None:
    make_pair(path, comment="c")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(each.name for each in path.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_one_that_is_there_is_kept(path: Path) -> None:
    first = make_pair(path, comment="c")
    before = path.read_bytes(), path.with_name("id_ed25519.pub").read_bytes()
    assert make_pair(path, comment="other") == first
    assert (path.read_bytes(), path.with_name("id_ed25519.pub").read_bytes()) == before


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_a_users_own_of_another_kind_is_kept(kind: str, path: Path) -> None:
    path.parent.mkdir()
    keygen("-q", "-t", kind, "-N", "", "-f", path)
    before = path.read_bytes()
    assert make_pair(path, comment="c").split() == keygen("-y", "-f", path).split()[:2]
    assert path.read_bytes() == before


def test_two_are_different(tmp_path: Path) -> None:
    assert make_pair(tmp_path / "a", comment="c") != make_pair(tmp_path / "b", comment="c")


@pytest.mark.parametrize("public", [None, "", "ssh-ed25519", "ssh-ed25519 AAAAof another pair"])
def test_a_public_half_that_is_missing_or_of_another_pair_is_made_anew(public: str | None, path: Path) -> None:
    first = make_pair(path, comment="c")
    half = path.with_name("id_ed25519.pub")
    half.unlink() if public is None else half.write_text(public)
    assert make_pair(path, comment="c") == first == " ".join(half.read_text().split()[:2])


def test_a_public_half_alone_does_not_outlive_its_pair(path: Path) -> None:
    first = make_pair(path, comment="c")
    path.unlink()
    second = make_pair(path, comment="c")
    assert second != first
    assert second.split() == keygen("-y", "-f", path).split()[:2]


@pytest.mark.parametrize("has_public", [True, False])
@pytest.mark.parametrize("content", ["", "no key\n", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_what_is_no_key_is_refused_and_left(content: str, has_public: bool, path: Path) -> None:
    make_pair(path, comment="c")
    path.write_text(content)
    if not has_public:
        path.with_name("id_ed25519.pub").unlink()
    with pytest.raises(ProviderError, match="is not a private key that can be used") as error:
        make_pair(path, comment="c")
    assert str(path) in str(error.value)
    assert path.read_text() == content


def test_a_key_with_a_passphrase_is_refused_in_one_sentence(path: Path) -> None:
    path.parent.mkdir()
    keygen("-q", "-t", "ed25519", "-N", "canary phrase", "-f", path)
    with pytest.raises(ProviderError, match="is not a private key that can be used") as error:
        make_pair(path, comment="c")
    assert "canary" not in str(error.value)
