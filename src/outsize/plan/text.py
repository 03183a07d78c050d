"""A plan as lines of text: first whether it fits, then what it takes."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.plan.budget import Way, peak_of
from outsize.plan.plan import Plan
from outsize.reporting.quantities import format_bytes
from outsize.spec import MEMORY_KINDS

_MOST_TABLES = 8
_KIND_WORDS = {
    "parameters": "parameters of embeddings",
    "index": "index: clocks or pointers",
    "optimizer": "state of the row optimizer",
    "cache": "caches",
}


def plan_lines(plan: Plan) -> list[str]:
    """The plan for people."""
    return [
        *_answer(plan),
        "",
        *_tables(plan),
        "",
        *_memory(plan),
        "",
        *_steps(plan),
        *_traffic(plan),
        *_time(plan),
        *(f"note: {note}" for note in plan.notes),
    ]


def way_lines(plan: Plan, ways: Sequence[Way]) -> list[str]:
    """The ways to fit a run, with what each comes to, and lines for the run file."""
    process = (plan.device_peak or plan.peak).process
    if not ways and plan.limit_bytes is not None and process > plan.limit_bytes:
        return [
            "",
            f"No embeddings fit: the model, its batches, data and libraries alone take "
            f"{format_bytes(process)}. Lower train.batch_size or train.eval_batch_size.",
        ]
    if not ways:
        return [
            "",
            "No way was found to fit it: take more ranks (--ranks), a smaller embeddings.dim, or "
            "a smaller train.batch_size.",
        ]
    rows = [("way to fit it", "peak per rank", "sent per rank and step", "hit rate")]
    for number, way in enumerate(ways, 1):
        traffic = way.plan.traffic
        sent = "" if traffic is None else format_bytes(sum(traffic.bytes_per_step.values()))
        rate = "" if traffic is None else f"{traffic.hit_rate:.3f}"
        rows.append((f"{number}. {way.title}", format_bytes(peak_of(way.plan)), sent, rate))
    lines = ["", *aligned(rows)]
    for number, way in enumerate(ways, 1):
        if way.plan is not plan:
            lines += ["", f"# {number}. {way.title}", *way.lines.splitlines()]
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of words in columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            word.ljust(width) if place == 0 else word.rjust(width)
            for place, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _answer(plan: Plan) -> list[str]:
    peak, place = plan.peak, "main memory"
    if plan.device_peak is not None:
        peak, place = plan.device_peak, f"memory on {plan.device}"
    ranks = "one rank" if plan.num_ranks == 1 else f"each of {plan.num_ranks} ranks"
    words = {True: "It fits", False: "It does not fit", None: "Memory unknown"}[plan.fits]
    limit = "" if plan.limit_bytes is None else f", and may take {format_bytes(plan.limit_bytes)}"
    return [f"{words}: {ranks} takes at most {format_bytes(peak.total)} of {place}{limit}."]


def _tables(plan: Plan) -> list[str]:
    largest = sorted(plan.tables, key=lambda spec: -spec.num_rows)
    parameters = "parameters" if plan.num_ranks == 1 else "parameters per rank"
    rows = [("table", "ids", "dim", parameters, "bytes per rank")]
    for spec in largest[:_MOST_TABLES]:
        use = plan.table_memory[spec.name]
        rows.append(_table(spec.name, spec.num_rows, spec.dim, use.num_parameters, use.total_bytes))
    if others := largest[_MOST_TABLES:]:
        uses = [plan.table_memory[spec.name] for spec in others]
        rows.append(
            _table(
                f"{len(others)} others",
                sum(spec.num_rows for spec in others),
                others[0].dim,
                sum(use.num_parameters for use in uses),
                sum(use.total_bytes for use in uses),
            )
        )
    return aligned(rows)


def _table(
    name: str, ids: int, dim: int, num_parameters: int, size: int
) -> tuple[str, str, str, str, str]:
    return name, f"{ids:,}", str(dim), f"{num_parameters:,}", format_bytes(size)


def _memory(plan: Plan) -> list[str]:
    use = plan.memory[0]
    rows = [("memory of a rank", "", "")]
    for device in use.bytes_by_device:
        for kind in MEMORY_KINDS:
            size = use.bytes_by_device[device].get(kind, 0)
            if size:
                rows.append((f"  {_KIND_WORDS[kind]}", format_bytes(size), device))
    peak = plan.peak if plan.device_peak is None else plan.device_peak
    parts = (
        ("gradients and optimizer state of tables", peak.tables),
        ("rows of a probe, their moments and indices", peak.probes),
        ("gradients, copied by data-parallel training", peak.dense),
        ("messages", peak.messages),
        (f"model with {plan.num_dense:,} dense weights, batches, data, libraries", peak.process),
    )
    rows += [(f"  {name}", format_bytes(size), plan.device) for name, size in parts if size]
    if plan.device_peak is not None:
        rows.append(("  data and libraries", format_bytes(plan.peak.total), "cpu"))
    return aligned(rows)


def _steps(plan: Plan) -> list[str]:
    rows = [
        ("steps", f"{plan.num_steps:,}"),
        ("steps per epoch", f"{plan.steps_per_epoch:,}"),
        ("a checkpoint", format_bytes(plan.checkpoint_bytes)),
        (f"at most {plan.num_checkpoints} checkpoints", format_bytes(plan.disk_bytes)),
    ]
    if plan.num_examples:
        words = ", ".join(f"{num:,} {split}" for split, num in plan.num_examples.items())
        rows.insert(0, ("examples", words))
    return aligned(rows)


def _traffic(plan: Plan) -> list[str]:
    traffic = plan.traffic
    if traffic is None:
        return []
    sent = traffic.bytes_per_step
    steps = traffic.num_ranks * plan.num_steps
    total = sum(sent.values()) * steps
    rows = [("between ranks, per rank and step", "")]
    rows += [(f"  {kind}", format_bytes(size)) for kind, size in sent.items()]
    rows += [
        ("  bytes sent", format_bytes(sum(sent.values()))),
        ("  rows read", f"{traffic.reads / steps:,.0f}"),
        ("  of other ranks", f"{(traffic.reads - traffic.local) / steps:,.0f}"),
        ("  hit rate of the cache", f"{traffic.hit_rate:.3f}"),
        ("in the whole run, all ranks", format_bytes(total)),
    ]
    if traffic.num_ranks > 2:
        rows.insert(-1, ("  requests to the busiest owner", f"{traffic.busiest:.2f} × the mean"))
    basis = f"simulated: {traffic.simulated_steps:,} of {traffic.num_steps:,} steps"
    if traffic.num_ranks != traffic.simulated_ranks[-1]:
        basis += f" of up to {traffic.simulated_ranks[-1]} ranks, the rest extrapolated"
    if traffic.share_of_rows < 1:
        basis += f" on {traffic.share_of_rows:.1%} of the rows"
    return ["", *aligned(rows), f"({basis})"]


def _time(plan: Plan) -> list[str]:
    time = plan.time
    if time is None:
        return []
    rows = [("time of a step", f"{1000 * time.total_s:,.1f} ms")]
    rows += [(f"  {part}", f"{1000 * each:,.1f} ms") for part, each in time.parts.items()]
    rows += [
        ("an epoch", f"{time.hours_per_epoch:,.2f} hours"),
        ("an epoch on all machines", f"{time.hours_per_epoch * plan.num_ranks:,.2f} machine-hours"),
    ]
    lines = ["", *aligned(rows), f"longest: {time.bottleneck}. Shorter by {time.advice}."]
    moves = [(f"  with {words}", f"{1000 * each:,.1f} ms") for words, each in time.moves.items()]
    return [*lines, *aligned([("a step would take", ""), *moves])] if moves else lines
