import pytest

from marin_dagster.models.config import MoEConfig, architecture_of, config_of
from tests.unit.models.test_layers import TINY


def test_a_configuration_is_found_again_by_its_import_path():
    assert config_of(architecture_of(TINY), TINY.__dict__) == TINY


@pytest.mark.parametrize(
    ("architecture", "fault"),
    [
        ("os.system", "is not a subclass of ModelConfig"),
        ("marin_dagster.recipe.Recipe", "is not a subclass of ModelConfig"),
        ("marin_dagster.models.config.Gone", "cannot be imported"),
        ("nowhere.Config", "cannot be imported"),
        ("Config", "cannot be imported"),
    ],
)
def test_what_is_no_configuration_is_refused(architecture, fault):
    with pytest.raises(ValueError, match=fault):
        config_of(architecture, {})


def test_fields_of_another_version_are_refused():
    with pytest.raises(ValueError, match=r"does not take the stored fields .*'width'"):
        config_of(architecture_of(TINY), {**TINY.__dict__, "width": 3})


def test_a_configuration_names_what_is_not_positive():
    with pytest.raises(ValueError, match=r"num_experts=0 is below 1"):
        MoEConfig(**{**TINY.__dict__, "num_experts": 0})
