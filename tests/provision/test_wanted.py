"""What words mean: recipes, steps and setups, and what is wrong with them said at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpukit.agent.system.step_verbs import STEPS
from tpukit.errors import BadInput, SecurityRefusal, TransportFailed
from tpukit.provision import system_steps
from tpukit.provision.own_recipes import OwnRecipes
from tpukit.provision.wanted import Setups, known, parse


def setups(tmp_path: Path, **files: str) -> Setups:
    for name, text in files.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return Setups(tmp_path)


def test_words_are_recipes_steps_and_setups_each_thing_once(tmp_path: Path) -> None:
    mine = setups(
        tmp_path, mine='apply = ["flax", "inner"]', inner='apply = ["apt:htop,tmux", "limits"]'
    )
    wanted = parse(["jax", "mine", "apt=htop,nano", "nfs:one:/data", "disk"], mine)
    assert [recipe.name for recipe in wanted.recipes] == ["jax", "flax"]
    words = ["apt:htop", "apt:tmux", "limits", "apt:nano", "nfs=one:/data", "disk"]
    assert [step.word for step in wanted.steps] == words
    assert wanted.steps[-1].value == "/mnt/data"
    assert known(["inner", "flax"], mine, list) == ("apt:htop", "apt:tmux", "limits", "flax")


def test_what_is_taken_back_needs_no_file_any_more(tmp_path: Path) -> None:
    """A recipe of one's own whose file is gone or broken is what workers have of its name."""
    asked: list[str] = []

    def brought() -> list[str]:
        asked.append("")
        return ["gone"]

    recipes = OwnRecipes(tmp_path / "recipes")
    recipes.user.mkdir()
    (recipes.user / "broken.toml").write_text("name = ")
    mine = Setups(tmp_path / "setups", recipes=recipes)
    words = ["jax", "broken", "flax==0.0.1", "apt=htop"]
    assert known(words, mine, brought) == ("jax", "broken", "flax", "apt:htop")
    assert asked == []
    assert known(["jax", "gone"], mine, brought) == ("jax", "gone")
    with pytest.raises(BadInput, match='"jaxx" is not a recipe') as caught:
        known(["gone", "jaxx"], mine, brought)
    assert caught.value.why == "no worker has an environment of that name either"
    assert str(caught.value.fix) == "did you mean jax?"

    def silent() -> list[str]:
        raise TransportFailed("demo worker 0 does not answer")

    with pytest.raises(BadInput, match='"gone" is not a recipe') as caught:
        known(["gone"], mine, silent)
    assert caught.value.why.endswith("could not be read: demo worker 0 does not answer")


def test_a_project_s_setup_comes_before_the_user_s_once_it_is_trusted(tmp_path: Path) -> None:
    folders = [tmp_path / "project", tmp_path / "user"]
    for folder, word in zip(folders, ("jax", "flax"), strict=True):
        folder.mkdir()
        setups(folder, mine=f'apply = ["{word}"]')
    project, user = folders
    with pytest.raises(SecurityRefusal, match="is not trusted") as refused:
        parse(["mine"], Setups(user, project))
    assert str(refused.value.fix) == f"tpukit config trust {project / 'mine.toml'}"
    trusting = Setups(user, project, lambda path, text: "jax" in text)
    assert [recipe.name for recipe in parse(["mine"], trusting).recipes] == ["jax"]


def test_what_names_nothing_is_said_with_what_was_meant(tmp_path: Path) -> None:
    mine = setups(
        tmp_path,
        mine='apply = ["flax"]',
        one='apply = ["two"]',
        two='apply = ["one"]',
        jax='apply = ["flax"]',
        text="apply = ",
        empty="apply = []",
        other='apply = ["flax"]\nsteps = []',
        deep=f"apply = {'[' * 3000}",
    )
    (tmp_path / "gone.toml").symlink_to(tmp_path / "nowhere")
    cases = {
        "min": ("not a recipe, a step or a setup", "did you mean mine?"),
        "apt": ("needs a value", "apt:htop"),
        "apt:,": ("does not take ,", "apt:htop"),
        "apt:--reinstall": ("does not take --reinstall", "apt:htop"),
        "limits:x": ("takes no value", "limits"),
        "disk:data": ("does not take data", "disk:"),
        "nfs=server": ("does not take server", "nfs=server-slice:/data"),
        "dotfiles=-u": ("does not take -u", "https://"),
        "one": ("one -> two -> one", "break the circle"),
        "jax": ("has the name of a recipe or a step", "rename"),
        "text": ("is not TOML", "apply = ["),
        "empty": ("is not a list of strings", "apply = ["),
        "other": ("has no key steps", "apply = ["),
        "deep": ("is not TOML", "apply = ["),
        "gone": ("not a recipe, a step or a setup", "did you mean one?"),
        "flax==0.12.12 mine": ("in two versions: flax==0.12.12, flax", "leave one out"),
    }
    for word, (what, fix) in cases.items():
        with pytest.raises(BadInput) as caught:
            parse(word.split(), mine)
        assert what in caught.value.what, word
        assert fix in str(caught.value.fix), word


def test_every_step_says_what_it_needs_and_its_example_is_one() -> None:
    assert STEPS.keys() == set(system_steps.step_names())
    for name in system_steps.step_names():
        step = system_steps.named(name)
        assert step.description, name
        wanted = system_steps.parse(step.example or name)
        assert (wanted.step, wanted.word) == (step, step.example or name)
    entries = {system_steps.entry(word) for word in ("apt:a", "apt:b", "apt", "disk:/a/b")}
    assert len(entries) == 4
