"""The command line: a dictionary of functions.

Progress and messages go to standard error. With `--json` a command prints exactly one JSON object
on standard output. A user's mistake is one line and exit code 2, never a traceback; so is a file
that may not be read or written, and a full disk. Started by torchrun, the first rank speaks for all
(see `outsize.launched`).
"""

from __future__ import annotations

import errno
import functools
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from outsize.errors import ConfigError, LostRanksError, OutsizeError
from outsize.launched import (
    is_first_rank,
    is_one_of_several,
    is_rank,
    leave,
    may_speak,
    report_failure,
    wait_for_first,
)
from outsize.user_modules import import_modules

_ABOUT = "Train embedding models that outsize your memory."
_OF_THE_MACHINE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""What may befall any file, and is never a defect of ours; other errors of the system may be."""

RunFile = Annotated[Path, typer.Argument(help="The run, a TOML file.", metavar="RUN.toml")]
Settings = Annotated[
    list[str], typer.Option("--set", help="Override a setting: section.key=value. Repeatable.")
]
Imports = Annotated[
    list[str],
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a module that registers models, tables or data of yours. Repeatable.",
    ),
]
Step = Annotated[
    int | None,
    typer.Option(help="Take the checkpoint of this step. Default: of the best validation."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def train(
    run: RunFile,
    settings: Settings = [],  # noqa: B006  typer copies it
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. Default: runs/<name of RUN.toml>.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out.")] = False,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Train a model and write a run folder with its log, checkpoints and report."""
    from outsize.training import load_config
    from outsize.training import train as train_run
    from outsize.training.metric_names import in_words

    import_modules(imports)
    config = load_config(run, settings)
    folder = out or Path("runs") / run.stem
    summary = train_run(config, folder, resume=resume, quiet=as_json).summary()
    if not as_json and is_first_rank():
        best = f"best step {summary['validation']['step']:,} of {summary['steps']:,}"
        say(f"{best}  test  {in_words(summary['test'])}  →  {folder / 'report.html'}")
    return summary


