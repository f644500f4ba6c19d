"""Averaging the gradients of replicas of a model: data-parallel training over plain MPI.

Rules that hold here:

* A gradient's home is a bucket (`hpcreduce.gradients.buckets`). Each bucket is one all-reduce, by a plan that is made
  once; who computes straight into the bucket has nothing copied.
* What ranks must agree on is compared when an averager is made (`hpcreduce.gradients.parameters`). What can go wrong
  later on one rank alone travels as a count with each average, and is told to all (`hpcreduce.gradients.reports`).
* Only `hpcreduce.gradients.tensors` knows torch.
"""

from hpcreduce.gradients.averager import GradientAverager
from hpcreduce.gradients.tensors import for_torch

__all__ = ["GradientAverager", "for_torch"]
