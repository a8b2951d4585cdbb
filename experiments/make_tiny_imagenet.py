"""Builds "Tiny ImageNet, 100 classes", the stand-in for CIFAR-100 in results/.

  python -m experiments.make_tiny_imagenet \\
    --input_dir=tiny-imagenet-200 --output_dir=data

--input_dir is the unpacked archive of Tiny ImageNet (tiny-imagenet-200), with
train/CLASS/images/CLASS_K.JPEG, val/images/ and val/val_annotations.txt.

The program writes cifar100.sqlite with the splits train and test, which TFF's
loader reads: 100 training clients and 20 test clients with 100 images each, as
a Pachinko allocation [1] deals them. The rule, with one NumPy generator,
RandomState(7):

1.  Of the 200 classes in the order of their names, choice(200, 100,
    replace=False) are used. Sorted, they are the labels 0 to 99, and each five
    of them are one of 20 coarse labels.
2.  Of each class, the first 100 training images by number and the first 20
    validation images in val_annotations.txt are used, each reduced from 64 x 64
    to 32 x 32 pixels: the mean of four pixels, rounded, halves up.
3.  The training images of each class are permuted, in the order of the labels.
4.  For one training client after the other: a distribution of the coarse labels
    is drawn from Dirichlet(0.1), and one of the five labels of each coarse
    label from Dirichlet(10). A client then draws 100 images: a coarse label, a
    label of it, and the last image that is left of this label. Labels without
    images left are not drawn.
5.  Steps 3 and 4 again for the test images and clients.

The labels and clients of the published runs follow from steps 1, 3, 4 and 5,
bit for bit. Their images were chosen and reduced before this program was
written, and step 2 is our best description of that. The SHA-256 of the arrays
of the published runs, images ordered by label:

    train_images   uint8[10000, 32, 32, 3]
        46d8ee700a0d1f9bb8fd3a554340afe1728431ab6d2742f8bce8ee8a6526cb0b
    train_clients  int16[10000]
        231728adc1b17741660d5f99749daf745a1de0b7951680c4154efa3c52d046f9
    test_images    uint8[2000, 32, 32, 3]
        a4a876e5352ed3e6cf945840c7b169cfeedee9c69cf9547c008f2390d8258918
    test_clients   int16[2000]
        a7269ead8508cb99de7da27ac94da56721d54db99490ff087525bf8ecfd360bf

The program prints whether it found the same.

[1] S. Reddi et al., Adaptive Federated Optimization, ICLR 2021, Appendix F.
"""

import pathlib
import re
import sys
from collections.abc import Sequence

import numpy as np
from absl import app
from absl import flags

from experiments.runs import program
from experiments.stand_ins import digests
from programs import definer
from programs import entry

# As the docstring says.
_PUBLISHED = {
  'train_images': (
    '46d8ee700a0d1f9bb8fd3a554340afe1728431ab6d2742f8bce8ee8a6526cb0b'
  ),
  'train_clients': (
    '231728adc1b17741660d5f99749daf745a1de0b7951680c4154efa3c52d046f9'
  ),
  'test_images': (
    'a4a876e5352ed3e6cf945840c7b169cfeedee9c69cf9547c008f2390d8258918'
  ),
  'test_clients': (
    'a7269ead8508cb99de7da27ac94da56721d54db99490ff087525bf8ecfd360bf'
  ),
}
_SEED = 7
_NUM_CLASSES_OF_ARCHIVE = 200
_NUM_CLASSES = 100
_NUM_COARSE = 20
_FINE_PER_COARSE = _NUM_CLASSES // _NUM_COARSE
# Images of each class, and clients; each client has 100 images.
_IMAGES_PER_CLASS = {'train': 100, 'test': 20}
_NUM_CLIENTS = {'train': 100, 'test': 20}
_IMAGES_PER_CLIENT = 100
_ANNOTATIONS = 'val/val_annotations.txt'


class InputError(ValueError):
  """Raised if the archive does not hold what it should."""


def main(argv):
  entry.setup()
  entry.refuse_arguments(argv)
  run(flags.FLAGS)


def run(values: flags.FlagValues) -> None:
  """Builds the database; ends the program with one line if it cannot."""
  archive, output_dir = map(pathlib.Path, (values.input_dir, values.output_dir))
  rng = np.random.RandomState(_SEED)
  try:
    files = find_images(archive, choose_classes(rng, list_classes(archive)))
    clients = {split: deal(rng, split) for split in files}
    # TensorFlow, which decodes the images, takes seconds to import.
    program.setup()
    images = {
      split: np.stack([_read_image(path) for path in of_split])
      for split, of_split in files.items()
    }
    digests.compare(
      {f'{split}_images': array for split, array in images.items()}
      | {f'{split}_clients': array for split, array in clients.items()},
      _PUBLISHED,
    )
    from experiments.stand_ins import tff_database
    from tff_ocs.tasks import cifar100

    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir / cifar100.DATABASE
    tff_database.write(path, _rows(images, clients, tff_database))
  except (InputError, OSError) as error:
    sys.exit(f'error: {error}')
  print(path)


