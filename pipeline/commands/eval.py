"""`pipeline eval`: score results files, or decode and score a split with trained runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from evaluate.cider import DocumentFrequency
from evaluate.scores import METRICS, Tokenizer
from evaluate.significance import RESAMPLES
from extract.counts import counted
from pipeline.files import refuse_inputs
from pipeline.kept_scores import write_scores
from pipeline.results import by_file_names, read_references, read_results, training_captions
from pipeline.run_results import Decoding, decode_runs
from pipeline.score_report import report
from pipeline.scoring import (
    Evaluation,
    Settings,
    Source,
    check_per_image,
    evaluate,
    names_of,
    read_domains,
    write_per_image,
)
from pipeline.submission import IMAGES, outputs, read_ids, write_submission
from pipeline.tables import Format

log = logging.getLogger(__name__)

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_TYPED = click.core.ParameterSource.COMMANDLINE
_OUT = click.Path(path_type=Path)


def _metrics(ctx: click.Context, option: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in value.split(",") if name.strip())
    unknown = [name for name in names if name not in METRICS]
    if unknown or not names:
        raise click.BadParameter(
            f"{', '.join(unknown) or 'none'} given, wanted some of {','.join(METRICS)}"
        )
    return names


@click.command()
@click.argument("more", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--results", multiple=True, type=_FILE, help="Captions to score, of any captioner.")
@click.option("--references", type=_FILE, help="Captions to score them against.")
@click.option("--run", "runs", multiple=True, type=_FOLDER, help="Trained run to decode and score.")
@click.option("--split", help="Split of the references or of the run's data (runs: test).")
@click.option(
    "--metrics",
    default=",".join(METRICS),
    show_default=True,
    callback=_metrics,
    help="Metrics to compute, with commas.",
)
@click.option("--subset", is_flag=True, help="Score the images that all files share.")
@click.option("--allow-empty", is_flag=True, help="Score empty captions (as 0).")
@click.option("--per-image", type=_OUT, metavar="CSV", help="Write the scores of every image.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--latex", is_flag=True, help="Print LaTeX tables.")
@click.option("--domains", type=_FILE, help="JSON of image id to domain: nocaps' columns.")
@click.option("--train-captions", type=_FILE, help="Training captions: counts novel captions.")
@click.option(
    "--tokenizer",
    type=click.Choice(get_args(Tokenizer)),
    default="ptb",
    show_default=True,
    help="ptb: in Python; java: the official program.",
)
@click.option("--df", type=_FILE, help="Document-frequency table (.npz) for CIDEr.")
@click.option("--spice-jars", type=_FOLDER, help="Folder of the CoreNLP 3.6.0 jars for SPICE.")
@click.option(
    "--resamples",
    type=click.IntRange(min=0),
    default=RESAMPLES,
    show_default=True,
    help="For intervals and the paired test; 0: neither.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--submission", metavar="NAME", help="Write the COCO server's files.")
@click.option(
    "--submission-split", type=click.Choice(list(IMAGES)), help="Its images.  [default: val2014]"
)
@click.option("--submission-ids", type=_FILE, help="Ids that the submission must hold.")
@click.option("--out", type=_OUT, help="Folder of the submission.  [default: .]")
@click.option(
    "--ensemble",
    type=click.Choice(["probabilities", "log_probabilities"]),
    help="Runs: decode all together, averaging this at every word.",
)
@click.option("--beam", type=click.IntRange(min=1), help="Runs: beam width (default: the run's).")
@click.option("--num-captions", type=click.IntRange(min=1), help="Runs: captions per image.")
@click.option("--constraints", type=_FILE, help="Runs: words to hold, of pipeline constraints.")
@click.option(
    "--satisfy", type=click.IntRange(min=0), help="Runs: so many of the constraints (default: 2)."
)
@click.option("--features", type=click.Path(exists=True, path_type=Path), help="Runs: cache.")
@click.option("--captions", type=_FILE, help="Runs: caption file in place of the run's.")
@click.option("--device", default="auto", show_default=True, help="Runs: auto, cpu or cuda.")
@click.option("--shuffle-features", is_flag=True, help="Runs: give images each other's features.")
@click.pass_context
def command(ctx: click.Context, more: Sequence[Path], **options: Any) -> None:
    """Score captions as the papers do: BLEU, METEOR, ROUGE-L, CIDEr-D and SPICE.

    Any captioner's results against any references, several files side by side:

    \b
    pipeline eval --results captions.json --references captions_val2014.json
    pipeline eval --results a.json b.json --references dataset_coco.json --split test

    Or decode a split with trained runs and score that:

    \b
    pipeline eval --run RUN --split test --beam 5

    Or score several runs as one ensemble:

    \b
    pipeline eval --run A --run B --ensemble probabilities

    Or with words that the captions are to hold (constrained beam search):

    \b
    pipeline eval --run RUN --split test --constraints constraints.json

    MORE are further results files after --results, further runs after --run.
    """
    _check_usage(more, options)
    settings = Settings(
        metrics=options["metrics"],
        tokenizer=options["tokenizer"],
        table=DocumentFrequency.load(options["df"]) if options["df"] else None,
        spice_jars=options["spice_jars"],
        resamples=options["resamples"],
        seed=options["seed"],
        subset=options["subset"],
        typed=() if options["runs"] else _typed(ctx),
    )
    if options["runs"]:
        evaluation = _score_runs([*options["runs"], *more], options, settings)
    elif options["references"]:
        evaluation = _score_files([*options["results"], *more], options, settings)
    else:
        evaluation = None
    if evaluation is not None:
        _show(evaluation, settings, options)
    if options["submission"]:
        _submit(evaluation, options)


def _typed(ctx: click.Context) -> tuple[str, ...]:
    """The options as they were typed, but for the files."""
    words: list[str] = []
    for option in ctx.command.params:
        name = option.name or ""
        source = ctx.get_parameter_source(name)
        if name in ("more", "results", "references", "subset") or source is not _TYPED:
            continue
        value = ctx.params[name]
        words.append(option.opts[0])
        if value is not True:
            words.append(",".join(value) if isinstance(value, tuple) else str(value))
    return tuple(words)


def _check_usage(more: Sequence[Path], options: dict[str, Any]) -> None:
    results, runs = options["results"], options["runs"]
    if bool(results) == bool(runs):
        raise click.UsageError(
            "give either --results FILE --references FILE or --run RUN"
            if not results
            else "--results and --run exclude each other: score one, then the other"
        )
    if runs:
        _only_for(options, ("references", "allow_empty", "train_captions"), "--results")
        wrong = [path for path in more if not path.is_dir()]
    else:
        names = ("beam", "num_captions", "features", "captions", "shuffle_features", "ensemble")
        _only_for(options, (*names, "constraints"), "--run")
        wrong = [path for path in more if path.is_dir()]
        if not options["references"] and not options["submission"]:
            raise click.UsageError("--references FILE is missing: what to score the captions by")
    if options["satisfy"] is not None and not options["constraints"]:
        raise click.UsageError("--satisfy goes with --constraints only")
    if wrong:
        raise click.UsageError(f"{wrong[0]} is no {'run folder' if runs else 'results file'}")
    _check_outputs([*results, *more], options)
    forms = {"--json": "as_json", "--markdown": "markdown", "--latex": "latex"}
    chosen = [flag for flag, name in forms.items() if options[name]]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} exclude each other")
    if not options["submission"]:
        _only_for(options, ("submission_split", "submission_ids", "out"), "--submission")
    elif len(results) + len(runs) + len(more) > 1:
        raise click.UsageError("--submission takes one results file or run")


def _check_outputs(results: Sequence[Path], options: dict[str, Any]) -> None:
    """Refuse, before any work, to write over what the command reads."""
    names = ("references", "domains", "train_captions", "df", "captions", "constraints")
    given = [options[name] for name in (*names, "submission_ids") if options[name]]
    if options["per_image"]:
        check_per_image(options["per_image"], [*results, *given])
    if options["submission"]:
        for path in outputs(*_submission(options)):
            refuse_inputs(path, [*results, *given], "--submission:")


def _only_for(options: dict[str, Any], names: Sequence[str], mode: str) -> None:
    for name in names:
        if options[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with {mode} only")


def _score_files(paths: Sequence[Path], options: dict[str, Any], settings: Settings) -> Evaluation:
    references = read_references(options["references"], split=options["split"])
    training = options["train_captions"]
    known = training_captions(training) if training else None
    sources = []
    for name, path in zip(names_of(paths), paths, strict=True):
        results = read_results(path, allow_empty=options["allow_empty"], references=references)
        results = by_file_names(results, references, options["references"])
        sources.append(Source(name=name, results=results, training=known))
    return _evaluated(sources, references, options["references"], settings, options)


def _score_runs(paths: Sequence[Path], options: dict[str, Any], settings: Settings) -> Evaluation:
    decoding = Decoding(
        split=options["split"] or "test",
        beam=options["beam"],
        captions_per_image=options["num_captions"],
        features=options["features"],
        captions=options["captions"],
        device=options["device"],
        shuffle=options["shuffle_features"],
        ensemble=options["ensemble"],
        constraints=options["constraints"],
        satisfy=2 if options["satisfy"] is None else options["satisfy"],
    )
    decoded = decode_runs(paths, decoding)
    evaluation = _evaluated(
        decoded.sources, decoded.references, decoded.references_path, settings, options
    )
    for scored in evaluation.scored:
        if scored.source.scores_path is not None:
            write_scores(scored.source.scores_path, scored)
            log.info("scores kept in %s", scored.source.scores_path)
    return evaluation


def _evaluated(
    sources: Sequence[Source],
    references: dict[str, list[str]],
    references_path: Path,
    settings: Settings,
    options: dict[str, Any],
) -> Evaluation:
    domains = read_domains(options["domains"]) if options["domains"] else None
    evaluation = evaluate(
        sources, references, settings, references_path=references_path, domains=domains
    )
    if options["per_image"]:
        write_per_image(options["per_image"], evaluation, references)
        log.info("scores of every image kept in %s", options["per_image"])
    return evaluation


def _show(evaluation: Evaluation, settings: Settings, options: dict[str, Any]) -> None:
    if options["as_json"]:
        click.echo(json.dumps(evaluation.to_dict(), ensure_ascii=False, allow_nan=False))
    else:
        form: Format = next((f for f in ("markdown", "latex") if options[f]), "text")
        click.echo(report(evaluation, settings.columns, form))


def _submission(options: dict[str, Any]) -> tuple[str, str, Path]:
    """Name, split and folder of the submission."""
    split = options["submission_split"] or "val2014"
    return options["submission"], split, options["out"] or Path(".")


def _submit(evaluation: Evaluation | None, options: dict[str, Any]) -> None:
    results = (
        evaluation.scored[0].source.results
        if evaluation is not None
        else read_results(options["results"][0], allow_empty=options["allow_empty"])
    )
    ids = read_ids(options["submission_ids"]) if options["submission_ids"] else None
    written = write_submission(results, *_submission(options), ids)
    other = [split for split in IMAGES if split not in written.splits]
    click.echo(f"{written.results}: {counted(len(results.captions), 'caption')}, checked", err=True)
    click.echo(
        f"{written.archive}: {', '.join(written.splits)}"
        + (f"; the server also wants {other[0]}: run again with its results" if other else ""),
        err=True,
    )
