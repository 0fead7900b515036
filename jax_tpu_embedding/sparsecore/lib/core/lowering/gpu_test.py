# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The GPU's kernels, emulated, beside the CPU's: the same bits."""

import dataclasses
import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import gpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
from jax_tpu_embedding.sparsecore.lib.core.primitives import local_lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import row_gradients
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import ffi_emulated_gpu
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
from jax_tpu_embedding.sparsecore.lib.core.testing import update_programs
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_ROWS_PER_SHARD, _BATCH_PER_SC = 24, 6
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)
_LAYOUTS = {
    "one_source": dict(num_sc_per_device=1),
    "four_sources": dict(num_sc_per_device=4),
    "minibatches": dict(num_sc_per_device=4, num_minibatches=3),
}
_DTYPES = ("float32", "bfloat16", "float16")
_LOWERINGS = every_lowering.LOWERINGS
_CASES = update_cases.CASES
_Setting = update_programs.Setting
_FEW_CASES = ("sgd", "adam", "rowwise_adagrad")
_SETTINGS = {
    "one_source": _Setting(num_sc=1, dim=8),
    "wide": _Setting(num_sc=2, dim=160, row_options=("max_gradient_norm",)),
    "all_options": _Setting(
        num_sc=2,
        num_minibatches=3,
        dim=64,
        row_options=row_options.ROW_OPTIONS,
        min_value=-0.5,
        max_value=0.25,
    ),
    "bfloat16": _Setting(
        num_sc=2,
        dtype="bfloat16",
        stochastic_rounding=True,
        row_options=("max_gradient_norm", "l2_weight_decay"),
    ),
    "float16": _Setting(num_sc=1, dim=12, dtype="float16"),
    "no_multiple_of_4": _Setting(
        num_sc=2,
        dim=6,
        dtype="bfloat16",
        row_options=row_options.ROW_OPTIONS,
    ),
    "wider_than_a_window": _Setting(
        num_sc=1, dim=150, row_options=row_options.ROW_OPTIONS
    ),
    "wider_than_512": _Setting(num_sc=1, dim=516, max_value=0.25),
}


def _coo(layout, ids_per_sample=4):
  return random_coo.random_coo(
      rows_per_shard=_ROWS_PER_SHARD,
      batch_size_per_sc=_BATCH_PER_SC,
      ids_per_sample=ids_per_sample,
      **_LAYOUTS[layout],
  )


def _rows(num_scs, dim, dtype="float32", seed=0):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(num_scs * _ROWS_PER_SHARD, dim))
  return np.asarray(jnp.asarray(rows, dtype))


def _arrays(results):
  return jax.tree.map(np.asarray, results)


def _on_both(function):
  """The results of function(lowering) for the CPU and for the emulated GPU."""
  return [_arrays(function(_LOWERINGS[name])) for name in ("cpu", "gpu")]


def _look_up(lowering, coo, table, layout, **params):
  num_scs = _LAYOUTS[layout]["num_sc_per_device"]
  params |= _LIMITS | dict(
      device_batch_size=num_scs * _BATCH_PER_SC,
      enable_minibatching=layout == "minibatches",
  )
  return lowering.compiled(
      lambda *operands: lowering.bind("lookup", *operands, **params)
  )(*coo.operands, table)


def _update(case, setting, given):
  """A function of a lowering: tables and slots after the update."""

  def run(lowering):
    return lowering.compiled(
        lambda *operands: lowering.bind(
            f"update_{case.rule.name}",
            *operands,
            **case.static_params,
            **setting.params(),
        )
    )(*update_programs.in_order(given.operands))

  return run


