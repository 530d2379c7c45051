"""The accelerator tables agree with themselves, and every wrong name gets one line and one fix."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from importlib.resources import files

import pytest

from tpukit import accelerators
from tpukit.accelerators import (
    GENERATIONS,
    AcceleratorType,
    all_types,
    retired_runtime,
    runtime_fits,
)
from tpukit.errors import BadInput
from tpukit.settings.table import check_zone

FACTS = [accelerators.types_of(name)[0].facts for name in GENERATIONS]


def test_every_row_adds_up() -> None:
    """Chips, cores, workers, size and topology of every row say the same."""
    other_workers = {"v5litepod": (1, 8), "v6e": (1, 8)}  #: besides those of 4 chips
    for type_ in all_types():
        facts, name = type_.facts, type_.name
        assert type_.chips_per_worker in (4, *other_workers.get(facts.name, ())), name
        assert type_.chips == math.prod(int(edge) for edge in type_.topology.split("x")), name
        assert type_.cores == type_.chips * facts.cores_per_chip, name
        assert type_.workers * type_.chips_per_worker == type_.chips, name
        assert type_.devices_per_worker * type_.workers == type_.devices, name
        assert type_.size == {"cores": type_.cores, "chips": type_.chips}[facts.size_counts], name
        assert type_.name == f"{facts.name}-{type_.size}"


def test_every_row_is_found_by_its_name_and_names_its_sources() -> None:
    for type_ in all_types():
        assert AcceleratorType.parse(type_.name) == type_
        assert type_.sources, type_.name
        assert all(accelerators.citation(source) for source in type_.sources), type_.name


def test_every_fact_of_a_generation_has_sources() -> None:
    for facts in FACTS:
        assert {"device_kinds", "runtime_version", "zones_documented", "pci"} <= set(facts.sources)
        for fact, sources in facts.sources.items():
            assert sources, (facts.name, fact)
            assert all(accelerators.citation(source) for source in sources), (facts.name, fact)


def test_the_types_of_a_generation_grow() -> None:
    for facts in FACTS:
        sizes = [found.size for found in accelerators.types_of(facts.name)]
        assert sizes == sorted(set(sizes)), facts.name


def test_the_zones_of_a_generation_have_the_shape_of_zones() -> None:
    for facts in FACTS:
        assert facts.zones == tuple(sorted(set(facts.zones))), facts.name
        assert [check_zone(zone) for zone in facts.zones] == list(facts.zones), facts.name
        # Google's page has misprinted us-central1-ai1a without its letter.
        assert all(re.fullmatch(r"[a-z]+-[a-z]+\d+-(ai\d+)?[a-z]", zone) for zone in facts.zones)


def test_every_source_is_used() -> None:
    """A citation that no fact needs is a leftover."""
    used = {key for facts in FACTS for keys in facts.sources.values() for key in keys}
    used |= {key for type_ in all_types() for key in type_.sources}
    assert set(accelerators._sources()) == used


def test_the_generations_are_the_files() -> None:
    folder = files("tpukit").joinpath("data", "accelerators")
    names = {entry.name for entry in folder.iterdir() if entry.name.endswith(".toml")}
    assert names == {"sources.toml", *(f"{name}.toml" for name in GENERATIONS)}


#: Name, chips, cores, workers, devices, unit and kind of a device, topology, runtime version.
NUMBERS = [
    ("v2-8", 4, 8, 1, 8, "core", "TPU v2", "2x2", "tpu-ubuntu2204-base"),
    ("v3-8", 4, 8, 1, 8, "core", "TPU v3", "2x2", "tpu-ubuntu2204-base"),
    ("v3-32", 16, 32, 4, 32, "core", "TPU v3", "4x4", "tpu-ubuntu2204-base"),
    ("v4-8", 4, 8, 1, 4, "chip", "TPU v4", "2x2x1", "tpu-ubuntu2204-base"),
    ("v4-16", 8, 16, 2, 8, "chip", "TPU v4", "2x2x2", "tpu-ubuntu2204-base"),
    ("v5litepod-8", 8, 8, 1, 8, "chip", "TPU v5 lite", "2x4", "v2-alpha-tpuv5-lite"),
    ("v5litepod-16", 16, 16, 4, 16, "chip", "TPU v5 lite", "4x4", "v2-alpha-tpuv5-lite"),
    ("v5p-8", 4, 8, 1, 4, "chip", "TPU v5", "2x2x1", "v2-alpha-tpuv5"),
    ("v6e-1", 1, 1, 1, 1, "chip", "TPU v6 lite", "1x1", "v2-alpha-tpuv6e"),
    ("v6e-8", 8, 8, 1, 8, "chip", "TPU v6 lite", "2x4", "v2-alpha-tpuv6e"),
    ("v6e-16", 16, 16, 4, 16, "chip", "TPU v6 lite", "4x4", "v2-alpha-tpuv6e"),
]


def test_a_name_stands_for_these_numbers() -> None:
    for name, *numbers in NUMBERS:
        found = AcceleratorType.parse(str(name))
        assert numbers == [
            *(found.chips, found.cores, found.workers, found.devices),
            *(
                found.facts.device_unit,
                found.facts.device_kinds[0],
                found.topology,
                found.runtime_version,
            ),
        ], name


def test_api_types_are_those_of_google_cloud_tpu() -> None:
    """Google's own client knows every api type, and we know every one of its."""
    from google.cloud.tpu_v2.types import AcceleratorConfig

    theirs = set(AcceleratorConfig.Type.__members__) - {"TYPE_UNSPECIFIED"}
    assert {facts.api_type for facts in FACTS} == theirs


