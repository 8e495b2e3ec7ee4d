"""What is known of a disk phase below it is what its class says."""

from __future__ import annotations

import pytest

from semistream.disk import phase_named
from semistream.disk.base import _PHASES
from semistream.disk.fetch import Fetch, FetchNow
from semistream.disk.scan import Scan
from semistream.errors import SpecError
from semistream.planning.laws.family import LAWS
from semistream.planning.phases import _PHASES as PREDICTED
from semistream.spec import ALGORITHMS, DISK_FACTS, FRONT_FACTS, DiskFacts

WORDS = sorted({algorithm.disk for algorithm in ALGORITHMS.values()})


@pytest.mark.parametrize("word", WORDS)
def test_the_table_and_the_class_agree(word: str) -> None:
    assert DISK_FACTS[word] == phase_named(word).facts()


def test_every_word_has_a_class_and_every_phase_with_a_law_its_numbers() -> None:
    assert set(WORDS) <= set(_PHASES)
    assert set(LAWS) == set(PREDICTED) == set(WORDS) - {"none"}
    assert {algorithm.front for algorithm in ALGORITHMS.values()} == set(FRONT_FACTS)


def test_where_the_master_fetches_by_key_another_phase_is_in_its_place() -> None:
    instead = {word: DISK_FACTS[word].fetch_word for word in WORDS if DISK_FACTS[word].fetch_word}
    assert instead == {"sweep": "fetch", "lookup": "fetch_now"}
    assert phase_named("fetch") is Fetch
    assert phase_named("fetch_now") is FetchNow
    for word, other in instead.items():
        assert phase_named(other).answers_at_once == phase_named(word).answers_at_once


def test_a_class_without_a_word_is_not_named() -> None:
    class Helper(Scan):
        pass

    assert Helper not in _PHASES.values()
    assert Helper.facts() == DISK_FACTS["scan"]


def test_an_unknown_word() -> None:
    assert ALGORITHMS["ssij"].disk_facts == DISK_FACTS["pages"] != DiskFacts()
    with pytest.raises(SpecError, match=r"no disk phase 'plan'.*pages"):
        phase_named("plan")