def _custom_update(case, setting, given):
  """The same with the rule's step as if it were the user's.

  Operands and table are those of four devices too.
  """

  def computation(grad, row, *rest):
    num_slots = len(case.rule.slots)
    row, slots = case.rule.step(
        grad, row, rest[:num_slots], rest[num_slots:], **case.static_params
    )
    return row, *slots

  operands = given.operands
  seed = () if operands.rounding_seed is None else (operands.rounding_seed,)

  def run(lowering):
    coo = lowering.coo_operands(given.coo, setting.num_sc)
    return lowering.compiled(
        lambda *operands: lowering.bind(
            "custom_update",
            *operands,
            num_hyperparameters=len(case.rule.hyperparameters),
            custom_computation_fn=computation,
            **setting.params(),
        )
    )(
        *coo,
        operands.gradient,
        *map(np.float32, operands.hyperparameters),
        operands.table,
        *(np.broadcast_to(x, operands.table.shape) for x in operands.slots),
        *seed,
    )

  return run


def _sgd_in_blocks(coo, table, gradient, num_scs, block_size):
  """The table after SGD with rate 0.5, and the most terms of one source.

  In the order that cc/gpu/group_by_row.h promises, in float32.
  """
  table = table.copy()
  terms = {}  # row -> source -> terms, in the order of the buffers
  for source, target, cells in _partitions(coo, num_scs):
    for cell in cells:
      row = target * _ROWS_PER_SHARD + coo.embedding_ids[cell]
      sample = source * _BATCH_PER_SC + coo.sample_ids[cell]
      term = coo.gains[cell] * gradient[sample]
      terms.setdefault(row, {}).setdefault(source, []).append(term)
  most_terms = 0
  zero = np.zeros(table.shape[1], np.float32)
  for row, sources in terms.items():
    total = zero.copy()
    num_terms = sum(map(len, sources.values()))
    for of_source in sources.values():
      most_terms = max(most_terms, len(of_source))
      size = block_size if num_terms > block_size else num_terms
      blocks = []
      for first in range(0, len(of_source), size):
        block = zero.copy()
        for term in of_source[first : first + size]:
          block += term
        blocks.append(block)
      source_sum = zero.copy()
      for block in blocks:
        source_sum += block
      total += source_sum
    table[row] -= total * np.float32(0.5)
  return table, most_terms


