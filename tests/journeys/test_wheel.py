"""What is released is the wheel; scripts/demo does the main job with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = [pytest.mark.journey, pytest.mark.wheel]

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip builds from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("tpukit-*.whl")
    return path


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "tpukit"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    present = {name for name in listed if (ROOT / name).is_file()}
    assert {"tpukit/py.typed", "tpukit/provision/recipes/jax.toml"} <= present
    packed = set(ZipFile(wheel).namelist())
    pages = {name for name in packed if ".data/data/share/man/man1/" in name}
    assert "tpukit-run.1" in {name.rpartition("/")[2] for name in pages}
    assert {name for name in packed if ".dist-info/" not in name} - pages == present
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in packed)