def list_classes(archive: pathlib.Path) -> list[str]:
  """The names of the archive's classes, sorted.

  Raises:
    InputError: If they are not 200.
  """
  folders = (archive / 'train').glob('*/')
  classes = sorted(path.name for path in folders if path.is_dir())
  if len(classes) != _NUM_CLASSES_OF_ARCHIVE:
    raise InputError(
      f'{archive / "train"} must hold the folders of'
      f' {_NUM_CLASSES_OF_ARCHIVE} classes, found {len(classes)}.'
    )
  return classes


def choose_classes(
  rng: np.random.RandomState, classes: Sequence[str]
) -> list[str]:
  """Step 1 of the rule in the module's docstring: the classes, by label."""
  chosen = rng.choice(len(classes), _NUM_CLASSES, replace=False)
  return [classes[index] for index in sorted(chosen)]


def find_images(
  archive: pathlib.Path, classes: Sequence[str]
) -> dict[str, list[pathlib.Path]]:
  """Step 2 of the rule: the files of the images, by split and then by label.

  Raises:
    InputError: If a class has too few images, or the annotations cannot be
      read.
    OSError: If there are no annotations.
  """
  of_validation = {name: [] for name in classes}
  text = (archive / _ANNOTATIONS).read_text(encoding='utf-8')
  for number, line in enumerate(text.splitlines(), start=1):
    fields = line.split('\t')
    if len(fields) < 2:
      raise InputError(
        f'{archive / _ANNOTATIONS}, line {number}: a line must hold a file and'
        f' its class, separated by a tab, found {line!r}.'
      )
    if fields[1] in of_validation:
      of_validation[fields[1]].append(archive / 'val' / 'images' / fields[0])
  found = {'train': [], 'test': []}
  for name in classes:
    of_training = (archive / 'train' / name / 'images').glob('*_*.JPEG')
    for split, files in (
      ('train', sorted(of_training, key=_number_of)),
      ('test', of_validation[name]),
    ):
      needed = _IMAGES_PER_CLASS[split]
      if len(files) < needed:
        kind = 'training' if split == 'train' else 'validation'
        raise InputError(
          f'{archive} must hold {needed} {kind} images of the class {name},'
          f' found {len(files)}.'
        )
      found[split] += files[:needed]
  return found


def _number_of(path) -> int:
  match = re.search(r'_(\d+)\.JPEG$', path.name)
  if match is None:
    raise InputError(f'{path} must have a number: CLASS_K.JPEG.')
  return int(match.group(1))


def deal(rng: np.random.RandomState, split: str) -> np.ndarray:
  """Steps 3 and 4 of the rule in the module's docstring.

  Args:
    rng: The generator.
    split: 'train' or 'test'.

  Returns:
    The client of each image, int16[num_images], images ordered by label.
  """
  per_class = _IMAGES_PER_CLASS[split]
  left = [
    list(rng.permutation(np.arange(per_class) + label * per_class))
    for label in range(_NUM_CLASSES)
  ]
  clients = np.empty(_NUM_CLASSES * per_class, np.int16)
  for client in range(_NUM_CLIENTS[split]):
    of_coarse = rng.dirichlet(np.full(_NUM_COARSE, 0.1))
    of_fine = rng.dirichlet(np.full(_FINE_PER_COARSE, 10.0), size=_NUM_COARSE)
    for _ in range(_IMAGES_PER_CLIENT):
      has_images = np.array([len(images) > 0 for images in left])
      has_images = has_images.reshape(_NUM_COARSE, _FINE_PER_COARSE)
      coarse = _draw(rng, of_coarse, has_images.any(axis=1))
      fine = _draw(rng, of_fine[coarse], has_images[coarse])
      clients[left[_FINE_PER_COARSE * coarse + fine].pop()] = client
  return clients


def _draw(rng, probabilities, is_allowed) -> int:
  allowed = probabilities * is_allowed
  return rng.choice(len(allowed), p=allowed / allowed.sum())


def _read_image(path) -> np.ndarray:
  """Reads an image and halves its size, uint8[32, 32, 3]."""
  import tensorflow as tf

  try:
    image = tf.io.decode_jpeg(
      path.read_bytes(), channels=3, dct_method='INTEGER_ACCURATE'
    ).numpy()
  except tf.errors.InvalidArgumentError as error:
    raise InputError(f'{path} is not a JPEG image.') from error
  if image.shape != (64, 64, 3):
    size = ' x '.join(map(str, image.shape[:2]))
    raise InputError(f'{path} must have 64 x 64 pixels, found {size}.')
  sums = image.astype(np.uint16).reshape(32, 2, 32, 2, 3).sum(axis=(1, 3))
  return ((sums + 2) // 4).astype(np.uint8)


def _rows(images, clients, tff_database):
  for split, of_split in images.items():
    for index, image in enumerate(of_split):
      label = index // _IMAGES_PER_CLASS[split]
      example = tff_database.serialize(
        coarse_label=tff_database.integers([label // _FINE_PER_COARSE]),
        image=tff_database.integers(image.ravel().tolist()),
        label=tff_database.integers([label]),
      )
      yield split, f'{split}_{clients[split][index]:03d}', example


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  define = definer.Definer(values)
  define.path(
    'input_dir',
    None,
    "Required. The folder of Tiny ImageNet's archive, tiny-imagenet-200.",
    required=True,
  )
  define.path(
    'output_dir',
    None,
    'Required. The folder to write cifar100.sqlite to, replacing an earlier'
    ' one: the --cache_dir of experiments.cifar100.',
    required=True,
  )


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main)
