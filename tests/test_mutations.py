"""The list of mutations fits the code. tools.mutations itself tries them."""

from tools import mutations


def test_each_mutation_changes_one_place():
  assert mutations.find_problems() == []
  assert len(mutations.MUTATIONS) >= 40
  for mutation in mutations.MUTATIONS:
    for path in mutation.tests:
      assert (mutations.ROOT / path).exists()
