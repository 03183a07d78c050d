"""Running cells in parallel processes, each with its share of the cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

import torch

from outsize.compare.cell_progress import GridProgress
from outsize.compare.grid import Cell
from outsize.compare.outcome import Outcome
from outsize.compare.run_cell import run_cell
from outsize.user_modules import import_modules, imported_modules


def num_cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS knows no affinity


def default_workers(device: torch.device) -> int:
    """The default number of parallel cells.

    On the CPU, one per two cores: such small models gain little from more cores. On a GPU, one:
    cells would compete for its memory.
    """
    return 1 if device.type != "cpu" else max(1, num_cores() // 2)


def run_cells(cells: Iterable[Cell], workers: int, progress: GridProgress) -> Iterator[Outcome]:
    """Run cells and yield each outcome when it is ready.

    Args:
        cells: The cells to run.
        workers: Number of processes; 0 runs the cells one by one in this process.
        progress: Shows which cells start and finish.
    """
    if workers > 0:
        yield from _run_in_processes(deque(cells), workers, progress)
        return
    for cell in cells:
        progress.start(cell)
        outcome = run_cell(cell)
        progress.finish(outcome)
        yield outcome


def _run_in_processes(
    waiting: deque[Cell], workers: int, progress: GridProgress
) -> Iterator[Outcome]:
    """Run cells in one single-process pool per worker, so that a crash loses one cell only."""
    others = multiprocessing.active_children()
    idle: list[ProcessPoolExecutor] = []
    running: dict[Future[Outcome], tuple[Cell, ProcessPoolExecutor]] = {}
    threads = max(1, num_cores() // workers)
    with _sigterm_as_interrupt():
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    cell, worker = waiting.popleft(), idle.pop() if idle else _new_worker(threads)
                    progress.start(cell)
                    running[worker.submit(run_cell, cell)] = cell, worker
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    cell, worker = running.pop(future)
                    try:
                        outcome = future.result()
                        idle.append(worker)
                    except BrokenProcessPool:
                        outcome = Outcome(
                            cell, "failed", "its process died, perhaps for lack of memory"
                        )
                    progress.finish(outcome)
                    yield outcome
        except BaseException:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()  # SIGTERM: the run saves and stops
            raise
        finally:
            for worker in [*idle, *(worker for _, worker in running.values())]:
                worker.shutdown(cancel_futures=True)


def _new_worker(threads: int) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    known = (threads, imported_modules())
    return ProcessPoolExecutor(1, spawn, initializer=_begin_worker, initargs=known)


def _begin_worker(threads: int, modules: Sequence[str]) -> None:
    """Ignore Ctrl-C, which the parent forwards once, and exit if the parent dies."""
    os.setpgrp()
    import_modules(modules)
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
