"""A campaign that tries to break the library: `make torture`.

    python -m benchmarks.torture --seed 0 --minutes 10 --out benchmarks/results
    python -m benchmarks.torture --seed 0 --only kills --trial 7

Trials of the kinds in `benchmarks.torture.kinds` take turns, two at a time, each in processes of
its own. A trial ends in one of four ways:

- *survived*: what the library promises holds, and the results equal those of an undisturbed run.
- *refused*: the command ended with one line that names the thing, and nothing was lost.
- *skipped*: this machine cannot run it; the reason is in the results.
- *failed*: something was lost, a process hung for more than a minute, or a traceback was printed.

The exit code is 1 if any trial failed. Each that did prints the command that repeats it.
"""
