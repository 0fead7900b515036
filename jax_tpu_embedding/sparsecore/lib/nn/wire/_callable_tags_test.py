# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import schedules
from jax_tpu_embedding.sparsecore.lib.nn.wire import _callable_tags
import numpy as np
import optax


class Tagged:
  tag = "warm-up"

  def __call__(self, step):
    return step


class Untagged:

  def __call__(self, step):
    return step


def schedule(step):
  return step


anonymous = lambda step: step


def make(scale, inner=None):
  return lambda step: scale * (inner(step) if inner else step)


def make_with_keyword(scale):
  def keyword(step, *, scale=scale):
    return scale * step

  return keyword


def make_unset():
  def unset(step):
    return later(step)

  if False:
    later = schedule  # pylint: disable=unreachable
  return unset


class TagOfTest(parameterized.TestCase):

  @parameterized.parameters(
      (Tagged(), "warm-up"),
      (schedules.CallablePlaceholder("x"), "x"),
      (schedule, f"{__name__}.schedule"),
      (jax.jit(schedule), f"{__name__}.schedule"),
      (Tagged().__call__, f"{__name__}.Tagged.__call__"),
      (jax.nn.initializers.zeros, "jax.nn.initializers.zeros"),
      (anonymous, f"function_{id(anonymous)}"),
      (
          make_with_keyword(3),
          f"{__name__}.make_with_keyword.<locals>.keyword(scale=3)",
      ),
      (make_unset(), f"{__name__}.make_unset.<locals>.unset"),
      (
          optax.linear_schedule(1.0, 0.0, 10),
          optax.linear_schedule(1, 0, 1).__module__
          + ".polynomial_schedule.<locals>.schedule(end_value=0.0,"
          " init_value=1.0, power=1, transition_begin=0, transition_steps=10)",
      ),
  )
  def test_is_readable(self, function, tag):
    self.assertEqual(_callable_tags.tag_of(function), tag)

  @parameterized.parameters(Untagged(), functools.partial(schedule))
  def test_objects_are_told_apart_by_identity(self, function):
    self.assertEqual(
        _callable_tags.tag_of(function),
        f"{type(function).__name__}_{id(function)}",
    )

  def test_lambdas_say_their_line_and_what_they_captured(self):
    self.assertRegex(
        _callable_tags.tag_of(make(0.5)),
        rf"^{__name__}.make.<locals>.<lambda>:\d+\(inner=None, scale=0.5\)$",
    )

  @parameterized.parameters(
      (np.float32(0.5), "0.5"),
      (jax.numpy.arange(2), r"\[0, 1\]"),
      ((1, "a"), r"\[1, 'a'\]"),
      ({"a": 1}, r"\{'a': 1\}"),
      (np.dtype("int8"), "int8"),
      (jax.numpy.float32, "jax.*float32"),
      (object(), "object"),
  )
  def test_captured_values_are_described_without_addresses(self, value, text):
    self.assertRegex(_callable_tags.tag_of(make(value)), f"scale={text}\\)$")

  def test_long_descriptions_end_in_a_hash(self):
    a, b = (
        _callable_tags.tag_of(make(list(range(200)) + [last]))
        for last in (1, 2)
    )
    self.assertLess(len(a), 300)
    self.assertNotEqual(a, b)

  def test_functions_that_capture_themselves_have_a_tag(self):
    def recursive(step):
      return recursive(step)

    self.assertIn("recursive=", _callable_tags.tag_of(recursive))

  @parameterized.parameters(
      (optax.linear_schedule(1.0, 0.0, 10), optax.linear_schedule(1.0, 0.0, 9)),
      (
          optax.cosine_decay_schedule(1.0, 9),
          optax.cosine_decay_schedule(0.5, 9),
      ),
      (
          optax.join_schedules(
              [optax.linear_schedule(0.0, 1.0, 9), schedule], [9]
          ),
          optax.join_schedules(
              [optax.linear_schedule(0.0, 2.0, 9), schedule], [9]
          ),
      ),
      (make(1, make(2)), make(1, schedule)),
  )
  def test_schedules_of_one_factory_have_two_tags(self, a, b):
    self.assertNotEqual(_callable_tags.tag_of(a), _callable_tags.tag_of(b))


class CallableTagsTest(absltest.TestCase):

  def test_tags_are_equal_only_for_equal_functions(self):
    tags = _callable_tags.CallableTags()
    first, second, third = make(1), make(1), make(1)
    tag = tags.tag(first)
    self.assertEqual(tags.tag(second), f"{tag}#2")
    self.assertEqual(tags.tag(third), f"{tag}#3")
    self.assertEqual(tags.tag(second), f"{tag}#2")
    self.assertEqual(
        tags.functions, {tag: first, f"{tag}#2": second, f"{tag}#3": third}
    )

  def test_equal_functions_need_not_be_one_object(self):
    tags = _callable_tags.CallableTags()
    scheduler = Untagged()
    self.assertEqual(tags.tag(scheduler.__call__), tags.tag(scheduler.__call__))
    placeholder = schedules.CallablePlaceholder
    self.assertEqual(tags.tag(placeholder("x")), "x")
    self.assertEqual(tags.tag(placeholder("x")), "x")


if __name__ == "__main__":
  absltest.main()
