"""What is said where no lookup is used."""

from latebind.learned.build import nothing_pays


def test_only_of_a_short_network_it_is_said_that_there_is_little_to_save() -> None:
    assert "in 0.73 ms there is little to save" in nothing_pays(0.73e-3)
    assert "little to save" not in nothing_pays(7e-3)
    assert nothing_pays(7e-3).startswith("no lookup pays at this target: the network runs to its end. A lower fidelity")
