"""Which files are trusted is for their user alone to say."""

from __future__ import annotations

from pathlib import Path

from tpukit.settings.trust import TrustedFiles


def test_what_others_could_have_written_trusts_nobody(tmp_path: Path) -> None:
    file, project = tmp_path / "state" / "trusted.json", tmp_path / "tpukit.toml"
    trusted = TrustedFiles(file)
    trusted.add(project, "text")
    assert trusted.holds(project, "text")
    assert not trusted.holds(project, "text, changed")
    assert not trusted.holds(tmp_path / "other.toml", "text")
    file.chmod(0o620)
    assert not trusted.holds(project, "text")
    file.chmod(0o600)
    file.rename(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")
    assert not trusted.holds(project, "text")