def compare(
    run: RunFile,
    tables: Annotated[
        list[str],
        typer.Option(help="Table methods, with commas. Default: all. Full tables always run."),
    ] = [],  # noqa: B006
    budgets: Annotated[
        list[str],
        typer.Option(
            help="Caps on each table, with commas. Default: 1/1000, 1/100 and 1/10 of the largest."
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Runs of each method and budget.")] = 3,
    unit: Annotated[str, typer.Option(help="Unit of budgets: parameters or bytes.")] = "parameters",
    settings: Settings = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option(help="Folder of results. Default: compare/<name of RUN.toml>.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Cells at once; 0: in this process. Default: one for two cores, or GPU."),
    ] = None,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Compare table methods with full tables at several budgets; a second call goes on."""
    from outsize.compare import Grid, read_budgets, read_methods, read_unit
    from outsize.compare import compare as compare_tables
    from outsize.training import load_config

    import_modules(imports)
    grid = Grid(
        load_config(run, settings),
        read_methods(tables),
        read_budgets(budgets),
        read_unit(unit),
        seeds,
    )
    folder = out or Path("compare") / run.stem
    return compare_tables(grid, folder, workers=workers, quiet=as_json)


def export(
    run: Annotated[
        Path,
        typer.Argument(help="The folder of a run; with --quantize, or an export.", metavar="RUN"),
    ],
    out: Annotated[Path, typer.Argument(help="Folder to write; new or empty.", metavar="DIR")],
    step: Step = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write DIR/model.onnx, of a click model.")
    ] = False,
    quantize: Annotated[
        str | None,
        typer.Option(metavar="int8|pq", help="Quantize the tables, and measure what it costs."),
    ] = None,
    columns: Annotated[
        int | None, typer.Option(help="pq: columns per vector. Default: one for 2 numbers.")
    ] = None,
    codes: Annotated[int | None, typer.Option(help="pq: codes per column. Default: 256.")] = None,
    max_bytes: Annotated[
        int | None, typer.Option(help="pq: bytes of all tables together, instead of --codes.")
    ] = None,
    min_rows: Annotated[
        int, typer.Option(help="pq: tables with fewer rows stay as they are.")
    ] = 1_000,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Write the trained model of a run for use without its training."""
    from outsize.export import load_exported, write_onnx
    from outsize.export.onnx_file import ONNX, require_onnx
    from outsize.export.quantization import Quantization
    from outsize.training import export_run
    from outsize.training.metric_names import in_words
    from outsize.training.quantization_loss import loss_table, unchanged_lines

    import_modules(imports)
    if onnx:
        require_onnx()
    how = None
    if quantize is not None:
        how = Quantization(quantize, columns, codes, max_bytes, min_rows)
    elif (columns, codes, max_bytes) != (None, None, None):
        raise ConfigError(
            "--columns, --codes and --max-bytes are settings of --quantize pq: add it"
        )
    summary = export_run(run, out, step, quantize=how, quiet=as_json)
    if onnx:
        summary["onnx"] = write_onnx(load_exported(out), out / ONNX)
    if summary["note"]:
        say(f"note: {summary['note']}")
    if not as_json:
        which = "the best step" if summary["is_best"] else "step"
        of_step = "" if summary["step"] is None else f" of {which} {summary['step']:,}"
        say(f"{summary['model']}{of_step}, {summary['num_parameters']:,} parameters  →  {out}")
        if how is not None:
            for line in loss_table(summary["quantization"], summary["metrics"]):
                say(line)
            for line in unchanged_lines(summary["quantization"]):
                say(line)
        for split, metrics in () if how is not None else summary["metrics"].items():
            say(f"{split}  {in_words(metrics)}")
        if onnx:
            say(f"ONNX, opset {summary['onnx']['opset']}  →  {summary['onnx']['out']}")
    return summary


def predict(
    model: Annotated[Path, typer.Argument(help="The folder of an export.", metavar="DIR")],
    file: Annotated[Path, typer.Argument(help="A CSV, TSV or Parquet file.", metavar="FILE")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .parquet or .csv file for the scores. Default: CSV on standard output."
        ),
    ] = None,
    keep: Annotated[
        list[str],
        typer.Option(metavar="COLUMN", help="Copy a column of FILE to the scores. Repeatable."),
    ] = [],  # noqa: B006
    top: Annotated[int, typer.Option(help="Items per query, for a two-tower model.")] = 10,
    exclude: Annotated[
        list[Path],
        typer.Option(
            metavar="PAIRS",
            help="For a two-tower model, leave out what queries have seen: a file of pairs. "
            "Repeatable.",
        ),
    ] = [],  # noqa: B006
    max_bad_rows: Annotated[
        float, typer.Option(help="The largest share of malformed rows that is skipped.")
    ] = 0.0,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Score the rows of a file of raw values with an exported model, or find items for them."""
    from outsize.export import load_exported
    from outsize.export.score_files import file_to_read, score_file
    from outsize.export.search_files import search_file
    from outsize.models import RetrievalModel

    import_modules(imports)
    if as_json and out is None:
        raise ConfigError("--json prints a summary, so the scores need a file: name it with --out")
    if out is not None and out.exists() and out.samefile(file_to_read(file)):
        raise ConfigError(f"--out {out} is the file that is scored: name another one")
    loaded = load_exported(model)
    if isinstance(loaded, RetrievalModel):
        if keep:
            raise ConfigError("--keep is for click models: join the items by row")
        found = search_file(
            loaded, file, out, k=top, exclude=exclude, max_bad_rows=max_bad_rows, quiet=as_json
        )
        name = "mean score of the best item"
    else:
        if exclude:
            raise ConfigError("--exclude is for two-tower models: leave it out")
        found = score_file(loaded, file, out, keep=keep, max_bad_rows=max_bad_rows, quiet=as_json)
        name = "mean probability"
    if found.bad_rows:
        say(f"skipped malformed rows: {found.bad_rows}")
    if found.note:
        say(f"note: {found.note}")
    if not as_json and out is not None:
        say(f"{found.num_rows:,} rows, {name} {found.mean:.5f}  →  {out}")
    return {
        "out": None if out is None else str(out),
        "num_rows": found.num_rows,
        "num_bad": found.num_bad,
        name.replace(" ", "_"): found.mean,
    }


def evaluate(
    model: Annotated[
        Path, typer.Argument(help="The folder of a run or of an export.", metavar="RUN|DIR")
    ],
    file: Annotated[
        Path, typer.Argument(help="A labelled CSV, TSV or Parquet file.", metavar="FILE")
    ],
    step: Step = None,
    exclude: Annotated[
        list[Path],
        typer.Option(
            metavar="PAIRS",
            help="For a two-tower model, leave out of rankings what queries have seen: a file of "
            "pairs. Repeatable. Default: a run's own pairs.",
        ),
    ] = [],  # noqa: B006
    max_bad_rows: Annotated[
        float | None,
        typer.Option(help="The largest share of malformed rows that is skipped. As in training."),
    ] = None,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Measure a trained model on a labelled file."""
    from outsize.training.evaluate import evaluate as evaluate_model
    from outsize.training.metric_names import in_words

    import_modules(imports)
    summary = evaluate_model(
        model, file, step, exclude=exclude, max_bad_rows=max_bad_rows, quiet=as_json
    )
    if summary["note"]:
        say(f"note: {summary['note']}")
    if not as_json:
        which = "" if summary["step"] is None else f" of step {summary['step']:,}"
        say(f"weights{which} on {summary['num_rows']:,} rows  {in_words(summary['metrics'])}")
        if summary["num_bad"]:
            say(f"{summary['num_bad']:,} malformed rows were skipped")
    return summary


def serve(
    model: Annotated[Path, typer.Argument(help="The folder of an export.", metavar="DIR")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    max_rows: Annotated[int, typer.Option(help="Rows per request.")] = 10_000,
    max_bytes: Annotated[int, typer.Option(help="Bytes per request.")] = 10_000_000,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Serve an exported click model by HTTP: POST /predict takes JSON rows of raw values."""
    from outsize.export.serving import serve as serve_model

    import_modules(imports)

    def tell(url: str) -> None:
        say(f"serving {model} on {url}  (Ctrl-C stops)")

    serve_model(model, host, port, max_rows=max_rows, max_bytes=max_bytes, listening=tell)
    return {"model": str(model), "stopped": True}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the tour's runs and report.")] = Path(
        "outsize-demo"
    ),
    quick: Annotated[bool, typer.Option(help="A much smaller tour, to try the command.")] = False,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Take the tour: train on data made on the fly and look at a report."""
    from outsize.demo import take_tour

    return take_tour(out, quick=quick, quiet=as_json)


def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark; 'list' shows them.")] = "list",
    out: Annotated[Path | None, typer.Option(help="Also write the results to this folder.")] = None,
    quick: Annotated[bool, typer.Option(help="Small sizes, to try the command.")] = False,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Run a benchmark on this machine, with its peers in the same process."""
    from outsize.bench import run_benchmark

    return run_benchmark(name, out, quick=quick, quiet=as_json)


_ON_SEVERAL_RANKS = ("train",)

COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    "demo": demo,
    "train": train,
    "compare": compare,
    "export": export,
    "predict": predict,
    "evaluate": evaluate,
    "serve": serve,
    "bench": bench,
}


def say(text: str) -> None:
    """Print a line for people, on standard error."""
    from rich.console import Console

    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    words = sys.argv[1:] if arguments is None else arguments
    app = typer.Typer(
        name="outsize",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback(help=_ABOUT)(_options)
    for name, command in COMMANDS.items():
        app.command(name)(_interruptible(_alone(name, command)))
    as_json = "--json" in words
    try:
        result = app(words, standalone_mode=False)
    except OutsizeError as error:
        _fail(str(error), as_json, is_own=isinstance(error, LostRanksError))
    except _Interrupted:
        if is_first_rank():
            say(
                "stopped; what was saved goes on: train with --resume, compare with the same "
                "command"
            )
        leave(130)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE and error.filename:
            _fail(f"{error.filename}: {error.strerror}", as_json)
        if type(error).__module__.partition(".")[0] not in ("click", "typer"):
            if not is_rank():
                raise
            traceback.print_exc()
            leave(1)
        _fail(error.format_message(), as_json)  # type: ignore[attr-defined]
    if as_json and isinstance(result, dict) and is_first_rank():
        print(json.dumps(result))
    leave(result if isinstance(result, int) else 0)


class _Interrupted(Exception):
    """Ctrl-C or SIGTERM, past typer, which would turn it into a bare exit code."""


def _interruptible(command: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            raise _Interrupted from None

    return run


def _print_version(asked: bool | None) -> None:
    if asked:
        import outsize

        print(outsize.__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool | None,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = None,
) -> None:
    """Options of no command."""


def _alone(name: str, command: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Refuse a command that several ranks would each run in full, over each other's files."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> dict[str, Any]:
        if name not in _ON_SEVERAL_RANKS and is_one_of_several():
            raise ConfigError(f"outsize {name} runs in one process: start it without torchrun")
        return command(*args, **kwargs)

    return run


def _fail(message: str, as_json: bool, is_own: bool = False) -> NoReturn:
    """One line on standard error, the same as JSON where asked for, and exit code 2.

    Args:
        message: The line.
        as_json: Whether standard output gets it too.
        is_own: Whether it is about this rank alone, and told besides what another tells.
    """
    line = " ".join(message.split())
    if not is_own:
        wait_for_first()
    is_speaker = may_speak()
    if is_own or is_speaker:
        say(f"outsize: {line}")
    if as_json and is_speaker:
        print(json.dumps({"error": line}))
    report_failure(f"outsize: {line}")
    leave(2)
