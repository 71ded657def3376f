"""Tasks are found before anything is loaded, and examples are a seeded sample."""

from types import SimpleNamespace

import pytest

from marin_dagster.evaluation.tasks import choose_examples, find_tasks
from marin_dagster.recipe import StageError
from tests.fake_context import build
from tests.unit.evaluation.models import TASKS, SmallTasks


def folder(root, recipe) -> str:
    build(recipe, root)
    return str(root / "artifacts" / recipe.address)


def test_all_tasks_of_a_folder_are_found_with_their_data(tmp_path):
    inside = folder(tmp_path, TASKS)
    found = find_tasks([inside])
    assert list(found) == ["choose", "finish", "write"]
    assert found["choose"].data_files == {"test": [f"{inside}/tasks/choose.jsonl"]}
    assert list(find_tasks([inside], ["write"])) == ["write"]


def test_a_missing_task_is_named_with_those_there_are(tmp_path):
    with pytest.raises(StageError, match=r"'mmlu' is in none .* hold choose, finish, write"):
        find_tasks([folder(tmp_path, TASKS)], ["choose", "mmlu"])


def test_missing_data_is_named(tmp_path):
    recipe = SmallTasks(name="hollow", version="dev", data_missing=True)
    with pytest.raises(StageError, match=r"'choose' reads .*choose\.jsonl, which is missing"):
        find_tasks([folder(tmp_path, recipe)])


def test_a_task_that_needs_the_network_is_refused(tmp_path):
    recipe = SmallTasks(name="hub", version="dev", dataset_path="org/set")
    with pytest.raises(StageError, match=r"dataset_path='org/set' .* not in the artifact"):
        find_tasks([folder(tmp_path, recipe)])


def test_a_task_in_two_artifacts_is_refused(tmp_path):
    other = SmallTasks(name="again", version="dev")
    with pytest.raises(StageError, match=r"task 'choose' is in .* and in"):
        find_tasks([folder(tmp_path, TASKS), folder(tmp_path, other)])


def test_a_folder_without_tasks_is_refused(tmp_path):
    with pytest.raises(StageError, match="holds no task file"):
        find_tasks([str(tmp_path)])


def test_a_limit_takes_a_seeded_sample_and_not_the_head():
    loaded = {"tasks": {"a": SimpleNamespace(eval_docs=range(100))}}
    first = choose_examples(loaded, 20, 1)["a"]
    assert len(set(first)) == 20
    assert first == sorted(first) != list(range(20))
    assert first == choose_examples(loaded, 20, 1)["a"] != choose_examples(loaded, 20, 2)["a"]
    assert choose_examples(loaded, None, 1)["a"] == list(range(100))
