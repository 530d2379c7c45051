"""Prints what is left of commands that are ended at every call of an API, and at random.

A cloud without machines runs in this process; each command is a process of its own. An orphan is a
slice that exists and that a list does not show; each command is typed again afterwards, and has to
end well with as many slices and rules as it promises. In the end gcloud has to list what tpukit
does, and to delete one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from support.killed_commands import ACTIONS, SCENARIOS, UP, KilledCommands, Tally
from support.local_cloud import running_cloud


def main() -> int:
    scenarios = [*SCENARIOS, UP]
    parser = argparse.ArgumentParser(prog="scripts/kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="runs that are killed at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="commands at a time")
    parser.add_argument(
        "--only", choices=[scenario.name for scenario in scenarios], help="one command"
    )
    options = parser.parse_args()
    scenarios = [scenario for scenario in scenarios if options.only in (None, scenario.name)]
    wrong: list[str] = []
    print("\t".join(("COMMAND", "ENDED BY", "MOMENTS", "ENDED", "ORPHANS", "NOT CONVERGED")))

    def show(name: str, by: str, moments: int, tally: Tally) -> None:
        figures = (moments, tally.struck, tally.orphans, len(tally.wrong))
        print("\t".join((name, by, *map(str, figures))), flush=True)
        wrong.extend(tally.wrong + ["orphan"] * tally.orphans)

    with tempfile.TemporaryDirectory() as folder, running_cloud(Path(folder), 0.3) as cloud:
        commands = KilledCommands(cloud, at_once=options.at_once)
        commands.prepare()
        for scenario in scenarios:
            points = commands.points(scenario)
            numbers = range(1, len(points) + 1)
            for action in ACTIONS:
                tally = commands.at_each_point(scenario, action, numbers)
                show(scenario.name, action, len(points), tally)
        for scenario in scenarios:
            times = options.kills // len(scenarios)
            show(
                scenario.name,
                "kill at random",
                times,
                commands.at_random(scenario, times, options.seed),
            )
        wrong += commands.gcloud_deletes_one()
    print(f"seed {options.seed}")
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