def test_a_topology_that_nobody_saw_is_marked() -> None:
    assert AcceleratorType.parse("v4-640").topology_derived
    assert not AcceleratorType.parse("v4-512").topology_derived


#: What somebody may write, and what it is answered with.
WRONG_NAMES = [
    ("v3-7", "did you mean v3-8?"),
    ("v3-9", "did you mean v3-8 or v3-32?"),
    ("v4-12", "did you mean v4-8 or v4-16?"),
    ("v3-0", "did you mean v3-8?"),
    ("v3-4096", "did you mean v3-2048?"),
    ("v3-" + "9" * 5000, "did you mean v3-2048?"),
    ("v5p-4", "did you mean v5p-8?"),
    ("v5litepod-2", "did you mean v5litepod-1 or v5litepod-4?"),
    ("2-8", "did you mean v2-8?"),
    ("5-8", "did you mean v5litepod-8 or v5p-8?"),
    ("v5e-8", "did you mean v5litepod-8?"),
    ("v5-8", "did you mean v5litepod-8 or v5p-8?"),
    ("v6-8", "did you mean v6e-8?"),
    ("v5litepod8", "did you mean v5litepod-8?"),
    ("v3_8", "did you mean v3-8?"),
    ("V3-8", "did you mean v3-8?"),
    (" v3-8", "did you mean v3-8?"),
    ("v3-8\n", "did you mean v3-8?"),
    ("v3 - 8", "did you mean v3-8?"),
    ("v3-08", "did you mean v3-8?"),
    ("v3-８", "did you mean v3-8?"),
    ("v３-8", "did you mean v3-8?"),
    ("v3-٨", "tpukit types"),
    ("v3", "did you mean v3-8?"),
    ("v3-", "did you mean v3-8?"),
    ("", "tpukit types"),
    ("  ", "tpukit types"),
    ("8", "tpukit types"),
    ("-8", "tpukit types"),
    ("v1-8", "tpukit types"),
    ("v3-8-8", "tpukit types"),
    ("v3-8; rm -rf /", "tpukit types"),
    ("../v3-8", "tpukit types"),
    ("sources-8", "tpukit types"),
    ("v3-8\x1b[31m", "tpukit types"),
    ("x" * 100_000, "tpukit types"),
]


def test_a_wrong_name_is_refused_with_the_nearest() -> None:
    for text, fix in WRONG_NAMES:
        with pytest.raises(BadInput) as refused:
            AcceleratorType.parse(text)
        assert str(refused.value.fix) == fix, text[:40]
        assert len(refused.value.lines()) == 2, text[:40]
        assert all(line.isprintable() and len(line) < 250 for line in refused.value.lines())


def test_a_refusal_says_what_is_wrong() -> None:
    cases = [
        ("2-8", "the generation is missing"),
        ("v3", "the size is missing"),
        ("", "it is empty"),
        ("v3-7", "v3 has no size 7"),
        ("v3-4096", "v3 ends at v3-2048"),
        ("v5e-8", "the Cloud TPU API has no v5e, only v5litepod"),
    ]
    for text, reason in cases:
        with pytest.raises(BadInput) as refused:
            AcceleratorType.parse(text)
        assert refused.value.reason == reason


