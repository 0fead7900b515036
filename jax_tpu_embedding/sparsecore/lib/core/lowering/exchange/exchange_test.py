# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The same buffers on one device and on several: the same bits."""

import contextlib
import dataclasses
import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.extend import core
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core.lowering import table as lowerings
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_batches
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import cpu_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import device_buffers
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
from jax_tpu_embedding.sparsecore.lib.core.testing import update_programs
import numpy as np

jax.config.update("jax_num_cpu_devices", 8)

_NUM_SCS, _BATCH_PER_SC, _ROWS_PER_SHARD, _DIM = 8, 6, 24, 16
_AXIS = jax.sharding.PartitionSpec("x")
_ALL = jax.sharding.PartitionSpec()


def _coo(num_minibatches=None):
  return random_coo.random_coo(
      num_sc_per_device=_NUM_SCS,
      rows_per_shard=_ROWS_PER_SHARD,
      batch_size_per_sc=_BATCH_PER_SC,
      ids_per_sample=4,
      num_minibatches=num_minibatches,
  )


_TABLE = np.float32(
    np.random.default_rng(1).normal(size=(_NUM_SCS * _ROWS_PER_SHARD, _DIM))
)


def _mesh(num_devices):
  return jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))


def _over_devices(name, look_up):
  """The lookup, on several devices as `look_up` does it."""

  def rule(operands, params, devices):
    *coo, table = operands
    axis = devices.axis_of(table)
    if axis is None:
      return cpu_calls.lookup(coo, table, params)
    return look_up([stacks.Lookup(coo, table, params)], axis)

  result = core.Primitive(name)
  result.abstract_eval = lookup.lookup_p.abstract_eval
  mlir.register_lowering(result, lowerings.lowering_rule(rule))
  return result


# In the memory that the devices share; as between processes by sending batches
# or rows, with native steps; and rows with steps in jnp, which is what a
# platform without its own rules does, or with those of a GPU, emulated.
_LOOKUPS = {
    "shared_memory": lookup.lookup_p,
    "batches": _over_devices("lookup_by_batches", by_batches.lookup),
    "messages": _over_devices(
        "lookup_by_messages",
        functools.partial(by_messages.lookup, cpu_messages),
    ),
    "jnp_messages": every_lowering.as_on(None, "lookup", lookup.lookup_p),
    "gpu_messages": every_lowering.as_on("cuda", "lookup", lookup.lookup_p),
}


def _lookup(
    primitive,
    coo,
    num_devices,
    table=_TABLE,
    max_unique_ids_per_partition=_ROWS_PER_SHARD,
    check_vma=False,
    **params,
):
  """Activations of all samples."""

  def run(*operands):
    return primitive.bind(
        *operands,
        device_batch_size=_NUM_SCS * _BATCH_PER_SC // num_devices,
        max_ids_per_partition=_BATCH_PER_SC * 4,
        max_unique_ids_per_partition=max_unique_ids_per_partition,
        **params,
    )

  buffers = device_buffers.spread(coo, _NUM_SCS, num_devices)
  if num_devices > 1:
    run = jax.shard_map(
        run,
        mesh=_mesh(num_devices),
        in_specs=(*[_AXIS] * len(buffers), _ALL, _AXIS),
        out_specs=_AXIS,
        check_vma=check_vma,
    )
  return np.asarray(jax.jit(run)(*buffers, coo.num_minibatches, table))


