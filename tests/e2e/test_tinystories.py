"""The road of `tinystories` up to its tokens, with the dataset in a local folder, not on the hub.

From there on it is the quickstart's: the same model, and the same stages after it.
"""

import json

from marin_dagster.data.raw import HubDataset
from marin_dagster.data.stories import story
from marin_dagster.data.token_cache import TokenCacheReader
from marin_dagster.experiments import catalog
from marin_dagster.experiments.tinystories import road
from marin_dagster.recipe import Placement, walk
from marin_dagster.store import Store


def test_a_dataset_becomes_tokens(tmp_path):
    rows = [{"text": story(7, index).text} for index in range(300)]
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    (dataset / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stories = HubDataset(
        name="tinystories", version="dev", repo=str(dataset), revision="local", max_documents=250
    )
    store = Store(str(tmp_path / "store"))
    recipes = walk(road(stories, vocab_size=700))
    tokenized = [recipes[f"tokenized/tinystories{split}@dev"] for split in ("", "-validation")]
    for recipe in walk(tokenized).values():
        store.build(recipe, placement=Placement(workers=1))
    for recipe in tokenized:
        record, folder = store.read_input(recipe)
        assert TokenCacheReader(folder).num_tokens == record.summary.numbers["tokens"] > 0


def test_the_addresses_are_those_of_the_tutorial():
    assert "tokenized/tinystories@dev" in catalog()
    assert "checkpoints/marin-nano-tinystories@2026.11.30" in catalog()
