from marin_dagster.training.alarms import UNEVEN_STEPS, Alarms


def said(rows):
    found = []
    alarms = Alarms(lambda event, message: found.append((event, message)))
    for step, row in enumerate(rows, start=1):
        alarms.look(step, row)
    return found


def test_a_collapsed_layer_is_an_alarm_that_names_it():
    row = {
        "moe/max_load_ratio": 4.0,
        "moe/layer_0/max_load_ratio": 1.1,
        "moe/layer_1/max_load_ratio": 4.0,
    }
    ((event, message),) = said([row] * (UNEVEN_STEPS + 20))
    assert event == "uneven_experts"
    assert "4.0 fair shares" in message
    assert "moe/layer_1/max_load_ratio" in message


def test_experts_that_recover_in_time_are_none():
    bad, good = {"moe/max_load_ratio": 4.0}, {"moe/max_load_ratio": 1.2}
    assert said(([bad] * (UNEVEN_STEPS - 1) + [good]) * 3) == []


def test_norms_that_move_are_an_alarm_each_time_they_begin_to():
    rows = [{"optim/norm_drift": drift} for drift in (1e-6, 2e-3, 3e-3, 1e-6, 4e-3)]
    messages = said(rows)
    assert [event for event, _ in messages] == ["norm_drift", "norm_drift"]
    assert "at step 2" in messages[0][1]
    assert "at step 5" in messages[1][1]


def test_a_dense_model_has_no_alarms():
    assert said([{"train/loss": 2.0}] * 60) == []
