import pytest

from marin_dagster.training.phases import Phase, Phases, Stage, stage_starts

HERO = Phases(
    phases=(
        Phase(from_step=0, seq_len=4_096, batch_size=11_264),
        Phase(from_fraction=0.5, seq_len=16_384, batch_size=2_816),
        Phase(from_fraction=0.95, seq_len=65_536, batch_size=704),
    )
)


def test_phases_change_at_their_steps_and_keep_the_tokens_per_step():
    assert HERO.starts(1_000) == [0, 500, 950]
    contexts = [HERO.phase_at(step, 1_000).seq_len for step in (0, 499, 500, 949, 950, 999)]
    assert contexts == [4_096, 4_096, 16_384, 16_384, 65_536, 65_536]
    assert (HERO.longest, HERO.tokens_per_step) == (65_536, 46_137_344)
    assert all(phase.tokens_per_step == HERO.tokens_per_step for phase in HERO.phases)


def test_a_context_may_shrink_again():
    phases = Phases(
        phases=(
            Phase(from_step=0, seq_len=16, batch_size=2),
            Phase(from_step=3, seq_len=4, batch_size=8),
        )
    )
    assert phases.longest == 16
    assert phases.phase_at(3, 10).batch_size == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch_size": 3},
            "seq_len=8 with batch_size=3 makes 24 tokens per step, the first phase 16",
        ),
        ({"seq_len": 3, "batch_size": 5}, "makes 15 tokens per step"),
        ({"seq_len": 0}, "seq_len=0 is below 1"),
        ({"from_step": None}, "give exactly one of them"),
        ({"from_fraction": 0.5}, "from_step=5 and from_fraction=0.5"),
        ({"from_step": -1}, "from_step=-1 is negative"),
        ({"from_step": None, "from_fraction": 1.0}, r"from_fraction=1\.0 is outside"),
    ],
)
def test_a_phase_that_cannot_be_is_refused(changes, message):
    first = Phase(from_step=0, seq_len=4, batch_size=4)
    fields = {"from_step": 5, "seq_len": 8, "batch_size": 2, **changes}
    with pytest.raises(ValueError, match=message):
        Phases(phases=(first, Phase(**fields)))


def test_contexts_must_divide_the_longest():
    with pytest.raises(ValueError, match="seq_len=4 does not divide the longest context 6"):
        Phases(
            phases=(
                Phase(from_step=0, seq_len=4, batch_size=3),
                Phase(from_step=1, seq_len=6, batch_size=2),
            )
        )


def test_the_first_phase_begins_with_the_run():
    with pytest.raises(ValueError, match="first phase begins at 3"):
        Phases(phases=(Phase(from_step=3, seq_len=4, batch_size=3),))
    with pytest.raises(ValueError, match=r"phases=\(\) is empty"):
        Phases(phases=())


def test_a_phase_without_a_step_is_refused():
    with pytest.raises(ValueError, match="a phase begins at step 0, not after the one before at 0"):
        HERO.starts(1)
    late = Phases(
        phases=(
            Phase(from_step=0, seq_len=4, batch_size=2),
            Phase(from_step=9, seq_len=2, batch_size=4),
        )
    )
    with pytest.raises(ValueError, match="begins at step 9, which a run of num_steps=9 has not"):
        late.starts(9)


def test_stages_begin_at_steps_and_shares_of_the_run():
    stages = (Stage(data=(), from_step=108_000), Stage(data=(), from_fraction=0.8))
    assert stage_starts(stages, 390_251) == [108_000, 312_201]
    with pytest.raises(ValueError, match="a stage begins at step 0, not after"):
        stage_starts((Stage(data=(), from_step=0),), 10)
