# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What goes with tables: state of layers, and other items of orbax."""

from __future__ import annotations

import pathlib
from typing import Any
from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint import orbax_handlers
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.nn.plan import _places
import numpy as np
import orbax.checkpoint as ocp_v0
from orbax.checkpoint import v1 as ocp

jax.config.update("jax_num_cpu_devices", 6)

Topology = any_tables.Topology
_SOURCE = Topology(4, 2, "rotated")
_TARGET = Topology(3, 1, "auto")


class _OfLayers(NamedTuple):
  """As layers keep tables."""

  table: Any
  slot: Any
  state: Any


def _with_state(variables, specs, topology, counts):
  num_scs = topology.num_devices * topology.num_sc_per_device
  return {
      stack: _OfLayers(
          *variables[stack],
          jnp.array([counts.get(stack, 0), *places.values()], jnp.int32),
      )
      for stack, places in _places.places_by_stack(specs, num_scs).items()
  }


class OrbaxHandlersTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path) / "saved"
    self.values = any_tables.values()
    self.specs = any_tables.feature_specs(_SOURCE)
    self.variables = any_tables.random_variables(
        _SOURCE, self.specs, self.values
    )

  def check_values(self, variables, specs, topology):
    found = any_tables.read(variables, specs, topology)
    for table, slots in self.values.items():
      for slot, rows in slots.items():
        np.testing.assert_array_equal(found[table][slot], rows)

  @parameterized.parameters(False, True)
  def test_a_checkpoint_manager_saves_and_restores_tables(self, is_async):
    dense = {"kernel": np.arange(6.0)}
    specs = any_tables.feature_specs(_TARGET)
    options = ocp_v0.CheckpointManagerOptions(
        enable_async_checkpointing=is_async
    )
    with ocp_v0.CheckpointManager(self.path, options=options) as manager:
      manager.save(
          3,
          args=ocp_v0.args.Composite(
              state=ocp_v0.args.StandardSave(dense),
              tables=orbax_handlers.TablesSave(
                  orbax_handlers.Tables(self.variables, self.specs, step=3)
              ),
          ),
      )
      manager.wait_until_finished()
      restored = manager.restore(
          3,
          args=ocp_v0.args.Composite(
              state=ocp_v0.args.StandardRestore(dense),
              tables=orbax_handlers.TablesRestore(
                  orbax_handlers.AbstractTables(
                      specs,
                      any_tables.sharding(_TARGET),
                      num_sc_per_device=1,
                  )
              ),
          ),
      )
    np.testing.assert_array_equal(restored["state"]["kernel"], dense["kernel"])
    self.check_values(restored["tables"], specs, _TARGET)
    self.assertEqual(checkpoint.describe(self.path / "3").step, 3)

  @parameterized.parameters(False, True)
  def test_what_a_killed_save_left_is_not_written_to(self, is_async):
    for item in ("state", "tables"):
      left = (
          self.path / "3.orbax-checkpoint-tmp" / f"{item}.orbax-checkpoint-tmp"
      )
      left.mkdir(parents=True)
      # So many that removing them takes a while.
      for i in range(500):
        (left / f"{i}").touch()
    options = ocp_v0.CheckpointManagerOptions(
        enable_async_checkpointing=is_async
    )
    with ocp_v0.CheckpointManager(self.path, options=options) as manager:
      manager.save(
          3,
          args=ocp_v0.args.Composite(
              state=ocp_v0.args.StandardSave({"kernel": np.arange(6.0)}),
              tables=orbax_handlers.TablesSave(
                  orbax_handlers.Tables(self.variables, self.specs)
              ),
          ),
      )
      manager.wait_until_finished()
    checkpoint.verify(self.path / "3")
    self.assertFalse((self.path / "3" / "tables" / "0").exists())

  def test_orbax_v1_loads_tables_into_variables_beside_dense_state(self):
    dense = {"kernel": np.arange(6.0)}
    tables = orbax_handlers.Tables(self.variables, self.specs)
    ocp.save_checkpointables(self.path, {"state": dense, "tables": tables})
    specs = any_tables.feature_specs(_TARGET)
    refs = jax.tree.map(
        jax.new_ref, any_tables.new_variables(_TARGET, specs, seed=9)
    )
    loaded = ocp.load_checkpointables(
        self.path,
        {
            "state": dense,
            "tables": orbax_handlers.AbstractTables(specs, variables=refs),
        },
    )
    np.testing.assert_array_equal(loaded["state"]["kernel"], dense["kernel"])
    self.check_values(refs, specs, _TARGET)

  def test_tables_are_restored_to_devices_or_into_variables(self):
    for arguments in (
        dict(),
        dict(sharding=any_tables.sharding(_SOURCE), variables=self.variables),
    ):
      with self.assertRaisesRegex(ValueError, "either sharding, .*, or"):
        orbax_handlers.AbstractTables(self.specs, **arguments)

  @parameterized.parameters(False, True)
  def test_the_count_of_updates_goes_with_the_tables(self, is_ref):
    any_tables.save(
        self.path,
        _with_state(self.variables, self.specs, _SOURCE, {"all": 41}),
        self.specs,
    )
    self.assertEqual(
        {t.updates for t in checkpoint.describe(self.path).tables.values()},
        {41},
    )
    specs = any_tables.feature_specs(_TARGET)
    target = _with_state(
        any_tables.new_variables(_TARGET, specs), specs, _TARGET, {}
    )
    places = {stack: of.state[1:] for stack, of in target.items()}
    if is_ref:
      target = jax.tree.map(jax.new_ref, target)
    restored = checkpoint.restore_into(target, self.path, specs)
    for stack, of_stack in restored.items():
      state = np.asarray(of_stack.state[...])
      self.assertEqual(state[0], 41)
      np.testing.assert_array_equal(state[1:], places[stack])
    self.check_values(restored, specs, _TARGET)

  def test_tables_of_one_stack_have_one_count(self):
    alone = Topology(1, 1, "alone")
    specs = any_tables.feature_specs(alone)
    variables = any_tables.random_variables(alone, specs, self.values)
    counts = {"items": 3, "users": 4, "hours": 4}
    any_tables.save(
        self.path, _with_state(variables, specs, alone, counts), specs
    )
    before = _with_state(self.variables, self.specs, _SOURCE, {})
    with self.assertRaisesRegex(
        ValueError, "'all': its tables were updated a different .*'items': 3"
    ):
      checkpoint.restore_into(before, self.path, self.specs)
    self.check_values(before, self.specs, _SOURCE)

  def test_variables_that_are_laid_out_for_other_specs_are_not_saved(self):
    # The same shapes, in another order.
    other = Topology(2, 4, "alone")
    specs = any_tables.feature_specs(other, any_tables.TABLES[:1])
    variables = _with_state(
        any_tables.new_variables(other, specs), specs, other, {}
    )
    moved = {
        stack: of._replace(state=of.state.at[1].add(1))
        for stack, of in variables.items()
    }
    with self.assertRaisesRegex(
        ValueError, r"'items': tables \['items'\] are not where the specs say"
    ):
      checkpoint.save(self.path, moved, specs)


if __name__ == "__main__":
  absltest.main()
