"""`pipeline setup`: fetch what cannot come with the installation."""

from __future__ import annotations

import logging
import shutil
import subprocess
import tempfile
from pathlib import Path

import click

from evaluate.corenlp import (
    CODE,
    MODELS,
    VERSION,
    CoreNlp,
    check_corenlp,
    corenlp_folder,
    find_corenlp,
    install_corenlp,
)
from evaluate.errors import EvaluateError, NotAvailable
from evaluate.paths import data_dir
from evaluate.spice import try_spice
from pipeline.errors import PipelineError

log = logging.getLogger(__name__)

_ARTIFACT = f"edu.stanford.nlp:stanford-corenlp:{VERSION}:jar"
_CLASSIFIERS = ("", ":models")
_IN_REPOSITORY = Path("edu/stanford/nlp/stanford-corenlp") / VERSION
_GET = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:get"
_ROOM_MB = 700  # the two jars, Maven's plugins and the cut models, for a moment side by side
_MAVEN_SECONDS = 3600.0


@click.group()
def command() -> None:
    """Get the parts that cannot come with the installation."""


@command.command()
@click.option(
    "--corenlp",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help=f"A folder that holds {CODE} and {MODELS}; nothing is downloaded.",
)
def spice(corenlp: Path | None) -> None:
    """Install CoreNLP 3.6.0, the parser that SPICE needs (87 MB), and try SPICE.

    \b
    Taken from, in this order:
      --corenlp DIR
      the folder where an earlier call put it ($PIPELINE_CORENLP, or the data folder)
      Maven's own folder ~/.m2, if the jars are there
      Maven Central through `mvn`, if Maven is installed (downloads 390 MB, keeps 87 MB)
    """
    if corenlp is not None:
        installed = _from_folder(corenlp)
    else:
        installed = _installed() or _from_maven_folder() or _from_maven()
    click.echo(f"CoreNLP {VERSION}: {installed.code.parent}")
    try:
        score = try_spice(corenlp=installed.code.parent)
    except EvaluateError as error:
        raise PipelineError(f"CoreNLP is installed, but SPICE does not run: {error}") from error
    click.echo(f"SPICE runs: {score:.3f} for a trial caption")


def _from_folder(folder: Path) -> CoreNlp:
    try:
        jars = find_corenlp(folder)
    except NotAvailable as error:
        raise PipelineError(
            f"--corenlp: {error.reason}; wanted a folder that holds {CODE} and {MODELS},"
            " such as Maven's own on a machine where it fetched them:"
            f" ~/.m2/repository/{_IN_REPOSITORY}"
        ) from error
    return install_corenlp(jars)


def _installed() -> CoreNlp | None:
    """What an earlier call installed, checked; a broken set is said and replaced."""
    try:
        jars = find_corenlp()
    except NotAvailable:
        return None
    try:
        check_corenlp(jars)
    except EvaluateError as error:
        log.warning("%s", error)
        return None
    return jars


def _from_maven_folder() -> CoreNlp | None:
    folder = Path.home() / ".m2" / "repository" / _IN_REPOSITORY
    try:
        return install_corenlp(find_corenlp(folder))
    except NotAvailable:
        return None
    except EvaluateError as error:
        log.warning("%s", error)
        return None


def _from_maven() -> CoreNlp:
    """Download through Maven into a folder of its own, which is removed again."""
    maven = shutil.which("mvn")
    if maven is None:
        raise PipelineError(
            f"CoreNLP {VERSION} is not in {corenlp_folder()}, and Maven (mvn), which would fetch"
            f" it, is not installed; install Maven, or get {CODE} and {MODELS} on another machine"
            " and type: pipeline setup spice --corenlp DIR"
        )
    folder = data_dir("spice")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free >> 20
        if free < _ROOM_MB:
            raise PipelineError(f"{folder}: {free} MB free, wanted {_ROOM_MB} MB to fetch CoreNLP")
        with tempfile.TemporaryDirectory(prefix=".maven-", dir=folder) as repository:
            for classifier in _CLASSIFIERS:
                log.info("fetching %s%s", _ARTIFACT, classifier)
                _mvn(maven, _ARTIFACT + classifier, repository)
            return install_corenlp(find_corenlp(Path(repository) / _IN_REPOSITORY), folder)
    except OSError as error:
        raise PipelineError(
            f"{folder}: cannot be written ({error}); name another by XDG_DATA_HOME"
        ) from error


def _mvn(maven: str, artifact: str, repository: str) -> None:
    arguments = [f"-Dmaven.repo.local={repository}", _GET, "-Dtransitive=false"]
    try:
        ended = subprocess.run(
            [maven, "--batch-mode", "--quiet", *arguments, f"-Dartifact={artifact}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_MAVEN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PipelineError(
            f"Maven did not get {artifact} within {_MAVEN_SECONDS / 60:g} minutes;"
            " the same command tries again"
        ) from error
    if ended.returncode != 0:
        last = "\n".join(ended.stdout.strip().splitlines()[-10:])
        raise PipelineError(
            f"Maven could not get {artifact} (exit {ended.returncode}); its last lines:\n{last}\n"
            "the same command tries again; without a network: pipeline setup spice --corenlp DIR"
        )
