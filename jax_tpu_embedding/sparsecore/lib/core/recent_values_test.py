# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.lib.core import recent_values


class RecentValuesTest(absltest.TestCase):

  def test_makes_a_value_once(self):
    cache = recent_values.RecentValues(max_size=2)
    made = [cache.get("a", object) for _ in range(2)]
    self.assertIs(made[0], made[1])
    self.assertIsNot(cache.get("b", object), made[0])

  def test_forgets_what_was_asked_for_the_longest_time_ago(self):
    cache = recent_values.RecentValues(max_size=2)
    for key in ("a", "b", "a", "c"):
      cache.get(key, lambda key=key: f"first {key}")
    self.assertEqual(
        [cache.get(key, lambda: "second") for key in ("a", "c", "b")],
        ["first a", "first c", "second"],
    )

  def test_keeps_no_value_that_could_not_be_made(self):
    cache = recent_values.RecentValues(max_size=2)
    with self.assertRaisesRegex(ValueError, "invalid literal"):
      cache.get("a", lambda: int("?"))
    self.assertEqual(cache.get("a", lambda: 1), 1)

  def test_of_two_values_that_are_made_at_once_the_first_is_kept(self):
    cache = recent_values.RecentValues(max_size=2)

    def make():
      cache.get("a", lambda: "first")  # as another thread would meanwhile
      return "second"

    self.assertEqual(cache.get("a", make), "first")


if __name__ == "__main__":
  absltest.main()