class LookupTest(parameterized.TestCase):

  @parameterized.product(
      num_devices=(1, 4),
      name=("shared_memory", "batches", "jnp_messages", "gpu_messages"),
  )
  def test_rows_of_codes_have_the_bits_of_their_values(self, num_devices, name):
    words = np.asarray(quantized_rows.encode(_TABLE))
    values = np.asarray(quantized_rows.decode(words, _DIM))
    actual = _lookup(
        _LOOKUPS[name], _coo(), num_devices, words, int8_columns=_DIM
    )
    expected = _lookup(lookup.lookup_p, _coo(), 1, values)
    if name == "jnp_messages":  # XLA rounds code * scale + bias once.
      np.testing.assert_allclose(actual, expected, rtol=0, atol=4e-6)
    else:
      np.testing.assert_array_equal(actual, expected)

  @parameterized.parameters(
      (num_devices, num_minibatches, name)
      for num_devices in (2, 4, 8)
      for num_minibatches in (None, 3)
      for name in _LOOKUPS
      if num_minibatches is None or name != "batches"
  )
  def test_same_bits_as_on_one_device(
      self, num_devices, num_minibatches, lookup_name
  ):
    coo = _coo(num_minibatches)
    quantization_config = (-1.0, 1.0, 9) if num_devices == 8 else None
    run = functools.partial(
        _lookup,
        _LOOKUPS[lookup_name],
        coo,
        quantization_config=quantization_config,
        enable_minibatching=num_minibatches is not None,
    )
    activations = run(num_devices)
    np.testing.assert_array_equal(activations, run(1))
    if quantization_config is None:
      np.testing.assert_allclose(
          activations, coo.weights @ _TABLE, rtol=1e-5, atol=1e-5
      )

  @parameterized.parameters(list(_LOOKUPS))
  def test_where_numbers_have_64_bits(self, lookup_name):
    run = functools.partial(_lookup, _LOOKUPS[lookup_name], _coo())
    expected = run(4)
    with jax.enable_x64(True):
      np.testing.assert_array_equal(run(4), expected, strict=True)

  @parameterized.parameters(list(_LOOKUPS))
  def test_with_the_types_of_what_varies(self, lookup_name):
    run = functools.partial(_lookup, _LOOKUPS[lookup_name], _coo())
    np.testing.assert_array_equal(run(4, check_vma=True), run(1))

  def test_table_without_columns(self):
    coo = _coo()
    run = functools.partial(_lookup, lookup.lookup_p, coo, table=_TABLE[:, 0])
    np.testing.assert_array_equal(run(4), run(1))

  @parameterized.parameters("messages", "jnp_messages", "gpu_messages")
  def test_more_rows_than_the_limit_are_nan(self, lookup_name):
    # At most 4 * 4 * 1 rows of an owner fit; the buffers have more.
    activations = _lookup(
        _LOOKUPS[lookup_name], _coo(), 2, max_unique_ids_per_partition=1
    )
    self.assertTrue(np.all(np.isnan(activations)))


