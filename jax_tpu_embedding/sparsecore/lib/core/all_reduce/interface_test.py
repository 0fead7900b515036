# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the converter makes of an AllReduceInterface that Python defines."""

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
import numpy as np


class Scripted(converter.AllReduceInterface):
  """Answers what a test wants; raises it, if it is an exception."""

  def __init__(self, any_of, bitwise_or=0):
    super().__init__()
    self.calls = []
    self._answers = {"any_of": any_of, "bitwise_or": bitwise_or}

  def any_of(self, sync_key, value):
    return self._answer("any_of", sync_key, value)

  def bitwise_or(self, sync_key, value):
    return self._answer("bitwise_or", sync_key, value)

  def _answer(self, method, sync_key, value):
    self.calls.append((method, sync_key, value))
    answer = self._answers[method]
    if isinstance(answer, BaseException):
      raise answer
    return answer


def convert(all_reduce, ids=np.array([[0], [1]], np.int32), vocabulary_size=8):
  """Batch 5 of one host of two, which by itself needs one minibatch."""
  feature = input_preprocessing.Feature(
      name="f", ids=ids, vocabulary_size=vocabulary_size
  )
  stack = input_preprocessing.Stack(
      combiner="sum", max_ids_per_partition=8, max_unique_ids_per_partition=8
  )
  _, num_minibatches = converter_requests.convert_step(
      [(stack, [feature])],
      layout.Topology(
          local_device_count=1, global_device_count=2, num_sc_per_device=1
      ),
      enable_minibatching=True,
      batch_number=5,
      all_reduce_interface=all_reduce,
  )
  return num_minibatches


class InterfaceTest(parameterized.TestCase):

  def test_hosts_that_need_no_minibatches_reduce_once(self):
    all_reduce = Scripted(any_of=False)
    self.assertEqual(convert(all_reduce), 1)
    self.assertEqual(all_reduce.calls, [("any_of", 10, False)])

  def test_split_of_another_host_is_taken(self):
    all_reduce = Scripted(any_of=True, bitwise_or=1 << 62 | 0b101)
    self.assertEqual(convert(all_reduce), 4)
    self.assertEqual(
        all_reduce.calls, [("any_of", 10, False), ("bitwise_or", 11, 0)]
    )

  def test_answer_without_what_this_host_said(self):
    # More ids than a partition may have, of which those of one bucket would be
    # written, and the rest lost.
    ids = np.arange(0, 2002, 2, np.int32).reshape(-1, 1)
    for answers in (dict(any_of=False), dict(any_of=True, bitwise_or=0)):
      with self.assertRaisesRegex(
          RuntimeError, "returned 0, which leaves out what this host has"
      ):
        convert(Scripted(**answers), ids, vocabulary_size=4096)

  def test_runtime_errors_arrive_as_they_are(self):
    error = RuntimeError("host 3 is gone")
    with self.assertRaises(RuntimeError) as raised:
      convert(Scripted(any_of=error))
    self.assertIs(raised.exception, error)

  def test_interrupts_arrive_as_they_are(self):
    with self.assertRaises(KeyboardInterrupt):
      convert(Scripted(any_of=KeyboardInterrupt()))

  def test_other_errors_are_the_cause_of_a_runtime_error(self):
    error = OSError("no route")
    with self.assertRaisesRegex(
        RuntimeError, "Reduction between hosts failed: OSError: no route"
    ) as raised:
      convert(Scripted(any_of=True, bitwise_or=error))
    self.assertIs(raised.exception.__cause__, error)

  @parameterized.parameters(
      (
          dict(any_of=None),
          r"any_of\(sync_key=10\) must return a bool, got None",
      ),
      (
          dict(any_of="no"),
          r"any_of\(sync_key=10\) must return a bool, got 'no'",
      ),
      (dict(any_of=True, bitwise_or=-1), r"bitwise_or\(sync_key=11\).*got -1"),
      (dict(any_of=True, bitwise_or=1 << 64), "must return an int.*got 1844"),
      (dict(any_of=True, bitwise_or=None), "must return an int.*got None"),
  )
  def test_bad_answers(self, answers, message):
    with self.assertRaisesRegex(RuntimeError, message):
      convert(Scripted(**answers))

  def test_methods_must_be_defined(self):
    class Unfinished(converter.AllReduceInterface):
      pass

    with self.assertRaisesRegex(
        NotImplementedError, r"Class Unfinished must define any_of\("
    ):
      convert(Unfinished())

  def test_anything_else_is_a_type_error(self):
    with self.assertRaisesRegex(
        TypeError, "must be an AllReduceInterface or None, got object"
    ):
      convert(object())


if __name__ == "__main__":
  absltest.main()
