"""What a type is made of: each figure has a source, and the page and the command say the same."""

from __future__ import annotations

import re
from pathlib import Path

from cli.conftest import Run
from tpukit.accelerators import GENERATIONS, all_types, types_of
from tpukit.cli import hardware

PAGE = Path(__file__).parents[2] / "docs/reference/hardware.md"


def test_every_published_figure_of_every_type_has_a_source() -> None:
    for type_ in all_types():
        facts = hardware.of_type(type_)
        assert all(bool(fact.value) == bool(fact.sources) for fact in facts), type_.name
        assert len({fact.name for fact in facts}) == len(facts)


def test_types_shows_a_type_s_figures_with_their_sources(run: Run) -> None:
    document = run("types", "v3-8", "--json", environment={}).document["types"][0]
    figures = {each["fact"]: each["value"] for each in document["hardware"]}
    assert figures == {
        "chips": "4, 2x2",
        "cores": "8",
        "workers": "1, each with 4 chips",
        "devices": "8, 8 a worker, each a core",
        "HBM of the slice": "128 GiB",
        "cores a chip": "2",
        "devices a chip": "2",
        "HBM a chip": "32 GiB",
        "HBM bandwidth a chip": "825 or 900 GB/s",
        "MXUs": "2 a core, each 128 x 128",
        "bfloat16 peak a chip": "123 TFLOP/s",
        "ICI topology": "2 axes",
        "ICI a link, one way": "100 GB/s",
        "ICI a chip, both ways": "",
        "a worker's VM": "96 vCPUs, 335 GiB",
        "runtime version": "tpu-ubuntu2204-base",
    }
    shown = run("types", "v3-8", environment={}).out
    sources = {each["fact"]: each["sources"] for each in document["hardware"]}
    assert any("'TPU v3'" in mxu for mxu in sources["MXUs"])
    assert "ICI a chip, both ways\tnot published\t" in shown


def test_the_page_has_every_figure_of_every_generation_with_a_source_that_it_lists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in GENERATIONS:
        facts = types_of(name)[0].facts
        for fact in [*hardware.of_generation(facts), hardware.machines(facts)]:
            assert fact.value in text, (name, fact.name)
            for source in fact.sources:
                assert re.search(rf"^\d+\. {re.escape(source)}$", text, re.MULTILINE), source
