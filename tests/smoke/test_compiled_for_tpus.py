"""The smoke test's JAX programs, as libtpu compiles them for each generation, without a chip.

Each figure counts what its loop does: as many operations and bytes, and no copy beside them.
`scripts/test -m long -s tests/smoke/test_compiled_for_tpus.py` compiles for all topologies and
prints the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from support import libtpu

from tpukit.accelerators import GENERATIONS
from tpukit.provision import recipe_names
from tpukit.provision.recipes import Recipe
from tpukit.ssh.programs import program_text

pytestmark = [pytest.mark.full_size, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).parent.parent / "support" / "compiled_for_tpus.py"
JAX = Recipe.named("jax")
TEXT = program_text(*(f"smoke/{name}" for name in (*JAX.smoke.files(3), "smoke_program.py")))
#: Recipes with the same programs and another JAX.
OTHERS = [
    recipe.name
    for recipe in map(Recipe.named, recipe_names())
    if recipe.smoke == JAX.smoke and not libtpu.pins(recipe) <= libtpu.pins(JAX)
]
#: Topologies of one worker and of several, as libtpu calls them.
TOPOLOGIES = {
    "v2": ("v2:2x2", "v2:4x4"),
    "v3": ("v3:2x2", "v3:4x4"),
    "v4": ("v4:2x2x1:megacore", "v4:2x2x4:megacore"),
    "v5litepod": ("v5e:2x2", "v5e:4x4"),
    "v5p": ("v5p:2x2x1", "v5p:2x2x2"),
    "v6e": ("v6e:2x2", "v6e:4x4"),
}
SWAPS = "lambda value: swap(swap(value)), swap)"
#: Topology, how the program's name begins, a text of the program, and the one in its place: each
#: times something else than it counts.
MUTANTS = [
    # One product a step, and the copy that comes with it.
    ("v6e:2x2", "matmul", "once = product(value, w).astype(jnp.bfloat16)", "once = value"),
    ("v6e:2x2", "matmul", "return product(once, w).astype(jnp.bfloat16)", "return once"),
    ("v6e:2x2", "matmul", "product(once, w)", "product(product(once, w).astype(x.dtype), w)"),
    ("v6e:2x2", "matmul", "2 * 2 * side**3", "4 * 2 * side**3"),
    ("v6e:2x2", "hbm", "2 * size / 1e9, rows_after", "4 * size / 1e9, rows_after"),
    ("v6e:2x2", "hbm", "value + one", "jax.lax.cumsum(value) + one"),
    ("v6e:2x2", "hbm", "value + one", "value"),
    ("v6e:2x2", "all-reduce", "2 * (count - 1)", "4 * (count - 1)"),
    ("v6e:2x2", "all-reduce", 'jax.lax.pmax(value, "device")', "value * 1.0"),
    ("v2:2x2", "all-reduce", 'pmax(value, "device")', 'psum(value, "device") / count'),
    ("v6e:2x2", "all-reduce of 256", 'pmax(value, "device")', 'psum(value, "device") / count'),
    ("v6e:2x2", "all-reduce", "* size // (4 * _COLUMNS)", "* size // (8 * _COLUMNS)"),
    # A row a device, which v2 and v3 pad to two.
    ("v2:2x2", "all-reduce", "size // (4 * _COLUMNS), _COLUMNS)", "1, size // 4)"),
    ("v3:2x2", "link", "size // (4 * _COLUMNS), _COLUMNS)", "1, size // 4)"),
    ("v6e:2x2", "link", SWAPS, SWAPS.replace("swap(swap(value))", "swap(value)")),
    ("v6e:2x2", "link", SWAPS, SWAPS.replace("swap(swap(value))", "value")),
    ("v6e:2x2", "link", f"{SWAPS}, 2 * size", f"{SWAPS}, 4 * size"),
]


def compiled(python: Path, requests: Iterable[Sequence[str]]) -> list[dict[str, Any]]:
    """Compile for topologies: what each request's chains count, and what their loops do."""
    lines = "".join(f"{json.dumps(request)}\n" for request in requests)
    done = subprocess.run(
        [str(python), "-I", str(PROGRAM)],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def wrong(told: dict[str, Any]) -> bool:
    """Return True if a loop does not do what its figure counts, and nothing else."""
    counted = told.get("counted_operations", told["operations"])
    # XLA counts an operation for each number that is rounded to bfloat16 as well.
    operations = abs(told["operations"] - counted) > 0.001 * counted
    return bool(operations or told["copies"] or told["accessed"] != told["counted"])


def shown(told: dict[str, Any]) -> str:
    figures = f"{told['counted']:>11} {told['accessed']:>11} {told['copies']:>6}"
    return f"{told['topology']:18} {told['program']:22} {figures}"


def test_each_generation_has_its_topologies() -> None:
    assert set(TOPOLOGIES) == set(GENERATIONS)


# The oldest generation pads arrays; the latest is the one on which a copy costs the most.
@pytest.mark.parametrize(
    "names",
    [
        ["v2:2x2", "v6e:2x2"],
        pytest.param([*chain(*TOPOLOGIES.values())], marks=pytest.mark.long, id="all"),
    ],
)
def test_every_chain_moves_the_bytes_that_its_figure_counts_and_copies_nothing(
    libtpu_python: Path, names: list[str]
) -> None:
    told = compiled(libtpu_python, [(TEXT, name, "") for name in names])
    chains = [each for each in told if "counted" in each]
    lines = [shown(each) for each in chains]
    head = f"{'topology':18} {'program':22} {'counted':>11} {'accessed':>11} copies"
    sys.stdout.write("\n".join(["", head, *lines, ""]))
    for name in names:
        programs = {each["program"].split(" ")[0] for each in told if each["topology"] == name}
        assert programs == {
            *("product", "exchange", "hash", "pattern"),
            *("matmul", "hbm", "all-reduce", "link"),
        }, name
    assert not [line for each, line in zip(chains, lines, strict=True) if wrong(each)]


@pytest.mark.gigabytes
@pytest.mark.parametrize("name", OTHERS)
def test_a_recipe_with_a_jax_of_its_own_compiles_the_smoke_test(name: str, tmp_path: Path) -> None:
    told = compiled(libtpu.install(tmp_path, name), [(TEXT, "v6e:2x2", "")])
    programs = {each["program"].split(" ")[0] for each in told}
    assert {"product", "exchange", "hash", "pattern", "matmul"} <= programs


@pytest.mark.long
def test_each_program_that_times_something_else_is_found(libtpu_python: Path) -> None:
    for _, _, before, after in MUTANTS:
        assert before in TEXT, before
        assert after != before
    requests = [(TEXT.replace(before, after), name, what) for name, what, before, after in MUTANTS]
    told = compiled(libtpu_python, requests)
    missed = [
        f"{what}: {before!r} -> {after!r}"
        for number, (_, what, before, after) in enumerate(MUTANTS)
        if not any(wrong(each) for each in told if each["request"] == number)
    ]
    assert not missed
