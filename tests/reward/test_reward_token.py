"""The token file: who may read it, and that a new one is taken while serving."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from verlops.errors import CredentialsError
from verlops_workers.reward.token import Token

NEW = "another-token-9876543210"


def replace(path: Path, text: str, mode: int = 0o600) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.chmod(mode)
    temporary.replace(path)


def test_only_the_whole_token_matches(token_file: Path, token: str) -> None:
    found = Token(token_file)
    assert found.matches(token.encode())
    for shown in ("", token[:-1], token + "x", token.upper(), "é" * 20):
        assert not found.matches(shown.encode())


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o602, 0o777])
def test_a_file_that_others_may_use_is_refused(token_file: Path, mode: int) -> None:
    token_file.chmod(mode)
    with pytest.raises(CredentialsError, match=f"mode {mode:04o}"):
        Token(token_file)


@pytest.mark.parametrize("text", ["", "\n", "short"])
def test_a_file_without_a_token_is_refused(token_file: Path, text: str) -> None:
    token_file.write_text(text)
    with pytest.raises(CredentialsError, match="no token"):
        Token(token_file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="verlops up"):
        Token(tmp_path / "reward.token")


def test_a_new_token_replaces_the_old_one(token_file: Path, token: str) -> None:
    found = Token(token_file)
    replace(token_file, NEW)
    assert found.matches(NEW.encode())
    assert not found.matches(token.encode())


def test_a_token_written_in_place_is_taken_too(token_file: Path, token: str) -> None:
    found = Token(token_file)
    token_file.write_text(NEW[: len(token)])
    os.utime(token_file, ns=(1, 1))
    assert not found.matches(token.encode())
    assert found.matches(NEW[: len(token)].encode())


def test_while_the_new_file_is_no_good_the_old_token_holds(
    token_file: Path, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = Token(token_file)
    with caplog.at_level(logging.INFO):
        replace(token_file, NEW, mode=0o644)
        for _ in range(3):
            assert found.matches(token.encode())
            assert not found.matches(NEW.encode())
        token_file.unlink()
        assert found.matches(token.encode())
        replace(token_file, NEW)
        assert found.matches(NEW.encode())
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 3  # readable by others, missing, rotated: each said once
    assert lines[-1] == "token rotated"
    assert not any(NEW in line or token in line for line in lines)
