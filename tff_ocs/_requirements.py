"""Says in one line what is wrong with an environment, before TFF is loaded."""

import importlib.metadata

_TFF_VERSION = '0.87.0'
_WAY_OUT = (
  'Install the pinned environment: pip install --no-deps -r requirements.lock'
)


def check() -> None:
  """Checks that the right TFF is installed and can be imported.

  Raises:
    ImportError: If not; the message is one line.
  """
  try:
    version = importlib.metadata.version('tensorflow-federated')
  except importlib.metadata.PackageNotFoundError:
    version = 'none'
  if version != _TFF_VERSION:
    raise ImportError(
      f'tff_ocs needs tensorflow-federated {_TFF_VERSION}, found {version}.'
      f' {_WAY_OUT}'
    )
  try:
    import tensorflow_federated  # noqa: F401
  except Exception as error:  # Whatever breaks deep inside, say it in a line.
    reason = str(error).strip().splitlines() or ['']
    raise ImportError(
      f'tff_ocs found tensorflow-federated {version}, but importing it fails:'
      f' {type(error).__name__}: {reason[0]}. {_WAY_OUT}'
    ) from None