class CorruptBuffersTest(parameterized.TestCase):

  @parameterized.parameters(
      "batches", "messages", "jnp_messages", "gpu_messages"
  )
  def test_between_processes_one_device_has_nan_and_the_others_do_not(
      self, lookup_name
  ):
    coo = _coo()
    run = functools.partial(_lookup, _LOOKUPS[lookup_name], num_devices=8)
    expected = run(coo)
    pointers = coo.row_pointers.copy()
    pointers[pointers.size // _NUM_SCS * 2] = np.iinfo(np.int32).min
    activations = run(dataclasses.replace(coo, row_pointers=pointers))
    is_of_third = np.arange(expected.shape[0]) // _BATCH_PER_SC == 2
    self.assertTrue(np.all(np.isnan(activations[is_of_third])))
    np.testing.assert_array_equal(
        activations[~is_of_third], expected[~is_of_third]
    )

  def test_all_devices_raise_and_none_waits_for_the_others(self):
    # One that raised alone would leave the others in a collective, and XLA ends
    # a process in which that takes too long.
    coo = _coo()
    ids = coo.embedding_ids.copy()
    region = ids.size // _NUM_SCS
    ids[region * 2] = 1000  # of the third device
    run = functools.partial(_lookup, lookup.lookup_p, num_devices=8)
    with self.assertRaisesRegex(
        (ValueError, RuntimeError),
        r"Device 2 of the axis: embedding_ids\[0\] is 1000, expected 0 to 23",
    ):
      run(dataclasses.replace(coo, embedding_ids=ids))
    run(coo)  # as if nothing had happened


def _lookup_part(source, **options):
  """What the only device adds to ones, for the activations of `source`."""
  coo = _coo()
  activations = np.ones((_NUM_SCS * _BATCH_PER_SC, _DIM), np.float32)
  call = jax.ffi.ffi_call("jte_lookup_part_cpu", activations, **options)
  return call(
      *device_buffers.spread(coo, _NUM_SCS, 1),
      *(coo.num_minibatches, _TABLE, np.int32(0), np.int32(source)),
      activations,
      num_devices=np.int64(1),
      num_sc_per_device=np.int64(_NUM_SCS),
      enable_minibatching=False,
      quantization=np.zeros(0),
  )


class LookupPartTest(parameterized.TestCase):

  @parameterized.parameters(-1, 1)
  def test_nothing_is_added_for_no_device(self, source):
    result = _lookup_part(source, input_output_aliases={8: 0})
    np.testing.assert_array_equal(result, 1)

  def test_rows_are_added(self):
    result = _lookup_part(0, input_output_aliases={8: 0})
    np.testing.assert_allclose(
        result, _coo().weights @ _TABLE + 1, rtol=1e-5, atol=1e-5
    )

  def test_activations_that_are_not_overwritten_are_an_error(self):
    with self.assertRaisesRegex(
        (ValueError, RuntimeError),
        "The result is not the operand with the activations: alias operand 8",
    ):
      _lookup_part(0)


_Setting = update_programs.Setting
_SETTINGS = {
    "plain": _Setting(num_sc=8),
    "minibatched": _Setting(num_sc=8, num_minibatches=3, min_value=-0.5),
    "options": _Setting(
        num_sc=8, row_options=row_options.ROW_OPTIONS, max_value=0.25
    ),
    "one_dimension": _Setting(num_sc=8, dim=None),
    # Not as many row pointers as any one device could have.
    "nine_cores": _Setting(num_sc=9),
    "stochastic_rounding": _Setting(
        num_sc=8,
        dtype="bfloat16",
        stochastic_rounding=True,
        num_minibatches=2,
    ),
}
_CASES = update_cases.CASES
_FEW_CASES = ["sgd", "adam", "rowwise_adagrad"]


def _update(implementation, case, setting, num_devices, sent=None):
  """Table and slots, and the update that was given.

  `sent`: "batches" or "rows", as between processes.
  """
  given = update_programs.random_update(case, setting)
  operands = given.operands
  buffers = device_buffers.spread(given.coo, setting.num_sc, num_devices)
  operands = operands._replace(coo=(*buffers, given.coo.num_minibatches))
  run = update_programs.IMPLEMENTATIONS[implementation](
      case.rule, case.static_params, setting
  )
  if num_devices > 1:
    specs = jax.tree.map(lambda x: _AXIS if np.ndim(x) else _ALL, operands)
    run = jax.shard_map(
        run,
        mesh=_mesh(num_devices),
        in_specs=(specs,),
        out_specs=_AXIS,
        check_vma=False,
    )
  with contextlib.ExitStack() as stack:
    if sent is not None:
      stack.enter_context(
          mock.patch.object(mesh_axis, "_is_in_one_process", lambda _: False)
      )
      stack.enter_context(
          mock.patch.object(
              by_batches, "are_smaller", lambda *_: sent == "batches"
          )
      )
    return given, tuple(map(np.asarray, jax.jit(run)(operands)))


class UpdateTest(parameterized.TestCase):

  @parameterized.parameters(
      *[
          (name, setting, num_devices)
          for name in _FEW_CASES
          for setting in _SETTINGS
          for num_devices in (2, 8)
          if _SETTINGS[setting].num_sc % num_devices == 0
      ],
      ("sgd", "nine_cores", 3),
  )
  def test_same_bits_as_on_one_device(self, name, setting_name, num_devices):
    case, setting = _CASES[name], _SETTINGS[setting_name]
    _, one = _update("cpu", case, setting, 1)
    for sent in (None, "batches", "rows"):
      with self.subTest(sent=sent):
        given, several = _update("cpu", case, setting, num_devices, sent)
        for actual, expected in zip(several, one, strict=True):
          np.testing.assert_array_equal(actual, expected)
        update_programs.assert_rows_are_stepped_once(
            case, setting, given, several
        )

  @parameterized.product(
      setting_name=[k for k in _SETTINGS if k != "nine_cores"],
      num_devices=[2, 8],
  )
  def test_custom_rules_have_the_bits_of_one_device(
      self, setting_name, num_devices
  ):
    # By messages and the plain rules, as there are no others for them.
    case, setting = _CASES["adam"], _SETTINGS[setting_name]
    _, several = _update("custom", case, setting, num_devices)
    _, one = _update("custom", case, setting, 1)
    for actual, expected in zip(several, one, strict=True):
      np.testing.assert_array_equal(actual, expected)


class StacksTest(parameterized.TestCase):
  """Several stacks at a time have the bits of each by itself."""

  # Rows of 16 and 32 bits, and of any width.
  _TABLES = (
      _TABLE,
      _TABLE[:, :5].astype(jnp.bfloat16),
      _TABLE[:, 0],
      _TABLE[::-1, :8],
  )

  def _run(self, lowering, coo, tables):
    limits = dict(
        max_ids_per_partition=_BATCH_PER_SC * 4,
        max_unique_ids_per_partition=_ROWS_PER_SHARD,
    )

    def run(coo, tables):
      stacks = [
          of_stacks.OfStack(
              f"t{k}",
              lookup.lookup_p,
              (*coo, table),
              limits
              | dict(
                  device_batch_size=_NUM_SCS
                  * _BATCH_PER_SC
                  // lowering.num_devices
              ),
          )
          for k, table in enumerate(tables)
      ]
      (activations,) = zip(*lowering.bind_of_stacks("lookup_of_stacks", stacks))
      stacks = [
          of_stacks.OfStack(
              f"t{k}",
              update.UPDATE_PRIMITIVES["sgd" if k % 2 else "adagrad"],
              (
                  *coo,
                  table,
                  *(() if k % 2 else (jnp.ones_like(table, jnp.float32),)),
                  gradient,
                  np.float32(0.5),
              ),
              limits,
              num_results=1 if k % 2 else 2,
          )
          for k, (table, gradient) in enumerate(zip(tables, activations))
      ]
      return activations, lowering.bind_of_stacks("update_of_stacks", stacks)

    coo = lowering.coo_operands(coo, _NUM_SCS)
    return jax.tree.map(np.asarray, lowering.compiled(run)(coo, tables))

  @parameterized.parameters(
      "cpu_shared_memory", "cpu_messages", "cpu_batches", "gpu_messages"
  )
  def test_same_bits_as_on_one_device(self, name):
    coo = _coo()
    several = self._run(every_lowering.LOWERINGS[name], coo, self._TABLES)
    one = self._run(every_lowering.LOWERINGS["cpu"], coo, self._TABLES)
    jax.tree.map(np.testing.assert_array_equal, several, one)

  def test_all_devices_raise_what_is_wrong_with_one_stack(self):
    lowering = every_lowering.LOWERINGS["cpu_shared_memory"]
    coo = _coo()
    ids = coo.embedding_ids.copy()
    ids[ids.size // _NUM_SCS * 4] = 1000  # of the third of four devices

    @lowering.compiled
    def run(batches, table):
      return lowering.bind_of_stacks(
          "lookup_of_stacks",
          [
              of_stacks.OfStack(
                  f"t{k}",
                  lookup.lookup_p,
                  (*batch, table),
                  dict(
                      device_batch_size=2 * _BATCH_PER_SC,
                      max_ids_per_partition=_BATCH_PER_SC * 4,
                      max_unique_ids_per_partition=_ROWS_PER_SHARD,
                  ),
              )
              for k, batch in enumerate(batches)
          ],
      )

    good, bad = (
        lowering.coo_operands(x, _NUM_SCS)
        for x in (coo, dataclasses.replace(coo, embedding_ids=ids))
    )
    with self.assertRaisesRegex(
        (ValueError, RuntimeError),
        r"Device 2 of the axis: embedding_ids\[\d+\] is 1000, expected 0 to 23",
    ):
      jax.block_until_ready(run([good, bad, good], _TABLE))
    (first,), (second,) = run(
        [good, good], _TABLE
    )  # as if nothing had happened
    np.testing.assert_array_equal(first, second)


if __name__ == "__main__":
  absltest.main()
