"""Optimal client sampling for federated learning, on TensorFlow Federated."""

from tff_ocs import _requirements

_requirements.check()

from tff_ocs import execution
from tff_ocs import probabilities
from tff_ocs import schemes
from tff_ocs.aggregator import ClientSamplingFactory
from tff_ocs.schemes import ApproximateOptimalSampling
from tff_ocs.schemes import FullParticipation
from tff_ocs.schemes import OptimalSampling
from tff_ocs.schemes import UniformSampling
from tff_ocs.simple_fedavg import build_distributed_sgd_process
from tff_ocs.simple_fedavg import build_federated_averaging_process
from tff_ocs.unweighted import as_unweighted_aggregator
