"""Estimates the time and the disk space of many runs from two rounds of each.

All clients of a cohort train, whether they send or not, so one method is timed
for all.
"""

import contextlib
import datetime
import json
import math
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from experiments.campaigns import job as job_lib
from experiments.runs import run_progress
from tff_ocs.records import files
from tff_ocs.records import metrics as metrics_lib
from tff_ocs.records import weights as weights_lib

_ROUNDS = 2
_FILE = 'timing.json'
# Each run that is going on also has a checkpoint, and its successor.
_CHECKPOINTS = 2
_LINE = re.compile(r'([\d-]+ [\d:]+),(\d+) INFO Round (\d+): ', re.MULTILINE)


class Timing(NamedTuple):
  """The costs of a run of an experiment.

  Attributes:
    startup_seconds: The time from the start to the first round, and after the
      last one.
    round_seconds: The time of a round without evaluation.
    evaluation_seconds: The time of an evaluation.
    weights_bytes: The size of the weights.
    round_bytes: What a round adds to the records.
  """

  startup_seconds: float
  round_seconds: float
  evaluation_seconds: float
  weights_bytes: float
  round_bytes: float


def build_job(experiment: str, run: job_lib.Job) -> job_lib.Job:
  """The job in which two rounds of a run are timed."""
  return run.extended(
    '', f'--total_rounds={_ROUNDS}', '--rounds_per_eval=1', '--seed=0'
  )._replace(name=f'timing/{experiment}')


def measure(
  timed: Mapping[str, job_lib.Job],
  output_dir: pathlib.Path,
  run_jobs: Callable[[Sequence[job_lib.Job]], None],
  num_parallel: int,
) -> dict[str, Timing]:
  """Times the experiments that have not been timed in this folder before.

  Args:
    timed: The jobs of `build_job`, by experiment.
    output_dir: The folder of the runs' folders.
    run_jobs: A function that runs jobs in it.
    num_parallel: The number of runs at the same time.

  Returns:
    The timings, by experiment. They are kept in `output_dir`.

  Raises:
    OSError: If the folder cannot be read or written to.
  """
  path = output_dir / _FILE
  stored = _read_stored(path)
  timings = _timings_of(stored, timed)
  waiting = {name: job for name, job in timed.items() if name not in timings}
  if not waiting:
    return timings
  for job in waiting.values():
    # A run that is finished already would take no time.
    if run_progress.has_final_weights(output_dir / job.name):
      shutil.rmtree(output_dir / job.name)
  start = time.monotonic()
  run_jobs(list(waiting.values()))
  seconds = time.monotonic() - start
  num_rows = math.ceil(len(waiting) / num_parallel)
  parts = {name: _read(output_dir / job.name) for name, job in waiting.items()}
  in_rounds = sum(
    part.round_seconds + part.evaluation_seconds for part in parts.values()
  )
  startup = max(0.0, seconds / num_rows - _ROUNDS * in_rounds / len(parts))
  for name, part in parts.items():
    timings[name] = part._replace(startup_seconds=startup)
  with files.replacing(path) as partial:
    partial.write_text(
      json.dumps(
        {
          **stored,
          **{
            name: {'flags': timed[name].flags, 'timing': timing._asdict()}
            for name, timing in timings.items()
          },
        },
        indent=2,
      ),
      encoding='utf-8',
    )
  return timings


def _read_stored(path) -> dict[str, Any]:
  """Reads the stored timings by experiment; none if the file is damaged."""
  try:
    stored = json.loads(path.read_text(encoding='utf-8'))
  except (FileNotFoundError, ValueError):
    return {}
  return stored if isinstance(stored, dict) else {}


def _timings_of(stored, timed) -> dict[str, Timing]:
  """The stored timings of jobs with the same flags."""
  timings = {}
  for name, job in timed.items():
    # An earlier version stored no flags.
    with contextlib.suppress(KeyError, TypeError):
      if stored[name]['flags'] == [*job.flags]:
        timings[name] = Timing(**stored[name]['timing'])
  return timings


