"""The clients of `flower`, in a module that Ray's actors can import."""

import functools

import exchange
import torch
import torch_cnn
from flwr.app import ArrayRecord
from flwr.app import Message
from flwr.app import MetricRecord
from flwr.app import RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
  del context
  config = message.content['config']
  job, module = _load(config['job_path'])
  module.load_state_dict(message.content['arrays'].to_torch_state_dict())
  optimizer = torch.optim.SGD(module.parameters(), lr=job.learning_rate)
  x, y = job.rounds[config['round']][config['client']]
  x, y = torch.from_numpy(x), torch.from_numpy(y).long()
  for start in range(0, len(y), job.batch_size):
    batch = slice(start, start + job.batch_size)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
    optimizer.step()
  content = {
    'arrays': ArrayRecord(module.state_dict()),
    'metrics': MetricRecord({'num-examples': len(y)}),
  }
  return Message(RecordDict(content), reply_to=message)


@functools.lru_cache(maxsize=1)
def _load(job_path):
  """Job and module, once in each of Ray's actors."""
  torch.set_num_threads(1)
  return exchange.read_job(job_path), torch_cnn.Cnn()