def _partitions(coo, num_scs):
  """Source, target and cells of each partition, in the order of cells."""
  pointers = coo.row_pointers.reshape(-1, max(num_scs, 8))
  minibatches = int(coo.num_minibatches)
  packed = pointers.shape[0] > num_scs
  region = coo.embedding_ids.size // (1 if packed else num_scs)
  begin = 0
  for block in range(num_scs * (minibatches if packed else 1)):
    source = block // minibatches if packed else block
    origin = 0 if packed else block * region
    begin = begin if packed else 0
    for target in range(num_scs):
      end = int(pointers[block, target])
      yield source, target, range(origin + begin, origin + end)
      begin = -(-end // 8) * 8


def _plain_program(lowering):
  """The program of an operation that no kernel takes, and its operands."""
  coo = lowering.coo_operands(_coo("four_sources"), 4)
  gradient = np.ones(4 * _BATCH_PER_SC, np.float32)
  program = lowering.compiled(
      lambda *operands: lowering.bind(
          "custom_update",
          *operands,
          num_hyperparameters=0,
          custom_computation_fn=lambda grad, row: row - grad,
          **_LIMITS,
      )
  )
  return program, (*coo, gradient, _rows(4, 1)[:, 0])


def _num_float_sums_by_scatter(text):
  """Scatters of a program that add floats."""
  bodies = re.findall(
      r'"stablehlo.scatter".*?\n(.*?)stablehlo.return', text, re.DOTALL
  )
  return sum("stablehlo.add" in x and "tensor<f32>" in x for x in bodies)


class GpuTest(parameterized.TestCase):

  def assert_same_bits(self, results):
    expected, actual = results
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(
            a.view(np.uint8), b.view(np.uint8)
        ),
        expected,
        actual,
    )

  @parameterized.product(
      layout=list(_LAYOUTS), dim=[8, 12, 64, 160, 512], dtype=_DTYPES
  )
  def test_lookup(self, layout, dim, dtype):
    coo = _coo(layout)
    table = _rows(_LAYOUTS[layout]["num_sc_per_device"], dim, dtype)
    self.assert_same_bits(
        _on_both(lambda lowering: _look_up(lowering, coo, table, layout))
    )

  @parameterized.product(layout=list(_LAYOUTS), dim=[1, 3, 8, 24, 64, 160])
  def test_lookup_of_codes(self, layout, dim):
    coo = _coo(layout)
    rows = _rows(_LAYOUTS[layout]["num_sc_per_device"], dim)
    words = np.asarray(quantized_rows.encode(jnp.asarray(rows)))
    self.assert_same_bits(
        _on_both(
            lambda lowering: _look_up(
                lowering, coo, words, layout, int8_columns=dim
            )
        )
    )

  def test_lookup_quantized(self):
    coo = _coo("four_sources")
    table = _rows(4, 24)
    self.assert_same_bits(
        _on_both(
            lambda lowering: _look_up(
                lowering,
                coo,
                table,
                "four_sources",
                quantization_config=(-1.0, 1.5, 9),
            )
        )
    )

  @parameterized.product(setting=list(_SETTINGS))
  def test_update(self, setting):
    setting = _SETTINGS[setting]
    for case in _CASES:
      with self.subTest(case):
        given = update_programs.random_update(_CASES[case], setting)
        self.assert_same_bits(_on_both(_update(_CASES[case], setting, given)))

  @parameterized.product(setting=list(_SETTINGS))
  def test_custom_update(self, setting):
    setting = _SETTINGS[setting]
    for case in _FEW_CASES:
      with self.subTest(case):
        given = update_programs.random_update(_CASES[case], setting)
        run = _custom_update(_CASES[case], setting, given)
        self.assert_same_bits(_on_both(run))

  @parameterized.product(setting=list(_SETTINGS))
  def test_rule_without_kernel_is_stepped_all_the_same(self, setting):
    setting = _SETTINGS[setting]
    for case in _FEW_CASES:
      with self.subTest(case):
        given = update_programs.random_update(_CASES[case], setting)
        run = _update(_CASES[case], setting, given)
        by_kernel = _on_both(run)[1]
        with (
            mock.patch.object(gpu_calls, "STEP_RULES", frozenset()),
            mock.patch.object(gpu_calls, "step_rows", side_effect=KeyError),
        ):
          _, in_jnp = _on_both(_update(_CASES[case], setting, given))
        for expected, found in zip(by_kernel, in_jnp, strict=True):
          np.testing.assert_allclose(
              np.float32(found), np.float32(expected), rtol=1e-2, atol=1e-5
          )

  def test_custom_update_leaves_out_gradients_that_are_not_finite(self):
    setting = _Setting(
        num_sc=2, dim=8, row_options=("skip_non_finite_gradients",)
    )
    given = update_programs.random_update(_CASES["sgd"], setting)
    gradient, _ = update_programs.without_finite_gradients(given)
    given = given._replace(operands=given.operands._replace(gradient=gradient))
    run = _custom_update(_CASES["sgd"], setting, given)
    results = _on_both(run)
    self.assertTrue(np.isfinite(results[0][0]).all())
    self.assert_same_bits(results)

  @parameterized.parameters(
      (
          # max_gradient_norm has a test of its own.
          _Setting(
              num_sc=4,
              row_options=(
                  "skip_non_finite_gradients",
                  "l2_weight_decay",
                  "decoupled_weight_decay",
              ),
          ),
      ),
      (
          _Setting(
              num_sc=4,
              num_minibatches=3,
              dtype="bfloat16",
              stochastic_rounding=True,
              max_value=0.25,
          ),
      ),
  )
  def test_custom_update_has_the_bits_of_one_device(self, setting):
    given = update_programs.random_update(_CASES["adam"], setting)
    run = _custom_update(_CASES["adam"], setting, given)
    expected = _arrays(run(_LOWERINGS["cpu"]))
    for name in ("cpu_shared_memory", "gpu", "gpu_messages"):
      with self.subTest(name):
        self.assert_same_bits((expected, _arrays(run(_LOWERINGS[name]))))

  @parameterized.product(dim=[24, 160], num_minibatches=[None, 3])
  def test_custom_update_with_max_gradient_norm(self, dim, num_minibatches):
    # XLA adds the squares, in an order that depends on the number of rows in a
    # program. Two orders differ by less than a rounding for each column, and
    # the factor of a gradient that is short enough is 1 in any.
    setting = _Setting(
        num_sc=4,
        dim=dim,
        num_minibatches=num_minibatches,
        row_options=("max_gradient_norm",),
    )
    given = update_programs.random_update(_CASES["sgd"], setting)
    gradients = given.coo.weights.T @ np.float64(given.operands.gradient)
    norms = np.linalg.norm(gradients, axis=1)
    limit = np.float32(np.median(norms[given.coo.touched]))
    learning_rate, _ = given.operands.hyperparameters
    given = given._replace(
        operands=given.operands._replace(hyperparameters=(learning_rate, limit))
    )
    run = _custom_update(_CASES["sgd"], setting, given)
    (expected,) = _arrays(run(_LOWERINGS["cpu"]))
    is_short = norms < 0.999 * limit
    self.assertBetween(np.sum(is_short & given.coo.touched), 10, 150)
    step = np.abs(np.float64(expected) - given.operands.table)
    most = (dim + 8) * 2.0**-24 * step + np.spacing(np.abs(expected))
    for name in ("cpu_shared_memory", "cpu_messages", "gpu", "gpu_messages"):
      with self.subTest(name):
        (actual,) = _arrays(run(_LOWERINGS[name]))
        self.assert_same_bits((expected[is_short], actual[is_short]))
        difference = np.abs(np.float64(actual) - expected)
        self.assertTrue(np.all(difference <= most))

  @parameterized.parameters(1, 4)
  def test_plain_rules_add_in_one_order(self, num_devices):
    num_sums = {}
    for platform in (None, "cuda"):
      lowering = every_lowering.Lowering(
          platform=platform, num_devices=num_devices
      )
      program, operands = _plain_program(lowering)
      text = jax.jit(program).lower(*operands).as_text()
      num_sums[platform] = _num_float_sums_by_scatter(text)
    self.assertGreater(num_sums[None], 0)
    self.assertEqual(num_sums["cuda"], 0)

  def test_gpus_without_kernels_add_in_one_order(self):
    coo = _coo("one_source").operands
    table = _rows(1, 24)
    rows = np.arange(16, dtype=np.int32) % 5

    @jax.jit
    def run(coo, table, values):
      activations = lookup.lookup_p.bind(
          *coo, table, device_batch_size=_BATCH_PER_SC, **_LIMITS
      )
      return (
          update.UPDATE_PRIMITIVES["sgd"].bind(
              *coo, table, activations, np.float32(0.5), **_LIMITS
          ),
          row_gradients.row_gradients_p.bind(
              *coo,
              activations,
              rows_per_device=_ROWS_PER_SHARD,
              global_device_count=1,
              max_unique_ids_per_partition=64,
          ),
          row_gradients.sum_rows_p.bind(rows, values),
          local_lookup.local_lookup_p.bind(
              rows, rows, values[:, 0], table, device_batch_size=8
          ),
      )

    lowered = run.trace(coo, table, table[:16]).lower(
        lowering_platforms=("rocm",)
    )
    text = lowered.as_text()
    self.assertNotIn("@jte_", text)
    self.assertEqual(_num_float_sums_by_scatter(text), 0)

  def test_plain_rules_are_right(self):
    results = []
    for lowering in (_LOWERINGS["reference"], _LOWERINGS["gpu"]):
      program, operands = _plain_program(lowering)
      results.append(_arrays(program(*operands)))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        *results,
    )

  def test_the_order_of_threads_does_not_matter(self):
    setting = _SETTINGS["bfloat16"]
    given = update_programs.random_update(_CASES["adam"], setting)
    run = _update(_CASES["adam"], setting, given)
    results = [_arrays(run(_LOWERINGS["gpu"])) for _ in range(5)]
    for result in results[1:]:
      self.assert_same_bits((results[0], result))

  @parameterized.parameters(list(_LAYOUTS))
  def test_rows_that_many_samples_name_are_summed_in_blocks(self, layout):
    block_size = 2
    num_scs = _LAYOUTS[layout]["num_sc_per_device"]
    enable_minibatching = layout == "minibatches"
    coo = _coo(layout, ids_per_sample=20)
    table = _rows(num_scs, 24)
    gradient = np.float32(
        np.random.default_rng(3).normal(size=(num_scs * _BATCH_PER_SC, 24))
    )
    expected, most_terms = _sgd_in_blocks(
        coo, table, gradient, num_scs, block_size
    )
    self.assertGreater(most_terms, 3 * block_size)
    params = dict(_LIMITS, enable_minibatching=enable_minibatching)
    names = ("gpu",) if num_scs == 1 else ("gpu", "gpu_messages")
    for name in names:
      lowering = _LOWERINGS[name]
      with (
          self.subTest(name),
          mock.patch.object(gpu_calls, "BLOCK_SIZE", block_size),
      ):
        (actual,) = lowering.compiled(
            lambda *operands: lowering.bind("update_sgd", *operands, **params)
        )(
            *lowering.coo_operands(coo, num_scs),
            table,
            gradient,
            np.float32(0.5),
        )
        self.assert_same_bits((expected, np.asarray(actual)))

  @parameterized.parameters(
      dict(embedding_ids=_ROWS_PER_SHARD),
      dict(embedding_ids=-1),
      dict(sample_ids=_BATCH_PER_SC),
      dict(sample_ids=-1),
      dict(row_pointers=1 << 20),
      dict(row_pointers=-5),
      dict(num_minibatches=0),
      dict(num_minibatches=65),
  )
  def test_what_is_made_of_corrupt_buffers_is_nan(self, **change):
    ((name, value),) = change.items()
    coo = _coo("minibatches")
    array = np.array(getattr(coo, name))
    array[(0,) if array.ndim else ()] = value
    coo = dataclasses.replace(coo, **{name: array})
    table = _rows(4, 24)
    params = dict(_LIMITS, enable_minibatching=True)
    (activations,) = _look_up(_LOWERINGS["gpu"], coo, table, "minibatches")
    self.assertTrue(np.isnan(activations).all())
    gradient = np.ones((4 * _BATCH_PER_SC, 24), np.float32)
    lowering = _LOWERINGS["gpu"]
    (new_table,) = lowering.compiled(
        lambda *operands: lowering.bind("update_sgd", *operands, **params)
    )(*coo.operands, table, gradient, np.float32(0.5))
    new_table = np.asarray(new_table)
    self.assertTrue(np.isnan(new_table).any())
    is_kept = (new_table == table).all(axis=1)
    self.assertTrue(np.all(is_kept | np.isnan(new_table).all(axis=1)))

  def test_one_run_that_is_not_sorted_by_row_is_corrupt(self):
    coo = _coo("one_source")
    ids = coo.embedding_ids.copy()
    self.assertLess(ids[0], ids[coo.row_pointers[0] - 1])
    ids[0] = ids[coo.row_pointers[0] - 1]
    coo = dataclasses.replace(coo, embedding_ids=ids)
    table = _rows(1, 24)
    lowering = _LOWERINGS["gpu"]
    (new_table,) = lowering.compiled(
        lambda *operands: lowering.bind("update_sgd", *operands, **_LIMITS)
    )(
        *coo.operands,
        table,
        np.ones((_BATCH_PER_SC, 24), np.float32),
        np.float32(0.5),
    )
    self.assertTrue(np.isnan(new_table).any())

  @parameterized.parameters(6, 516)
  def test_other_widths_are_looked_up(self, dim):
    coo = _coo("one_source")
    self.assert_same_bits(
        _on_both(
            lambda lowering: _look_up(
                lowering, coo, _rows(1, dim), "one_source"
            )
        )
    )