def _read(folder: pathlib.Path) -> Timing:
  """Reads the costs, but the start, from a run of two rounds."""
  metrics = metrics_lib.read_metrics(folder)
  # The first round also compiles.
  round_seconds = float(metrics['seconds'].iloc[-1])
  log = (folder / 'log.txt').read_text(encoding='utf-8')
  ends = [
    datetime.datetime.fromisoformat(f'{moment}.{fraction}').timestamp()
    for moment, fraction, _ in _LINE.findall(log)
  ]
  between = ends[-1] - ends[-2] if len(ends) > 1 else round_seconds
  weights = (folder / weights_lib.WEIGHTS).stat().st_size
  everything = sum(
    path.stat().st_size for path in folder.rglob('*') if path.is_file()
  )
  return Timing(
    startup_seconds=0.0,
    round_seconds=round_seconds,
    evaluation_seconds=max(0.0, between - round_seconds),
    weights_bytes=weights,
    round_bytes=(everything - weights) / _ROUNDS,
  )


class Estimate(NamedTuple):
  """The cost of the runs that are not finished.

  Attributes:
    runs: The number of runs.
    rounds: The number of rounds.
    seconds: The time, if the runs came one after the other.
    longest_seconds: The time of the longest run.
    num_bytes: The disk space.
  """

  runs: int
  rounds: int
  seconds: float
  longest_seconds: float
  num_bytes: float


def estimate(
  jobs: Sequence[job_lib.Job],
  timing: Timing,
  clients_per_round: int,
  output_dir: pathlib.Path,
) -> Estimate:
  """Estimates what the jobs of an experiment that are not finished take.

  Args:
    jobs: The jobs.
    timing: The timing of the experiment.
    clients_per_round: The size n of the cohort that was timed.
    output_dir: The folder of the runs' folders.

  Returns:
    The `Estimate`.
  """
  num_rounds, seconds, num_bytes = 0, [], 0.0
  for job in jobs:
    folder = output_dir / job.name
    if run_progress.has_final_weights(folder):
      continue
    rounds = job.total_rounds - run_progress.count_rounds(folder)
    evaluations = rounds / int(job.values['rounds_per_eval'])
    scale = int(job.values['clients_per_round']) / clients_per_round
    num_rounds += rounds
    seconds.append(
      timing.startup_seconds
      + rounds * scale * timing.round_seconds
      + evaluations * timing.evaluation_seconds
    )
    num_bytes += timing.weights_bytes + rounds * timing.round_bytes
  return Estimate(
    len(seconds), num_rounds, sum(seconds), max(seconds, default=0), num_bytes
  )


def describe(
  estimates: Mapping[str, Estimate],
  timings: Mapping[str, Timing],
  num_parallel: int,
) -> str:
  """The estimates in a table, with a line for all of them."""
  lines = [
    f'{"":16}{"runs":>6}{"rounds":>9}{"s/round":>9}{"hours":>8}{"GB":>7}'
  ]
  for name, of_name in estimates.items():
    lines.append(
      f'{name:16}{of_name.runs:6}{of_name.rounds:9,}'
      f'{timings[name].round_seconds:9.2f}'
      f'{of_name.seconds / 3600 / num_parallel:8.2f}'
      f'{of_name.num_bytes / 1e9:7.2f}'
    )
  hours, num_bytes = total(estimates, timings, num_parallel)
  lines.append(
    f'About {_duration(hours)} and {num_bytes / 1e9:.2f} GB, with'
    f' {num_parallel} run{"s" * (num_parallel > 1)} at the same time.'
  )
  return '\n'.join(lines)


def _duration(hours) -> str:
  return f'{hours:.1f} hours' if hours >= 1 else f'{60 * hours:.0f} minutes'


def total(
  estimates: Mapping[str, Estimate],
  timings: Mapping[str, Timing],
  num_parallel: int,
) -> tuple[float, float]:
  """The hours and the bytes of all of them."""
  seconds = max(
    sum(of_name.seconds for of_name in estimates.values()) / num_parallel,
    max((of.longest_seconds for of in estimates.values()), default=0),
  )
  largest = max((t.weights_bytes for t in timings.values()), default=0)
  return (
    seconds / 3600,
    sum(of_name.num_bytes for of_name in estimates.values())
    + _CHECKPOINTS * num_parallel * largest,
  )


def check_space(output_dir: pathlib.Path, num_bytes: float) -> None:
  """Checks that a folder's disk has room.

  Raises:
    JobError: If it has not.
  """
  free = shutil.disk_usage(os.path.realpath(output_dir)).free
  if num_bytes > free:
    raise job_lib.JobError(
      f'the runs take about {num_bytes / 1e9:.2f} GB in {output_dir}, found'
      f' {free / 1e9:.2f} GB free; use another --output_dir.'
    )
