"""How soon replicas converge in a lossy mesh, seed by seed: `python -m overlay.sim.convergence`."""

from __future__ import annotations

import argparse
import statistics
import sys

from overlay.sim.report import rounds_to_converge


def main() -> int:
    """Prints each seed's rounds and the worst; exit status 1 if one took more than allowed."""
    parser = argparse.ArgumentParser(description="Measures convergence over many seeds, on one core.")
    parser.add_argument("--nodes", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=50, help="how many (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="default: 0")
    parser.add_argument("--loss", type=float, default=0.1, help="share of frames (default: %(default)s)")
    parser.add_argument("--within", type=float, default=8.0, help="rounds allowed (default: %(default)s)")
    options = parser.parse_args()
    taken: list[float] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        rounds = rounds_to_converge(options.nodes, seed, options.loss)
        print(f"{options.nodes} nodes, seed {seed}: {rounds} rounds", flush=True)  # noqa: T201 - a command's output
        taken.append(rounds if rounds is not None else float("inf"))
    worst, middle = max(taken), statistics.median(taken)
    print(f"{options.nodes} nodes, {len(taken)} seeds: median {middle} rounds, worst {worst}")  # noqa: T201 - as above
    return 1 if worst > options.within else 0


if __name__ == "__main__":
    sys.exit(main())
