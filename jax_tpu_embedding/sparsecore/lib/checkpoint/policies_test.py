# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What is restored where a checkpoint and the specs differ."""

from __future__ import annotations

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _restore
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import checkpoint_case
from jax_tpu_embedding.sparsecore.lib.core import free_memory
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

jax.config.update("jax_num_cpu_devices", 6)

_ONE = checkpoint_case.ONE
Policy = checkpoint.RestorePolicy


class PoliciesTest(checkpoint_case.CheckpointCase):

  def test_tables_without_slots(self):
    values = self.save(slots=False)
    specs = any_tables.feature_specs(_ONE)
    target = any_tables.sharding(_ONE)
    with self.assertRaisesRegex(
        ValueError, "(?s)'items': the checkpoint has slots none.*'reset'"
    ):
      checkpoint.restore(self.path, specs, target, num_sc_per_device=2)
    restored = checkpoint.restore(
        self.path,
        specs,
        target,
        num_sc_per_device=2,
        policy=Policy(slots="reset"),
    )
    found = any_tables.read(restored, specs, _ONE)
    for name, of_table in found.items():
      np.testing.assert_array_equal(of_table[None], values[name][None])
      np.testing.assert_array_equal(of_table["accumulator"], np.float32(0.1))

  def test_slots_that_differ_get_initial_values(self):
    values = self.save(of="rowwise_adagrad")
    # Its slot has the same name, and another number of columns.
    specs = any_tables.feature_specs(_ONE)
    found = self._restored(specs, policy=Policy(slots="reset"))
    for name, of_table in found.items():
      np.testing.assert_array_equal(of_table[None], values[name][None])
      accumulator = np.full_like(of_table[None], 0.1)
      np.testing.assert_array_equal(of_table["accumulator"], accumulator)

  def test_slots_that_the_optimizer_lacks_are_dropped(self):
    values = self.save()
    specs = any_tables.feature_specs(_ONE, of="sgd")
    with self.assertRaisesRegex(
        ValueError, "has slots accumulator.*SGDOptimizerSpec has none.*'reset'"
    ):
      self._restored(specs)
    found = self._restored(specs, policy=Policy(slots="reset"))
    self.assert_same_values(
        found, {name: {None: rows[None]} for name, rows in values.items()}
    )

  def test_hyperparameters_are_not_state(self):
    values = self.save()
    other = embedding_spec.AdagradOptimizerSpec(learning_rate=0.7)
    with mock.patch.object(any_tables, "optimizer", return_value=other):
      specs = any_tables.feature_specs(_ONE)
    self.assert_same_values(self._restored(specs), values)

  def _restored(self, specs, **kwargs):
    restored = checkpoint.restore(
        self.path,
        specs,
        any_tables.sharding(_ONE),
        num_sc_per_device=2,
        **kwargs,
    )
    return any_tables.read(restored, specs, _ONE)

  @parameterized.named_parameters(
      dict(
          testcase_name="columns",
          tables=(("items", 1003, 16), *any_tables.TABLES[1:]),
          error="Table 'items': the checkpoint has 12 columns, the spec 16. No"
          " policy changes columns; load_tables takes an array you made.",
      ),
      dict(
          testcase_name="more rows",
          tables=(("items", 1200, 12), *any_tables.TABLES[1:]),
          error="'items': the checkpoint has 1003 rows, the spec 1200.*'grow'",
      ),
      dict(
          testcase_name="fewer rows",
          tables=(("items", 1000, 12), *any_tables.TABLES[1:]),
          error="'items': the checkpoint has 1003 rows, the spec 1000.*'crop'",
      ),
      dict(
          testcase_name="more rows, not fewer",
          tables=(("items", 1200, 12), *any_tables.TABLES[1:]),
          restoring=dict(policy=Policy(rows="crop")),
          error="'items': the checkpoint has 1003 rows, the spec 1200.*'grow'",
      ),
      dict(
          testcase_name="fewer rows, not more",
          tables=(("items", 1000, 12), *any_tables.TABLES[1:]),
          restoring=dict(policy=Policy(rows="grow")),
          error="'items': the checkpoint has 1003 rows, the spec 1000.*'crop'",
      ),
      dict(
          testcase_name="optimizer",
          of="adam",
          error=r"'items': the checkpoint has slots accumulator \(12 columns\),"
          r" and AdamOptimizerSpec has momentum \(12 .*slots='reset'",
      ),
      dict(
          testcase_name="slots of rows",
          of="rowwise_adagrad",
          error=r"accumulator \(12 columns\).* has accumulator \(1 columns\)",
      ),
      dict(
          testcase_name="missing table",
          tables=(*any_tables.TABLES, ("days", 7, 3)),
          error="Table 'days': the checkpoint has no table 'days', only .*"
          "missing_tables='initialize'",
      ),
      dict(
          testcase_name="unused table",
          tables=any_tables.TABLES[:2],
          error=r"tables \['hours'\], which the specs do not.*Pass one Resto.*"
          "beside a policy by table, pass tables=",
      ),
      dict(
          testcase_name="several",
          tables=(("items", 1003, 16), ("users", 131, 9), ("hours", 5, 12)),
          error="(?s)'items'.*16.*'users'.*131",
      ),
      dict(
          testcase_name="no key",
          tables=(*any_tables.TABLES, ("days", 7, 3)),
          restoring=dict(policy=Policy(missing_tables="initialize")),
          error=r"Tables \['days'\] get initial values.*Pass key",
      ),
      dict(
          testcase_name="unknown table",
          restoring=dict(tables=["item"]),
          error="tables has 'item', and the specs have .*'items'",
      ),
      dict(
          testcase_name="unknown name",
          restoring=dict(names={"items": "things"}),
          error="the checkpoint has no table 'things'",
      ),
      dict(
          testcase_name="unknown name, whatever the policy",
          restoring=dict(
              names={"items": "things"},
              policy=Policy(missing_tables="initialize"),
          ),
          error="the checkpoint has no table 'things'",
      ),
      dict(
          testcase_name="name of unknown table",
          restoring=dict(names={"item": "items"}),
          error="names has 'item', and the specs have .*'items'",
      ),
      dict(
          testcase_name="unused tables in a policy by table",
          tables=any_tables.TABLES[:2],
          restoring=dict(policy={"items": Policy(unused_tables="ignore")}),
          error="policy has unused_tables='ignore' for 'items', and no table .*"
          r"Pass one RestorePolicy\(unused_tables='ignore'\).*pass tables=",
      ),
      dict(
          testcase_name="policy of unknown table",
          restoring=dict(policy={"item": Policy()}),
          error="policy has 'item'",
      ),
  )
  def test_what_does_not_fit_is_an_error(
      self, error, tables=any_tables.TABLES, of="adagrad", restoring=None
  ):
    self.save()
    specs = any_tables.feature_specs(_ONE, tables, of=of)
    with self.assertRaisesRegex(ValueError, error):
      checkpoint.restore(
          self.path,
          specs,
          any_tables.sharding(_ONE),
          num_sc_per_device=2,
          **(restoring or {}),
      )

  def test_tables_that_are_not_named_are_unused(self):
    values = self.save()
    specs = any_tables.feature_specs(_ONE, any_tables.TABLES[:2])
    policy = {"items": Policy(unused_tables="ignore")}
    found = self._restored(specs, policy=policy, tables=list(specs))
    del values["hours"]
    self.assert_same_values(found, values)

  def test_a_mesh_may_have_devices_in_another_order(self):
    values = self.save()
    topology = any_tables.Topology(4, 2, "alone")
    tables = (*any_tables.TABLES, ("days", 7, 3))
    specs = any_tables.feature_specs(topology, tables)
    mesh = jax.sharding.Mesh(jax.devices()[:4][::-1], ("x",))
    restored = checkpoint.restore(
        self.path,
        specs,
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
        num_sc_per_device=2,
        key=jax.random.key(0),
        policy=Policy(missing_tables="initialize"),
    )
    fresh = any_tables.new_variables(topology, specs)
    self.assert_same_values(
        any_tables.read(restored, specs, topology),
        values | {"days": any_tables.read(fresh, specs, topology)["days"]},
    )

  @parameterized.parameters("missing_tables", "unused_tables", "rows", "slots")
  def test_policies_are_checked(self, field):
    with self.assertRaisesRegex(ValueError, f"{field} must be one of .*'mabe'"):
      Policy(**{field: "mabe"})

  def test_a_string_is_no_list_of_tables(self):
    self.save()
    specs = any_tables.feature_specs(_ONE)
    with self.assertRaisesRegex(
        TypeError,
        r"tables must be a list of names, got 'items'. Pass \['items'\]",
    ):
      self._restored(specs, tables="items")

  @parameterized.parameters(("grow",), (None,), ({"items": "grow"},))
  def test_policies_are_no_names(self, policy):
    self.save()
    specs = any_tables.feature_specs(_ONE)
    with self.assertRaisesRegex(
        TypeError, f"policy must be a RestorePolicy or .*, got {policy!r}. Pass"
    ):
      self._restored(specs, policy=policy)
    variables = any_tables.new_variables(_ONE, specs)
    with self.assertRaisesRegex(TypeError, "policy must be a RestorePolicy"):
      checkpoint.load_tables(
          variables, specs, {"items": np.ones((1003, 12))}, policy=policy
      )

  def test_what_cannot_fit_is_not_restored(self):
    values = self.save()
    specs = any_tables.feature_specs(_ONE)
    sizes = map(np.size, jax.tree.leaves(any_tables.new_variables(_ONE, specs)))
    num_bytes = 4 * sum(sizes)
    # Nothing is twice in memory: rows are written where they stay.
    with mock.patch.object(free_memory, "free_bytes", return_value=num_bytes):
      self.assert_same_values(self._restored(specs), values)
    with (
        mock.patch.object(
            free_memory, "free_bytes", return_value=num_bytes - 1
        ),
        self.assertRaisesRegex(
            MemoryError, "146 KiB are free.*Largest, per device: items"
        ),
    ):
      self._restored(specs)

  def test_what_restore_initializes_has_to_fit_before_anything_is_made(self):
    self.save(tables=any_tables.TABLES[1:])
    specs = any_tables.feature_specs(_ONE)
    sizes = map(np.size, jax.tree.leaves(any_tables.new_variables(_ONE, specs)))
    with (
        mock.patch.object(
            free_memory, "free_bytes", return_value=4 * sum(sizes)
        ),
        mock.patch.object(_restore, "_make_padding") as make_padding,
        self.assertRaisesRegex(
            MemoryError, "of it while they are made.*Largest, per device: items"
        ),
    ):
      self._restored(
          specs,
          key=jax.random.key(0),
          policy={"items": Policy(missing_tables="initialize")},
      )
    make_padding.assert_not_called()

  def test_grown_tables_have_new_rows_as_those_of_new_tables(self):
    tables = (("items", 1003, 12), ("users", 150, 9), ("hours", 5, 12))
    values = self.save(any_tables.Topology(3, 1, "auto"))
    topology = any_tables.Topology(2, 3, "rotated")
    specs = any_tables.feature_specs(topology, tables)
    restored = any_tables.read(
        checkpoint.restore(
            self.path,
            specs,
            any_tables.sharding(topology),
            num_sc_per_device=3,
            key=jax.random.key(0),
            policy={"users": Policy(rows="grow")},
        ),
        specs,
        topology,
    )
    fresh = any_tables.read(
        any_tables.new_variables(topology, specs), specs, topology
    )
    for slot, rows in restored["users"].items():
      np.testing.assert_array_equal(rows[:130], values["users"][slot])
      np.testing.assert_array_equal(rows[130:], fresh["users"][slot][130:])
    del restored["users"], values["users"]
    self.assert_same_values(restored, values)

  def test_cropped_tables_have_the_first_rows(self):
    values = self.save()
    topology = any_tables.Topology(4, 1, "auto")
    tables = (("items", 700, 12), *any_tables.TABLES[1:])
    specs = any_tables.feature_specs(topology, tables)
    restored = checkpoint.restore(
        self.path,
        specs,
        any_tables.sharding(topology),
        num_sc_per_device=1,
        policy=Policy(rows="crop"),
    )
    values["items"] = {
        slot: rows[:700] for slot, rows in values["items"].items()
    }
    self.assert_same_values(any_tables.read(restored, specs, topology), values)

  def test_adds_renames_and_leaves_out_tables(self):
    values = self.save()
    tables = (("items_v2", 1003, 12), ("days", 7, 3))
    specs = any_tables.feature_specs(_ONE, tables)
    restored = checkpoint.restore(
        self.path,
        specs,
        any_tables.sharding(_ONE),
        num_sc_per_device=2,
        key=jax.random.key(0),
        names={"items_v2": "items"},
        policy=Policy(missing_tables="initialize", unused_tables="ignore"),
    )
    found = any_tables.read(restored, specs, _ONE)
    fresh = any_tables.read(
        any_tables.new_variables(_ONE, specs),
        specs,
        _ONE,
    )
    self.assert_same_values(
        found, {"items_v2": values["items"], "days": fresh["days"]}
    )

  def test_restores_some_tables_into_variables(self):
    values = self.save()
    specs = any_tables.feature_specs(_ONE)
    before = any_tables.values(seed=1)
    variables = any_tables.random_variables(_ONE, specs, before)
    restored = checkpoint.restore_into(
        variables, self.path, specs, tables=["users"]
    )
    self.assert_same_values(
        any_tables.read(restored, specs, _ONE),
        before | {"users": values["users"]},
    )

  def test_types_are_converted_to_nearest(self):
    values = self.save(of="sgd")
    specs = any_tables.feature_specs(_ONE, of="sgd", dtype="bfloat16")
    restored = checkpoint.restore(
        self.path,
        specs,
        any_tables.sharding(_ONE),
        num_sc_per_device=2,
    )
    for name, found in any_tables.read(restored, specs, _ONE).items():
      expected = values[name][None].astype(jax.numpy.bfloat16)
      np.testing.assert_array_equal(found[None], expected, strict=True)

  def test_numbers_beyond_the_type_are_an_error(self):
    values = any_tables.values(of="sgd")
    values["users"][None][129, 2] = 70000
    specs = any_tables.feature_specs(_ONE, of="sgd")
    variables = any_tables.random_variables(_ONE, specs, values)
    any_tables.save(self.path, variables, specs)
    with self.assertRaisesRegex(
        ValueError, "'users': row 129 has 70000.0 in column 2.*not a float16"
    ):
      checkpoint.restore(
          self.path,
          any_tables.feature_specs(_ONE, of="sgd", dtype="float16"),
          any_tables.sharding(_ONE),
          num_sc_per_device=2,
      )

  def test_infinities_are_kept(self):
    values = any_tables.values(of="sgd")
    values["users"][None][3, 2] = np.inf
    specs = any_tables.feature_specs(_ONE, of="sgd")
    variables = any_tables.random_variables(_ONE, specs, values)
    any_tables.save(self.path, variables, specs)
    specs = any_tables.feature_specs(_ONE, of="sgd", dtype="float16")
    restored = checkpoint.restore(
        self.path,
        specs,
        any_tables.sharding(_ONE),
        num_sc_per_device=2,
    )
    found = any_tables.read(restored, specs, _ONE)["users"][None]
    self.assertEqual(found[3, 2], np.inf)


if __name__ == "__main__":
  absltest.main()
