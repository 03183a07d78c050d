"""What becomes of a trained model: `outsize export`, `predict`, `evaluate` and `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outsize.cli.command_options import AsJson, Imports, Step, say
from outsize.errors import ConfigError
from outsize.user_modules import import_modules


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
        int | None, typer.Option(help="pq: columns per vector. Default: one per 2 numbers.")
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
    from outsize.training.run_folder import RunFolder

    import_modules(imports)
    if onnx:
        require_onnx()
        folder = RunFolder(run)
        if folder.holds_run() and folder.config().task != "click":
            raise ConfigError(
                f"{run} holds a {folder.config().task} model, but ONNX files are of click models: "
                "leave --onnx out"
            )
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
    top: Annotated[
        int | None,
        typer.Option(
            help="Items per query, for a two-tower model or links: 10 by default. Classes per "
            "node: the best one, or all where a node may have several."
        ),
    ] = None,
    exclude: Annotated[
        list[Path],
        typer.Option(
            metavar="PAIRS",
            help="For a two-tower model or links, leave out what queries have seen: a file of "
            "pairs. Repeatable.",
        ),
    ] = [],  # noqa: B006
    max_bad_rows: Annotated[
        float, typer.Option(help="The largest share of malformed rows that is skipped.")
    ] = 0.0,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Score the rows of a file with an exported model, or find items, classes or links for them."""
    from outsize.export import load_exported
    from outsize.export.file_reading import file_to_read
    from outsize.export.graph_files import predict_graph_file
    from outsize.export.score_files import score_file
    from outsize.export.search_files import search_file
    from outsize.models import GraphModel, RetrievalModel

    import_modules(imports)
    if as_json and out is None:
        raise ConfigError("--json prints a summary, so the scores need a file: name it with --out")
    if out is not None and out.exists() and out.samefile(file_to_read(file)):
        raise ConfigError(f"--out {out} is the file that is scored: name another one")
    loaded = load_exported(model)
    if isinstance(loaded, GraphModel):
        found, name = predict_graph_file(
            loaded, file, out, keep=keep, top=top, exclude=exclude, max_bad_rows=max_bad_rows,
            quiet=as_json,
        )  # fmt: skip
    elif isinstance(loaded, RetrievalModel):
        if keep:
            raise ConfigError("--keep is for click models: join the items by row")
        found = search_file(
            loaded, file, out, k=10 if top is None else top, exclude=exclude,
            max_bad_rows=max_bad_rows, quiet=as_json,
        )  # fmt: skip
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
        Path | None,
        typer.Argument(
            help="A labelled CSV, TSV or Parquet file; none for the splits of a graph or text run.",
            metavar="FILE",
        ),
    ] = None,
    step: Step = None,
    exclude: Annotated[
        list[Path],
        typer.Option(
            metavar="PAIRS",
            help="For a two-tower model or links, leave out of rankings what queries have seen: a "
            "file of pairs. Repeatable. Default: a run's own pairs.",
        ),
    ] = [],  # noqa: B006
    max_bad_rows: Annotated[
        float | None,
        typer.Option(help="The largest share of malformed rows that is skipped. As in training."),
    ] = None,
    run_file: Annotated[
        Path | None,
        typer.Option(help="For a retrieval model, also write the rankings to a TREC run file."),
    ] = None,
    depth: Annotated[int, typer.Option(help="Items per query in the run file.")] = 1000,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Measure a trained model on a labelled file."""
    from outsize.training.evaluate import evaluate as evaluate_model
    from outsize.training.metric_names import in_words
    from outsize.training.run_files import RunFile

    import_modules(imports)
    written = None if run_file is None else RunFile(run_file, depth)
    summary = evaluate_model(
        model, file, step, exclude=exclude, max_bad_rows=max_bad_rows, run_file=written,
        quiet=as_json,
    )  # fmt: skip
    if summary["note"]:
        say(f"note: {summary['note']}")
    if not as_json:
        which = "" if summary["step"] is None else f" of step {summary['step']:,}"
        if "validation" in summary:
            for split, name in (("validation", "validation"), ("test", "metrics")):
                say(f"weights{which}  {split}  {in_words(summary[name])}")
            if run_file is not None:
                say(f"rankings  →  {run_file}")
            return summary
        say(f"weights{which} on {summary['num_rows']:,} rows  {in_words(summary['metrics'])}")
        if summary["num_bad"]:
            say(f"{summary['num_bad']:,} malformed rows were skipped")
        if run_file is not None:
            say(f"rankings  →  {run_file}")
    return summary


def serve(
    model: Annotated[Path, typer.Argument(help="The folder of an export.", metavar="DIR")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    max_rows: Annotated[int, typer.Option(help="Rows or queries per request.")] = 10_000,
    max_bytes: Annotated[int, typer.Option(help="Bytes per request.")] = 10_000_000,
    index: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Search an item index in this folder, read as it grows."),
    ] = None,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Serve an exported model over HTTP: rows of a click model, or search of a text model."""
    from outsize.export.serving import serve as serve_model

    import_modules(imports)

    def tell(url: str) -> None:
        say(f"serving {model} on {url}  (Ctrl-C stops)")

    limits = {"max_rows": max_rows, "max_bytes": max_bytes}
    serve_model(model, host, port, **limits, index=index, listening=tell)
    return {"model": str(model), "stopped": True}
