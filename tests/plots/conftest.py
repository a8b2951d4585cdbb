"""Keeps drawn figures from being rendered, for tests of what is in them."""

import pytest
from matplotlib import figure


@pytest.fixture
def drawn(monkeypatch):
  """The figures that were drawn; of each file there is an empty one."""
  figures = []

  def save(fig, path, **unused_kwargs):
    path.touch()
    figures.append(fig)

  monkeypatch.setattr(figure.Figure, 'savefig', save)
  return figures