def test_a_generation_beyond_the_api_is_refused_with_where_to_go() -> None:
    for text in ["tpu7x-8", "TPU7x-8", "v7x-16", "tpu7-8", "tpu8t-4", "tpu8i", "v8t-1"]:
        with pytest.raises(BadInput, match="is not an accelerator type") as refused:
            AcceleratorType.parse(text)
        assert "ends at v6e" in refused.value.reason
        assert "Compute Engine or GKE" in refused.value.reason
        assert "docs.cloud.google.com" in refused.value.fix.note


@pytest.mark.parametrize("text", ["v7-8", "tpu7-8", "TPU7x-8"])
def test_a_size_of_tpu7x_has_a_line_to_paste(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        AcceleratorType.parse(text)
    image = "--runtime-version v2-alpha-tpu7-ubuntu2404"
    assert str(refused.value.fix) == f"tpukit create tpu7x-8 --allow-unlisted-type {image}"


def test_a_runtime_version_known_to_be_bad_is_explained() -> None:
    """The reason names the good runtime version and who reported the bad one."""
    cases = [
        ("v6e-8", "tpu-ubuntu2204-base"),
        ("v5p-8", "tpu-ubuntu2204-base"),
        ("v5litepod-4", "tpu-vm-base"),
    ]
    for name, runtime_version in cases:
        found = AcceleratorType.parse(name)
        reason = runtime_fits(found, runtime_version)
        assert reason is not None
        assert found.runtime_version in reason
        assert "issue" in reason


def test_the_default_runtime_version_fits_every_type() -> None:
    assert not [type_ for type_ in all_types() if runtime_fits(type_, type_.runtime_version)]


def test_runtime_versions_of_old_texts_are_retired_with_a_source() -> None:
    images = ("tpu-vm-pt-1.13", "tpu-vm-v4-pt-1.13", "v2-alpha", "v2-nightly20210914")
    nodes = ("2.8", "2.12.0", "nightly", "pytorch-1.11")
    for versions, why in ((images, "XRT"), (nodes, "TPU Nodes")):
        for version in versions:
            reason = retired_runtime(version)
            assert reason is not None, version
            assert why in reason
            assert "#" in reason
    current = {type_.runtime_version for type_ in all_types()}
    for version in (*current, "tpu-vm-pt-2.0", "tpu-vm-tf-2.16.1", "v2-alpha-tpuv7", ""):
        assert retired_runtime(version) is None, version


def test_a_runtime_version_without_reports_is_accepted() -> None:
    """v2-alpha-tpuv5 works on v5litepod: pytorch/xla issue 8295."""
    assert runtime_fits(AcceleratorType.parse("v5litepod-16"), "v2-alpha-tpuv5") is None


def test_the_module_imports_nothing_heavy_and_reads_no_table_by_itself() -> None:
    program = (
        "import sys, tpukit.accelerators as a;"
        "assert a._load.cache_info().currsize == 0;"
        "a.AcceleratorType.parse('v3-8');"
        "assert a._load.cache_info().currsize == 1;"
        "heavy = {'pydantic', 'google', 'paramiko', 'rich', 'typer', 'requests', 'asyncssh'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


#: https://cloud.google.com/about/locations
AREAS = (
    *("africa-south", "asia-east", "asia-northeast", "asia-south", "asia-southeast"),
    *("australia-southeast", "europe-central", "europe-north", "europe-southwest", "europe-west"),
    *("me-central", "me-west", "northamerica-northeast", "northamerica-south"),
    *("southamerica-east", "southamerica-west", "us-central", "us-east", "us-south", "us-west"),
)


def test_no_zone_of_google_s_is_taken_for_a_misspelled_one() -> None:
    for zone in (*(f"{area}7-x" for area in AREAS), "emulator-local1-a", "nowhere", ""):
        assert accelerators.meant_zone(zone) == ""


@pytest.mark.parametrize("zone", ["us-centrl1-a", "us-cental1-a", "us-ceentral1-a"])
def test_a_misspelled_zone_stands_for_another(zone: str) -> None:
    assert accelerators.meant_zone(zone) == "us-central1-a"