def _updated():
  """By jte_group_by_row and jte_step_rows."""
  case, setting = _CASES["sgd"], _SETTINGS["one_source"]
  given = update_programs.random_update(case, setting)
  return _update(case, setting, given)(_LOWERINGS["gpu"])


def _gradients_of_rows():
  """By jte_group_by_row and jte_sum_rows."""
  lowering = _LOWERINGS["gpu"]
  return lowering.compiled(
      lambda *operands: lowering.bind(
          "row_gradients",
          *operands,
          rows_per_device=_ROWS_PER_SHARD,
          global_device_count=1,
          max_unique_ids_per_partition=64,
      )
  )(*_coo("one_source").operands, _rows(1, 8)[:_BATCH_PER_SC])


def _grouped_rows():
  """By jte_group_rows."""
  rows = np.arange(16, dtype=np.int32) % 5
  return jax.jit(
      lambda rows, values: gpu_calls.terms_of_rows(
          ffi_emulated_gpu, rows, values, max_row=5
      ).groups
  )(rows, _rows(1, 8)[:16])


def _four_counts_in_results(row_groups):
  def of_another_version(*args):
    *groups, _, scratch = row_groups(*args)
    return [*groups, gpu_calls._ints(4), scratch]

  return of_another_version


def _four_counts_in_terms(terms_of_batch):
  def of_another_version(*args, **kwargs):
    terms = terms_of_batch(*args, **kwargs)
    counts = native_call.apply(lambda x: x[:4], terms.groups.counts)
    return terms._replace(groups=terms.groups._replace(counts=counts))

  return of_another_version


class PlanSizesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("group_by_row", "_row_groups", _four_counts_in_results, _updated),
      ("group_rows", "_row_groups", _four_counts_in_results, _grouped_rows),
      ("step_rows", "terms_of_batch", _four_counts_in_terms, _updated),
      (
          "sum_rows",
          "terms_of_batch",
          _four_counts_in_terms,
          _gradients_of_rows,
      ),
  )
  def test_counts_of_another_version_are_an_error(
      self, function, with_four_counts, run
  ):
    jax.block_until_ready(run())
    others = with_four_counts(getattr(gpu_calls, function))
    with mock.patch.object(gpu_calls, function, others):
      with self.assertRaisesRegex(
          Exception, "4 counts, expected .* 5. .*another version, export it"
      ):
        jax.block_until_ready(run())

  def test_too_little_scratch_memory_is_an_error(self):
    bytes_of = gpu_calls._bytes
    with mock.patch.object(gpu_calls, "_bytes", lambda n: bytes_of(n - 256)):
      with self.assertRaisesRegex(
          Exception, "scratch result has .*another version, export it"
      ):
        jax.block_until_ready(_updated())

  def _requests(self, num_rows, batch_size):
    """What the first of two devices asks for: the last row of each."""
    last_row = num_rows - 1
    coo = (
        np.int32([1, 9] + [16] * 6),
        np.full(16, last_row, np.int32),
        np.full(16, batch_size - 1, np.int32),
        np.ones(16, np.float32),
        np.int32(1),
    )
    return jax.jit(
        lambda *coo: gpu_calls.pack(
            ffi_emulated_gpu,
            coo,
            layout.Topology(
                local_device_count=1,
                global_device_count=2,
                num_sc_per_device=1,
            ),
            block_size=3,
            rows_per_device=num_rows,
            batch_size=batch_size,
            enable_minibatching=False,
        )
    )(*coo)

  def test_plans_count_rows_and_samples_up_to_a_limit(self):
    most = 2**31 - 1 - 2**24
    packed = _arrays(self._requests(most, most))
    self.assertSequenceEqual(packed.requests.tolist(), [most - 1, -1, -1] * 2)
    self.assertEqual(packed.samples[0], most - 1)
    self.assertEqual(packed.samples[1], most)  # no entry
    self.assertSequenceEqual(packed.flaws.tolist(), [0, 0])
    for num_rows, batch_size in ((most + 1, 6), (24, most + 1)):
      with (
          self.subTest(num_rows=num_rows),
          self.assertRaisesRegex(
              Exception,
              f"{num_rows} rows, {batch_size} samples and 16 cells, expected at"
              f" most {most} of each",
          ),
      ):
        jax.block_until_ready(self._requests(num_rows, batch_size))


if __name__ == "__main__":
  absltest.main()
