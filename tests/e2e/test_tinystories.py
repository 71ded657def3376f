"""The road of `tinystories`, with the dataset in a local folder instead of on the hub."""

import json

from marin_dagster.data.raw import HubDataset
from marin_dagster.data.stories import story
from marin_dagster.experiments import catalog
from marin_dagster.experiments.tinystories import road
from marin_dagster.recipe import Placement, walk
from marin_dagster.store import Store


def test_a_dataset_becomes_tokens_and_a_model(tmp_path):
    rows = [{"text": story(7, index).text} for index in range(300)]
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    (dataset / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stories = HubDataset(
        name="tinystories", version="dev", repo=str(dataset), revision="local", max_documents=250
    )
    store = Store(str(tmp_path / "store"))
    recipes = walk(road(stories, vocab_size=700, num_steps=6))
    for recipe in walk([recipes["checkpoints/marin-nano-tinystories@dev"]]).values():
        store.build(recipe, placement=Placement(workers=1, wandb_mode="offline"))
    checkpoint = tmp_path / "store" / "checkpoints" / "marin-nano-tinystories" / "dev"
    assert (checkpoint / ".artifact.json").exists()
    assert list(checkpoint.glob("*/.wandb/wandb/offline-run-*")), "the curves can be synced later"
    assert (tmp_path / "store" / "tokenized" / "tinystories" / "dev").is_dir()


def test_the_addresses_are_those_of_the_tutorial():
    assert "tokenized/tinystories@dev" in catalog()
    assert "checkpoints/marin-nano-tinystories@2026.11.30" in catalog()
