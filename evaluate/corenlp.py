"""Stanford CoreNLP 3.6.0, the parser that SPICE needs: found, checked, cut to what SPICE reads.

The release is a 7 MB code jar and a 378 MB models jar, of which SPICE opens eleven files (80 MB).
It is GPL and comes with no Python package; `pipeline setup spice` puts it into the data folder.
As on Maven Central (sha256): code d341d5863276f55782c5ef73212222d6b3b48e02ae1951ab6de7618d28b12742,
models d285157bd7887ee3018094b5dbae092e49088b023361ccdb550ee1daf9b2c9bd.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluate.errors import EvaluateError, NotAvailable
from evaluate.paths import data_dir, replacing

VERSION = "3.6.0"
CODE = f"stanford-corenlp-{VERSION}.jar"
MODELS = f"stanford-corenlp-{VERSION}-models.jar"
CUT_MODELS = f"spice-models-{VERSION}.jar"
SETUP = "pipeline setup spice"

# Every file that is opened while SPICE parses.
_FOLDER = "edu/stanford/nlp/models/"
MODEL_FILES = (
    _FOLDER + "dcoref/animate.unigrams.txt",
    _FOLDER + "dcoref/countries",
    _FOLDER + "dcoref/demonyms.txt",
    _FOLDER + "dcoref/gender.map.ser.gz",
    _FOLDER + "dcoref/inanimate.unigrams.txt",
    _FOLDER + "dcoref/state-abbreviations.txt",
    _FOLDER + "dcoref/statesandprovinces",
    _FOLDER + "lexparser/englishPCFG.ser.gz",
    _FOLDER + "ner/english.all.3class.distsim.crf.ser.gz",
    _FOLDER + "ner/english.conll.4class.distsim.crf.ser.gz",
    _FOLDER + "ner/english.muc.7class.distsim.crf.ser.gz",
)

# Digests of what the jars hold (see `_digest`), so a repacked or cut jar is known too.
_CODE_DIGEST = "9416215d06cc08178f3e1b7d566254ef4c9d14b61eaf5337abdb635e26db3c8b"
_MODELS_DIGEST = "fa98b0c66bbbf4f18e247ea64ec2b70acbbbc403f81ba3fc5564af34bcac44dc"


@dataclass(frozen=True)
class CoreNlp:
    """The two jars: code, and models (all of them, or cut)."""

    code: Path
    models: Path


def corenlp_folder() -> Path:
    """Where SPICE looks: `$PIPELINE_CORENLP`, else the data folder that `pipeline setup` fills."""
    chosen = os.environ.get("PIPELINE_CORENLP")
    return Path(chosen).expanduser() if chosen else data_dir("spice")


def find_corenlp(folder: Path | None = None) -> CoreNlp:
    """The jars in `folder` (default: `corenlp_folder()`); NotAvailable when one is missing."""
    folder = folder or corenlp_folder()
    code = folder / CODE
    models = next((folder / m for m in (CUT_MODELS, MODELS) if (folder / m).is_file()), None)
    if models is None or not code.is_file():
        missing = [n for n, is_there in ((CODE, code.is_file()), (MODELS, models)) if not is_there]
        raise NotAvailable(
            f"CoreNLP {VERSION}, which SPICE needs, not found: no {' and no '.join(missing)}"
            f" in {folder}",
            SETUP,
        )
    return CoreNlp(code, models)


def check_corenlp(jars: CoreNlp) -> None:
    """See that both jars hold exactly the release's files; takes half a second.

    Raises EvaluateError naming the jar, the digest found and the one wanted.
    """
    _check(jars.code, None, _CODE_DIGEST)
    _check(jars.models, MODEL_FILES, _MODELS_DIGEST)


def install_corenlp(jars: CoreNlp, folder: Path | None = None) -> CoreNlp:
    """Check the jars and put the code and the cut models into `folder` (the data folder).

    Raises EvaluateError when they are not the release's, or the folder cannot be written to.
    """
    folder = folder or data_dir("spice")
    check_corenlp(jars)
    installed = CoreNlp(folder / CODE, folder / CUT_MODELS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _copy_members(jars.models, MODEL_FILES, installed.models)
        _copy_members(jars.code, None, installed.code)
    except OSError as error:
        raise EvaluateError(
            f"{folder}: cannot be written ({error}); name another by XDG_DATA_HOME"
        ) from error
    check_corenlp(installed)
    return installed


def _check(path: Path, members: Sequence[str] | None, wanted: str) -> None:
    try:
        found = _digest(path, members)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise EvaluateError(
            f"{path}: not CoreNLP {VERSION} ({error}); delete it and run: {SETUP}"
        ) from error
    if found != wanted:
        raise EvaluateError(
            f"{path}: its files have the digest {found}, wanted {wanted} (CoreNLP {VERSION} of"
            f" Maven Central); delete it and run: {SETUP}"
        )


def _digest(path: Path, members: Sequence[str] | None) -> str:
    """SHA-256 over names, sizes and bytes of the members (None: all but META-INF), by name."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(path) as jar:
        for name in sorted(_names(jar) if members is None else members):
            digest.update(f"{name}\0{jar.getinfo(name).file_size}\0".encode())
            digest.update(jar.read(name))
    return digest.hexdigest()


def _names(jar: zipfile.ZipFile) -> list[str]:
    return [n for n in jar.namelist() if not n.startswith("META-INF/") and not n.endswith("/")]


def _copy_members(source: Path, members: Sequence[str] | None, target: Path) -> None:
    """Write a jar with these members of another, atomically."""
    with (
        replacing(target) as temporary,
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(temporary, "w") as new,
    ):
        for member in _names(old) if members is None else members:
            info = old.getinfo(member)
            with old.open(info) as data, new.open(_entry(info), "w") as out:
                while block := data.read(1 << 20):
                    out.write(block)


def _entry(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(info.filename, info.date_time)
    entry.compress_type = (
        zipfile.ZIP_STORED if info.filename.endswith(".gz") else info.compress_type
    )
    entry.file_size = info.file_size
    return entry
