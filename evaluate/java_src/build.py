"""Compile our own Java to `support.jar`: `python -m evaluate.java_src.build`.

Needs a JDK's `javac` and METEOR's jar; the classes run on Java 8 and later. The jar is the same
byte for byte whenever the compiler is the same.
"""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path

from evaluate.java import wheel_file

SOURCES = sorted(Path(__file__).parent.glob("*.java"))
JAR = Path(__file__).with_name("support.jar")
_SERVICE = "META-INF/services/javax.script.ScriptEngineFactory"
_PROVIDER = "captionpipeline.JsonEngineFactory\n"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def build(jar: Path, javac: str = "javac") -> None:
    """Compile the sources and write the jar; raises CalledProcessError with javac's words."""
    with tempfile.TemporaryDirectory() as folder:
        meteor = str(wheel_file("meteor/meteor-1.5.jar"))
        options = ["--release", "8", "-Xlint:-options", "-g:none", "-cp", meteor, "-d", folder]
        subprocess.run([javac, *options, *map(str, SOURCES)], check=True, capture_output=True)
        contents = {_SERVICE: _PROVIDER.encode()}
        for path in sorted(Path(folder).rglob("*.class")):
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in contents.items():
            packed.writestr(zipfile.ZipInfo(name, _LONG_AGO), data, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    build(JAR)
