# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The primitive gives the entries of testdata/golden, on CPU and on GPUs.

Those of all cases whose layout it has, without minibatches, and of which
nothing was dropped. Its regions have other sizes than the cases.
"""

from __future__ import annotations

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.core.testdata.golden import golden_cases
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
import numpy as np


def _can_have(case: golden_cases.GoldenCase) -> bool:
  num_dropped = sum(
      case.outputs(host, stack)["id_drop_counters"].sum()
      for host in range(case.num_hosts)
      for stack in case.stacks()
  )
  return not (
      case.is_sparse
      or case.config["flags"]["enable_minibatching"]
      or num_dropped
  )


_CASES = {
    case.name: case for case in golden_cases.golden_cases() if _can_have(case)
}
_PRIMITIVES = {
    "cpu": convert_ids.convert_ids_p,
    "gpu": every_lowering.as_on(
        "cuda", "convert_ids", convert_ids.convert_ids_p
    ),
}


def _request(case, host, device, stack):
  """Operands of one device, and parameters, for a stack of the case."""
  num_devices = case.config["topology"]["local_device_count"]
  weights_of_host = case.weights(host)
  features, operands = [], []
  specs = case.feature_specs()
  for i in sorted(
      range(len(specs)), key=lambda i: specs[i]._id_transformation.row_offset
  ):
    table = specs[i].table_spec
    if table.setting_in_stack.stack_name != stack:
      continue
    of_host = [case.ids(host)[i]]
    if weights_of_host is not None:
      of_host.append(weights_of_host[i])
    parts = [np.split(x, num_devices)[device] for x in of_host]
    is_ragged = parts[0].dtype == object
    if is_ragged:
      splits = np.cumsum([0, *map(len, parts[0])], dtype=np.int32)
      ids, *weights = (np.concatenate(list(x)) for x in parts)
      operands += [ids, splits, *weights]
    else:
      operands += [x.reshape(len(x), -1) for x in parts]
    place = specs[i]._id_transformation
    features.append(
        raw_ids.Feature(
            name=specs[i].name,
            vocabulary_size=table.vocabulary_size,
            row_offset=place.row_offset,
            col_offset=place.col_offset,
            col_shift=place.col_shift,
            is_ragged=is_ragged,
            has_weights=weights_of_host is not None,
        )
    )
  params = dict(
      combiner=case.config["resolved"]["stacks"][stack]["combiner"],
      global_device_count=case.config["topology"]["global_device_count"],
      num_sc_per_device=case.config["topology"]["num_sc_per_device"],
      features=tuple(features),
      feature_stacking_strategy="SPLIT_THEN_STACK",
  )
  return operands, params


class ConvertIdsGoldenTest(parameterized.TestCase):

  def test_there_are_cases(self):
    self.assertGreater(len(_CASES), 35)

  @parameterized.product(case=list(_CASES), platform=list(_PRIMITIVES))
  def test_entries_equal_the_recorded_ones(self, case, platform):
    case = _CASES[case]
    num_devices = case.config["topology"]["local_device_count"]
    for host in range(case.num_hosts):
      for stack in case.stacks():
        outputs = case.outputs(host, stack)
        of_devices = zip(
            *(
                np.split(outputs[name].reshape(-1), num_devices)
                for name in golden_cases.BUFFERS
            )
        )
        for device, expected in enumerate(of_devices):
          operands, params = _request(case, host, device, stack)
          with jax.enable_x64(True):
            actual = jax.jit(
                functools.partial(_PRIMITIVES[platform].bind, **params)
            )(*operands)
          with self.subTest(host=host, stack=stack, device=device):
            self._assert_same(actual, expected, params)

  def _assert_same(self, actual, expected, params):
    num_scs = params["num_sc_per_device"]
    num_shards = num_scs * params["global_device_count"]
    # A row for each SparseCore.
    pointers, *cells = (np.asarray(x).reshape(num_scs, -1) for x in actual)
    want_pointers, *want_cells = (x.reshape(num_scs, -1) for x in expected)
    np.testing.assert_array_equal(pointers, want_pointers)
    for sc in range(num_scs):
      used = layout.round_up(
          int(pointers[sc, num_shards - 1]), constants.ALIGNMENT
      )
      ids, samples, gains = (x[sc, :used] for x in cells)
      want_ids, want_samples, want_gains = (x[sc, :used] for x in want_cells)
      np.testing.assert_array_equal(ids, want_ids)
      np.testing.assert_array_equal(samples, want_samples)
      # Padding is zero, and so are gains whose divisor is: the package that
      # recorded the cases has NaN and infinities there.
      is_zero = (ids == constants.PADDING_VALUE) | ~np.isfinite(want_gains)
      np.testing.assert_array_equal(
          gains.view(np.uint32),
          np.where(is_zero, np.float32(0), want_gains).view(np.uint32),
      )


if __name__ == "__main__":
  absltest.main()
