"""Many random schedules on all cores: `python -m overlay.sim.soak --schedules 10000`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from overlay.sim.garbage import uncollected
from overlay.sim.schedule import ScheduleFailedError, run_schedule


def run_seed(seed: int) -> str | None:
    """Why the schedule of a seed failed; None when it held."""
    try:
        with uncollected():
            run_schedule(seed)
    except ScheduleFailedError as failure:
        return str(failure)
    return None


def failures(seeds: Iterable[int], jobs: int) -> Iterator[str]:
    """Runs schedules in `jobs` processes; what failed, as it becomes known."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from (text for text in pool.map(run_seed, seeds, chunksize=8) if text is not None)


def commit() -> str:
    """The commit of the code that runs, for whoever wants to see a failure again."""
    command = ["git", "rev-parse", "--short", "HEAD"]  # git is looked up in PATH, as a shell would
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def main() -> int:
    """Prints every failure with its seed and the commit; exit status 1 if there was one."""
    parser = argparse.ArgumentParser(description="Runs random fault schedules against the overlay core.")
    parser.add_argument("--schedules", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of their seeds (default: 0)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.schedules)
    failed = 0
    for text in failures(seeds, options.jobs):
        failed += 1
        print(f"commit {commit()}, {text}", flush=True)  # noqa: T201 - a command's output
    print(f"{len(seeds)} schedules, {failed} failed, commit {commit()}")  # noqa: T201 - a command's output
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
