"""A stand-in for a run of an experiment, which starts in no time.

`--do` says what it does; a run without it counts its rounds slowly and, when it
is started again, continues. `<name>.attempts` counts how often it was started.
"""

import sys

CODE = """
import json, os, pathlib, signal, sys, time
if '--only_check_args' in sys.argv:
  sys.exit()
values = dict(argument[2:].split('=', 1) for argument in sys.argv[1:])
do = values.get('do', 'count')
output_dir = pathlib.Path(values['output_dir'])
folder = output_dir / values['run_name']
attempts_path = output_dir / (folder.name + '.attempts')
with attempts_path.open('a') as file:
  file.write('x')
attempts = len(attempts_path.read_text())
print('attempt', attempts)
if do == 'refuse flags':
  sys.stderr.write('FATAL Flags parsing error: flag --x=y: bad\\nPass --help')
  sys.exit(1)
if do == 'refuse':
  sys.exit('error: no such data.\\nMore about it.')
config_path = folder / 'config.json'
if folder.exists() and not config_path.exists():
  sys.exit(f'error: {folder} holds files, but none of a run')
folder.mkdir(exist_ok=True)
total_rounds = int(values['total_rounds'])
config = {'experiment': 'none', 'method': 'none', 'data': 'none'}
config['clients_per_round'] = 1
for name, text in values.items():
  try:
    config[name] = json.loads(text)
  except ValueError:
    config[name] = text
config_path.write_text(json.dumps(config))
metrics = folder / 'metrics.csv'
(folder / 'pid').write_text(str(os.getpid()))
if do == 'count':
  if not metrics.exists():
    metrics.write_text('round,loss\\n')
  first = metrics.read_text().count('\\n') - 1
  for round_num in range(first, total_rounds):
    time.sleep(0.05)
    with metrics.open('a') as file:
      file.write(f'{round_num},1\\n')
else:
  metrics.write_text('round,loss\\n0,1\\n1,1\\n')
(folder / 'cores').write_text(json.dumps(sorted(os.sched_getaffinity(0))))
if do == 'fail' or do == 'fail once' and attempts == 1:
  raise RuntimeError('it was too much')
if do == 'die':
  os.kill(os.getpid(), signal.SIGKILL)
if do == 'hang':
  time.sleep(1000)
if do == 'meet':
  while len(list(output_dir.glob('*/cores'))) < 2:
    time.sleep(0.01)
if do != 'count':
  metrics.write_text('round,loss\\n0,1\\n1,1\\n2,1\\n')
(folder / 'weights.npz').write_text('')
"""


def command(job, output_dir):
  """Takes the place of `Job.command`."""
  return [
    sys.executable,
    '-c',
    CODE,
    *(f'--{name}={value}' for name, value in job.values.items()),
    f'--run_name={job.name}',
    f'--output_dir={output_dir}',
  ]


def read_settings(job):
  """Takes the place of `job_settings.read`."""
  from experiments.campaigns import job_settings

  recorded = {name: int(job.values[name]) for name in ('seed', 'total_rounds')}
  return job_settings.JobSettings(recorded, frozenset())


def attempts(output_dir, name):
  try:
    return len((output_dir / f'{name}.attempts').read_text())
  except FileNotFoundError:
    return 0
