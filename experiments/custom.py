"""Training with client sampling on data of one's own.

A table needs no code, all else a function that returns a task:

  python -m experiments.custom --data=cars.csv --client_column=maker \\
    --label_column=mpg --model=mlp
  python -m experiments.custom --task=my_task.py:load

The flags, the files of a run and its resumption are those of
experiments.femnist.
"""

from absl import app
from absl import flags

from experiments.runs import data_flags
from experiments.runs import experiment_flags
from experiments.runs import program
from programs import entry


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  data_flags.define(values)
  experiment_flags.define_common(values)


def main(argv):
  entry.refuse_arguments(argv)
  run(flags.FLAGS)


def run(values: flags.FlagValues) -> None:
  """Runs the experiment."""
  program.run(values, describe)


def describe(values: flags.FlagValues) -> experiment_flags.Experiment:
  """Checks the flags, and describes the run.

  Raises:
    SettingError: If flags contradict each other, or a file is missing.
    UserCodeError: If a file of PATH.py:FUNCTION is missing.
  """
  experiment_flags.check(values)
  data_flags.check(values)
  name = data_flags.name(values)
  return experiment_flags.Experiment(
    name=name,
    data=name,
    step_size=None,
    own_flags=('data_name',),
    load_task=lambda: data_flags.load(values),
    own_settings=data_flags.settings(values),
  )


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main)
