"""Tests of the definitions of flags."""

import math

import pytest

from programs import definer


@pytest.mark.parametrize(
  'texts, are_positive',
  [
    (['1'], True),
    (['0.5', '2', '1e-3'], True),
    ([], False),
    (['1', '1.0'], False),
    (['0'], False),
    (['-1'], False),
    (['x'], False),
    (['nan'], False),
    (['inf'], False),
  ],
)
def test_lists_of_positive_numbers_are_recognised(texts, are_positive):
  assert definer.are_positive(texts) == are_positive


def test_numbers_are_parsed_and_judged_as_asked():
  assert definer.are_different(['-1', '3'], int, lambda number: number < 4)
  assert not definer.are_different(['-1', '4'], int, lambda number: number < 4)
  assert not definer.are_different(['1.5'], int, math.isfinite)
