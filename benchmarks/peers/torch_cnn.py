"""The CNN of `tff_ocs.tasks.femnist` in PyTorch, as its users write it."""

import torch
from torch import nn


class Cnn(nn.Module):
  """Images [n, 28, 28] to 10 logits."""

  def __init__(self):
    super().__init__()
    self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
    self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
    self.dense1 = nn.Linear(3136, 512)
    self.dense2 = nn.Linear(512, 10)
    # PyTorch's advice for convolutions on CPUs, and a tenth faster here.
    self.to(memory_format=torch.channels_last)

  def forward(self, x):
    x = x.unsqueeze(1)
    x = nn.functional.max_pool2d(nn.functional.relu(self.conv1(x)), 2)
    x = nn.functional.max_pool2d(nn.functional.relu(self.conv2(x)), 2)
    x = nn.functional.relu(self.dense1(x.flatten(1)))
    return self.dense2(x)


def state_from_weights(weights) -> dict:
  """The state of `Cnn` from weights with the channels last, as TensorFlow's."""
  conv1, bias1, conv2, bias2, dense1, bias3, dense2, bias4 = weights
  dense1 = dense1.reshape(7, 7, 64, 512).transpose(2, 0, 1, 3)
  arrays = {
    'conv1.weight': conv1.transpose(3, 2, 0, 1),
    'conv1.bias': bias1,
    'conv2.weight': conv2.transpose(3, 2, 0, 1),
    'conv2.bias': bias2,
    'dense1.weight': dense1.reshape(3136, 512).T,
    'dense1.bias': bias3,
    'dense2.weight': dense2.T,
    'dense2.bias': bias4,
  }
  return {k: torch.tensor(v).contiguous() for k, v in arrays.items()}


def weights_from_state(state) -> list:
  """The inverse of `state_from_weights`."""
  arrays = {k: v.detach().numpy() for k, v in state.items()}
  dense1 = arrays['dense1.weight'].T.reshape(64, 7, 7, 512)
  return [
    arrays['conv1.weight'].transpose(2, 3, 1, 0),
    arrays['conv1.bias'],
    arrays['conv2.weight'].transpose(2, 3, 1, 0),
    arrays['conv2.bias'],
    dense1.transpose(1, 2, 0, 3).reshape(3136, 512),
    arrays['dense1.bias'],
    arrays['dense2.weight'].T,
    arrays['dense2.bias'],
  ]
