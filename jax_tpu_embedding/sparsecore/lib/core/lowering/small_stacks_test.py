# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Small stacks of one CPU device share a call, and have their own results."""

import dataclasses
import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering import of_stacks as parts
from jax_tpu_embedding.sparsecore.lib.core.lowering import small_stacks
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import compiled_text
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

_SAMPLES = 8
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)
_RATE = np.float32(0.5)
_DONATED = ("tables", "sums")


@dataclasses.dataclass(frozen=True)
class _Stack:
  """One that is looked up and stepped with SGD or Adagrad."""

  rows: int = 100
  dim: int = 4
  ids_per_sample: int = 3
  rule: str = "sgd"
  num_sc: int = 1
  dtype: str = "float32"
  min_value: float | None = None
  quantized: bool = False
  rounds: bool = False

  def coo(self, seed: int) -> random_coo.RandomCoo:
    return random_coo.random_coo(
        num_sc_per_device=self.num_sc,
        rows_per_shard=self.rows // self.num_sc,
        batch_size_per_sc=_SAMPLES // self.num_sc,
        ids_per_sample=self.ids_per_sample,
        seed=seed,
    )


class _Step:
  """The lookups and updates of some stacks, as steps bind them."""

  def __init__(self, *stacks: _Stack):
    self.stacks = stacks
    rng = np.random.default_rng(0)
    self.coos = [s.coo(k).operands for k, s in enumerate(stacks)]
    self.tables = [
        jnp.asarray(rng.normal(size=(s.rows, s.dim)), s.dtype) for s in stacks
    ]
    self.sums = [jnp.full((s.rows, s.dim), 0.1) for s in stacks]

  def __call__(self, coos, tables, sums):
    lookups, updates = [], []
    for k, (s, coo, table, own) in enumerate(
        zip(self.stacks, coos, tables, sums, strict=True)
    ):
      quantization = dict(quantization_config=(-1.0, 1.0, 16))
      lookups.append(
          of_stacks.OfStack(
              f"t{k}",
              lookup.lookup_p,
              (*coo, table),
              dict(device_batch_size=_SAMPLES, **_LIMITS)
              | (quantization if s.quantized else {}),
          )
      )
      slots = (own,) if s.rule == "adagrad" else ()
      gradient = jnp.full((_SAMPLES, s.dim), 0.25 * (k + 1))
      seed = (jnp.uint32(7),) if s.rounds else ()
      updates.append(
          of_stacks.OfStack(
              f"t{k}",
              update.UPDATE_PRIMITIVES[s.rule],
              (*coo, table, *slots, gradient, _RATE, *seed),
              dict(min_value=s.min_value, stochastic_rounding=s.rounds)
              | _LIMITS,
              num_results=1 + len(slots),
          )
      )
    activations, stepped = (
        of_stacks.bind(kind, each, num_devices=1)
        for kind, each in (
            (of_stacks.lookup_of_stacks_p, lookups),
            (of_stacks.update_of_stacks_p, updates),
        )
    )
    # In the order of the operands: XLA gives each result the memory of the next
    # donated array of its shape.
    return (
        activations,
        [new[0] for new in stepped],
        [
            old if len(new) == 1 else new[1]
            for old, new in zip(sums, stepped, strict=True)
        ],
    )

  def lowered(self):
    return jax.jit(self, donate_argnames=_DONATED).lower(
        self.coos, self.tables, self.sums
    )

  def calls(self) -> dict[str, int]:
    """Name of a target -> how many calls the program has."""
    found = re.findall(r"custom_call @jte_(\w+)\(", self.lowered().as_text())
    return {name: found.count(name) for name in found}

  def run(self):
    return jax.jit(lambda *args: self(*args))(self.coos, self.tables, self.sums)


_ALIKE = dict(small_lookups_cpu=1, small_updates_cpu=1)


class FewStacksTest(parameterized.TestCase):

  @parameterized.parameters(
      (63, dict(lookup_cpu=63, update_cpu=63)),
      (64, dict(small_lookups_cpu=8, small_updates_cpu=8)),
  )
  def test_they_have_a_call_each(self, num_stacks, calls):
    self.assertEqual(_Step(*[_Stack()] * num_stacks).calls(), calls)


class SmallStacksTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.object(small_stacks, "_FEWEST_ALIKE", 2))

  @parameterized.named_parameters(
      ("alike", _ALIKE, _Stack(), _Stack()),
      ("rows_and_columns", _ALIKE, _Stack(), _Stack(rows=64, dim=16)),
      (
          "adagrad",
          _ALIKE,
          _Stack(rule="adagrad"),
          _Stack(rule="adagrad", dim=8),
      ),
      ("bfloat16", _ALIKE, _Stack(), _Stack(dtype="bfloat16")),
      (
          "eight_and_eight_and_one",
          dict(lookup_cpu=1, small_lookups_cpu=2, update_cpu=1)
          | dict(small_updates_cpu=2),
          *[_Stack(rows=50 + k) for k in range(17)],
      ),
      ("one", dict(lookup_cpu=1, update_cpu=1), _Stack()),
      (
          "other_rules",
          dict(small_lookups_cpu=1, update_cpu=2),
          _Stack(),
          _Stack(rule="adagrad"),
      ),
      (
          "two_groups_and_one_in_between",
          dict(small_lookups_cpu=1, small_updates_cpu=2, update_cpu=1),
          _Stack(rule="adagrad"),
          _Stack(),
          _Stack(min_value=-0.5),
          _Stack(rule="adagrad", rows=30),
          _Stack(dim=2),
      ),
      (
          "large_ones",
          dict(lookup_cpu=2, small_lookups_cpu=1, update_cpu=2)
          | dict(small_updates_cpu=1),
          _Stack(ids_per_sample=1024),
          _Stack(),
          _Stack(ids_per_sample=1024),
          _Stack(),
      ),
      (
          "quantized",
          dict(lookup_cpu=1, small_lookups_cpu=1, small_updates_cpu=1),
          _Stack(),
          _Stack(quantized=True),
          _Stack(),
      ),
      (
          "cores",
          dict(lookup_cpu=1, small_lookups_cpu=1, update_cpu=1)
          | dict(small_updates_cpu=1),
          _Stack(num_sc=2),
          _Stack(num_sc=4),
          _Stack(num_sc=2),
      ),
      (
          "rounded_at_random",
          dict(small_lookups_cpu=1, update_cpu=2),
          _Stack(dtype="bfloat16", rounds=True),
          _Stack(dtype="bfloat16", rounds=True),
      ),
  )
  def test_results_are_those_of_a_call_each(self, calls, *stacks):
    step = _Step(*stacks)
    self.assertEqual(step.calls(), calls)
    results = step.run()
    with mock.patch.object(parts, "can_be_part", lambda _: False):
      apart = _Step(*stacks)
      self.assertEqual(
          apart.calls(), dict(lookup_cpu=len(stacks), update_cpu=len(stacks))
      )
      expected = apart.run()
    jax.tree.map(np.testing.assert_array_equal, results, expected)

  def test_tables_are_updated_in_place(self):
    # The last, which is looked at first, has fewer numbers than activations.
    step = _Step(
        *[_Stack(rows=4096, rule="adagrad") for _ in range(3)],
        _Stack(rows=6, rule="adagrad"),
    )
    compiled = step.lowered().compile()
    self.assertEmpty(compiled_text.copies(compiled.as_text(), r"f32\[4096,4\]"))
    self.assertLess(compiled.memory_analysis().temp_size_in_bytes, 4096 * 4 * 4)

  def test_updates_wait_for_one_result_of_the_lookups(self):
    step = _Step(*[_Stack() for _ in range(5)])
    ((operands,),) = [
        re.findall(
            r"custom_call @jte_small_updates_cpu\((.*?)\)",
            step.lowered().as_text(),
        )
    ]
    self.assertLen(operands.split(", "), 5 * (5 + 1 + 1 + 1) + 1)

  def test_a_second_step_does_not_copy_tables(self):
    step = _Step(
        _Stack(rows=6, rule="adagrad"),
        *[_Stack(rows=4096, rule="adagrad") for _ in range(3)],
    )

    def two_steps(coos, tables, sums):
      first, tables, sums = step(coos, tables, sums)
      return first, *step(coos, tables, sums)

    compiled = (
        jax.jit(two_steps, donate_argnames=_DONATED)
        .lower(step.coos, step.tables, step.sums)
        .compile()
    )
    self.assertEmpty(compiled_text.copies(compiled.as_text(), r"f32\[\d+,4\]"))

  def test_errors_name_the_stack(self):
    step = _Step(*[_Stack() for _ in range(40)])
    *_, samples, _, _ = step.coos[37]
    samples[0] = 1000
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError), "In lookup/t37: .*1000"
    ):
      jax.block_until_ready(step.run())

  def test_traces_say_what_shares_a_call(self):
    text = _Step(_Stack(), _Stack()).lowered().as_text(debug_info=True)
    for operation in ("lookup", "update"):
      self.assertIn(f"{operation}/small_stacks", text)


if __name__ == "__main__":
  absltest.main()
