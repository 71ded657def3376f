from marin_dagster.plan import describe, plan
from marin_dagster.recipe import walk
from marin_dagster.store import Store
from tests.toys import Upper, Words, road


def test_a_plan_runs_nothing_and_stops_at_complete_artifacts(tmp_path):
    store = Store(str(tmp_path / "s"))
    steps = plan(store, [road("2026.01.01")])
    assert [step.runs for step in steps.values()] == [True, True, True]
    assert not (tmp_path / "s").exists()
    for recipe in walk([road("2026.01.01")]).values():
        store.build(recipe)
    assert list(plan(store, [road("2026.01.01")])) == ["deduped/toy@2026.01.01"]


def test_a_changed_dev_input_reruns_what_reads_it_and_says_why(tmp_path):
    store = Store(str(tmp_path))
    for recipe in walk([road()]).values():
        store.build(recipe)
    steps = plan(store, [road(suffix="?")])
    assert describe(steps["deduped/toy@dev"].judgement) == (
        "run: its input text/toy@dev will be rebuilt"
    )
    assert not steps["raw/toy@dev"].runs


def test_an_absent_input_of_a_complete_artifact_is_not_planned(tmp_path):
    store = Store(str(tmp_path))
    for recipe in walk([road()]).values():
        store.build(recipe)
    store.storage.remove("raw/toy")
    assert list(plan(store, [road()])) == ["text/toy@dev", "deduped/toy@dev"]
    assert not any(step.runs for step in plan(store, [road()]).values())


def test_force_runs_the_target_alone(tmp_path):
    store = Store(str(tmp_path))
    for recipe in walk([road()]).values():
        store.build(recipe)
    steps = plan(store, [road()], force=True)
    assert [address for address, step in steps.items() if step.runs] == ["deduped/toy@dev"]


def test_a_plan_of_the_inputs_of_a_run_counts_their_bytes(tmp_path):
    store = Store(str(tmp_path))
    recipes = list(walk([road()]).values())
    for recipe in recipes[:2]:
        store.build(recipe)
    assert plan(store, [road()])["deduped/toy@dev"].estimate.cost == {"bytes": 16.0}


def test_an_input_that_only_a_rebuild_needs_is_planned_too(tmp_path):
    store = Store(str(tmp_path))
    for recipe in walk([road()]).values():
        store.build(recipe)
    store.storage.remove("raw/toy")  # nobody needs it, until what reads it is rebuilt
    steps = plan(store, [road(suffix="?")])
    assert [address for address, step in steps.items() if step.runs] == list(walk([road()]))


def test_a_long_chain_is_planned(tmp_path):
    recipe = Words(name="chain", version="dev", words=("one",))
    for number in range(2_000):
        recipe = Upper(name=f"chain-{number}", version="dev", documents=recipe)
    assert len(plan(Store(str(tmp_path)), [recipe])) == 2_001
