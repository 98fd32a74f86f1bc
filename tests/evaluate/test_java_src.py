"""Our own Java: the shipped jar is the shipped source, and does what SPICE asks of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from evaluate.java import find_java
from evaluate.java_src.build import JAR, build

needs_javac = pytest.mark.skipif(shutil.which("javac") is None, reason="no javac on the PATH")


def disassembled(jar: Path, folder: Path) -> str:
    """Every class of a jar as javap shows it, less what depends on the compiler's numbering."""
    with zipfile.ZipFile(jar) as packed:
        packed.extractall(folder)
    classes = sorted(path.relative_to(folder) for path in folder.rglob("*.class"))
    assert len(classes) >= 2
    command = ["javap", "-p", "-c", "-constants", *map(str, classes)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout
    return re.sub(r"#\d+", "#", shown)


@needs_javac
def test_the_jar_is_made_of_the_source(tmp_path: Path) -> None:
    build(tmp_path / "new.jar")
    shipped = disassembled(JAR, tmp_path / "shipped")
    assert shipped == disassembled(tmp_path / "new.jar", tmp_path / "new")
    assert "class captionpipeline.JsonEngineFactory" in shipped
    with zipfile.ZipFile(JAR) as old, zipfile.ZipFile(tmp_path / "new.jar") as new:
        assert old.namelist() == new.namelist()


def test_classes_run_on_java_8() -> None:
    with zipfile.ZipFile(JAR) as packed:
        heads = [packed.read(n)[:8] for n in packed.namelist() if n.endswith(".class")]
    assert heads and all(h[:4] == b"\xca\xfe\xba\xbe" and h[7] == 52 for h in heads)


@needs_javac
def test_one_script_is_known_and_others_refused(tmp_path: Path) -> None:
    source = Path(__file__).parent / "java" / "UseEngine.java"
    subprocess.run(["javac", "--release", "8", "-nowarn", "-d", tmp_path, source], check=True)
    ran = subprocess.run(
        [find_java().path, "-cp", f"{JAR}:{tmp_path}", "UseEngine"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.splitlines() == ['{"a": [1, null]}', "refused", "refused"]


@needs_javac
def test_a_guarded_program_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    source = tmp_path / "Sleeper.java"
    source.write_text(
        "public class Sleeper { public static void main(String[] a) throws Exception {"
        ' System.out.println(a[0]); if (a[0].equals("long")) Thread.sleep(60_000);'
        ' if (a[0].equals("bad")) throw new IllegalStateException("its own error"); } }'
    )
    subprocess.run(["javac", "--release", "8", "-nowarn", "-d", tmp_path, source], check=True)
    command = [find_java().path, "-cp", f"{JAR}:{tmp_path}", "captionpipeline.Guarded", "Sleeper"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "long"], stdin=pipe, stdout=pipe) as popen:
        assert popen.stdout is not None and popen.stdin is not None
        assert popen.stdout.readline().strip() == b"long" and popen.poll() is None
        popen.stdin.close()  # as when the starter dies
        assert popen.wait(30) == 143
    for word, code, said in (("short", 0, ""), ("bad", 1, "its own error")):
        with subprocess.Popen([*command, word], stdin=pipe, stdout=pipe, stderr=pipe) as popen:
            assert popen.wait(30) == code
            assert popen.stderr is not None and said in popen.stderr.read().decode()
