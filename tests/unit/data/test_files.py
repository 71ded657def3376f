"""Paths and patterns that a person wrote."""

from pathlib import Path

import pytest

from marin_dagster.data.files import expand_paths, local_copy
from marin_dagster.recipe import StageError


def test_a_name_with_magic_characters_is_the_file_of_that_name(tmp_path: Path):
    for name in ("a[1].txt", "a1.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    found = expand_paths([str(tmp_path / "a[1].txt"), str(tmp_path / "b*")], "raw/toy@dev")
    assert [Path(path).name for path in found] == ["a[1].txt", "b.txt"]


def test_a_path_that_matches_nothing_is_named(tmp_path: Path):
    with pytest.raises(StageError, match=r"raw/toy@dev: paths has .*none\*"):
        expand_paths([str(tmp_path / "none*")], "raw/toy@dev")


def test_a_remote_file_is_copied_for_the_block(tmp_path: Path):
    import fsspec

    with fsspec.open("memory://toy-files/a é.txt", "wb") as file:
        file.write(b"far")  # type: ignore[union-attr]
    (found,) = expand_paths(["memory://toy-files/a*.txt"], "raw/toy@dev")
    with local_copy(found) as local:
        assert Path(local).read_bytes() == b"far"
    assert not Path(local).exists()
