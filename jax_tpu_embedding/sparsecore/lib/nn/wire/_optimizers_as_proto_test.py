# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import functools
import inspect

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2
import numpy as np
import optax

_Proto = embedding_spec_pb2.OptimizerSpecProto
_SGD = embedding_spec.SGDOptimizerSpec
_CustomSpec = embedding_spec.CustomOptimizerSpec
_to_proto = embedding_proto_utils.optimizer_spec_to_proto
_from_proto = embedding_proto_utils.proto_to_optimizer_spec

_TYPES = {
    "SGD": _SGD,
    "ADAGRAD": embedding_spec.AdagradOptimizerSpec,
    "ADAM": embedding_spec.AdamOptimizerSpec,
    "FTRL": embedding_spec.FTRLOptimizerSpec,
    "F2A": embedding_spec.F2AOptimizerSpec,
    "ADAGRAD_MOMENTUM": embedding_spec.AdagradMomentumOptimizerSpec,
}
_BUILT_IN = [
    spec_class
    for _, spec_class in inspect.getmembers(embedding_spec, inspect.isclass)
    if issubclass(spec_class, embedding_spec.OptimizerSpec)
    and spec_class not in (embedding_spec.OptimizerSpec, _CustomSpec)
]


class UsersSgd(_SGD):
  """A user's optimizer without parameters of its own."""


@dataclasses.dataclass(frozen=True, eq=False)
class UsersMomentum(embedding_spec.OptimizerSpec):
  """A user's optimizer that names its parameters."""

  learning_rate: float = 0.1
  momentum: float = 0.9
  nesterov: bool = False
  _float_params = ("momentum",)
  _bool_params = ("nesterov",)

  def get_optimizer_primitive(self):
    raise NotImplementedError

  def short_name(self):
    return "momentum"


class UsersSecret(UsersMomentum):
  """A user's optimizer that names some of its parameters."""

  _bool_params = ()


class UsersRequired(_SGD):
  """A user's optimizer that cannot be made without its parameter."""

  def __init__(self, learning_rate, decay):
    super().__init__(learning_rate)
    self.decay = decay


def schedule(step):
  return step


def step_function(grad, row, accumulator, learning_rate):
  return row - learning_rate * grad, accumulator


_ZEROS = jax.nn.initializers.zeros


@st.composite
def _built_in_specs(draw):
  """Any built-in spec with parameters from its range, in float64."""
  optimizer = draw(st.sampled_from(_BUILT_IN))
  numbers = st.floats(0, 0.99, exclude_min=True)
  params = {
      field.name: draw(
          st.booleans()
          if isinstance(field.default, bool)
          else numbers
          if field.default is not None
          else st.none() | numbers  # a row option
      )
      for field in dataclasses.fields(optimizer)
  }
  return optimizer(**params)


class RoundTripTest(parameterized.TestCase):

  @hypothesis.settings(derandomize=True, deadline=None, database=None)
  @hypothesis.given(spec=_built_in_specs())
  def test_built_in_specs_lose_nothing(self, spec):
    serialized = _to_proto(spec).SerializeToString()
    restored = _from_proto(_Proto.FromString(serialized))
    self.assertIs(type(restored), type(spec))
    # Stronger than equality, which compares what reaches the device.
    self.assertEqual(vars(restored), vars(spec))

  @parameterized.parameters(
      _SGD(0.001),
      _SGD(1 / 3),
      _SGD(1e300),
      _SGD(1e-300),
      _SGD(-0.0),
      _SGD(3),
      _SGD(True),
      _SGD(jnp.float32(0.5)),
      _SGD(jnp.float32(1 / 3)),
      _SGD(jnp.bfloat16(1 / 3)),
      _SGD(np.float32(1 / 3)),
      _SGD(np.float64(1 / 3)),
      _SGD(np.array(1 / 3)),
      _SGD(jnp.ones((1,))),
      _SGD(embedding_spec.CallablePlaceholder("warm-up")),
      embedding_spec.AdamOptimizerSpec(beta_1=np.float32(0.9)),
      embedding_spec.AdagradMomentumOptimizerSpec(use_nesterov=True),
      embedding_spec.LaPropOptimizerSpec(0.5, b1=0.1, eps=1e-30),
      _CustomSpec(),
      _SGD(max_gradient_norm=1 / 3, l2_weight_decay=0),
      _SGD(skip_non_finite_gradients=True),
      embedding_spec.FTRLOptimizerSpec(
          skip_non_finite_gradients=np.bool_(True)
      ),
      _CustomSpec(0.5, skip_non_finite_gradients=True, l2_weight_decay=0.5),
      _CustomSpec(0.5, max_gradient_norm=2, decoupled_weight_decay=1 / 3),
      _CustomSpec(0.5, stablehlo="module {}", short_name_str="mine"),
      _CustomSpec(0.5, stablehlo=b"ML\xefR\x00"),
      _CustomSpec(0.5, stablehlo=""),
  )
  def test_loses_nothing(self, spec):
    restored = _from_proto(_to_proto(spec), trust_programs=True)
    self.assertIs(type(restored), type(spec))
    self.assertEqual(restored, spec)

  @parameterized.parameters(
      _SGD(schedule),
      _SGD(optax.linear_schedule(1.0, 0.0, 10)),
      _SGD(functools.partial(schedule)),
      _CustomSpec(schedule, step_function, None, (_ZEROS, _ZEROS)),
      _CustomSpec(
          lambda: 0.5,
          step_function,
          None,
          (
              jax.nn.initializers.constant(0.1),
              jax.nn.initializers.constant(0.2),
          ),
      ),
  )
  def test_functions_come_back_by_their_tags(self, spec):
    message = _to_proto(spec)
    functions = [
        spec.learning_rate,
        getattr(spec, "custom_computation_fn", None),
        *spec.slot_variables_initializers(),
    ]
    tags = [
        message.learning_rate_tag,
        message.custom.computation_tag,
        *message.custom.slot_initializer_tags,
    ]
    callables = dict(zip(tags, functions, strict=True))
    self.assertEqual(_from_proto(message, callables), spec)
    placeholders = _from_proto(message)
    self.assertEqual(
        placeholders.learning_rate, embedding_spec.CallablePlaceholder(tags[0])
    )
    # Written again, the names are the same.
    self.assertEqual(_to_proto(placeholders), message)

  @parameterized.parameters(
      UsersSgd(0.5),
      UsersMomentum(0.5, 1 / 3),
      UsersMomentum(nesterov=True),
      UsersMomentum(0.5, decoupled_weight_decay=0.1),
      UsersMomentum(0.5, skip_non_finite_gradients=True),
  )
  def test_users_classes_come_back_by_their_names(self, spec):
    message = _to_proto(spec)
    name = f"{__name__}.{type(spec).__name__}"
    self.assertEqual(message.custom_type, name)
    self.assertEqual(_from_proto(message, {name: type(spec)}), spec)
    with self.assertRaisesRegex(ValueError, f"callables={{'{name}': the class"):
      _from_proto(message)

  @parameterized.parameters(
      (UsersSecret(nesterov=True), "Name all .* of UsersSecret"),
      (UsersRequired(0.5, 0.1), "read as TypeError.* of UsersRequired"),
  )
  def test_parameters_that_would_be_lost_are_an_error(self, spec, message):
    with self.assertRaisesRegex(ValueError, f"cannot be written.*{message}"):
      _to_proto(spec)


class ProgramTest(parameterized.TestCase):

  @parameterized.parameters("module {}", b"module {}")
  def test_untrusted_program_describes_its_table_but_does_not_run(
      self, program
  ):
    message = _to_proto(_CustomSpec(0.5, stablehlo=program))
    spec = _from_proto(message)
    self.assertEqual(spec.get_learning_rate(), 0.5)
    self.assertEqual(_from_proto(message), spec)
    with self.assertRaisesRegex(ValueError, "'custom'.*trust_programs=True"):
      spec.get_static_params()
    # Written again, it is the same message.
    self.assertEqual(_to_proto(spec), message)

  def test_trusted_program_is_the_one_that_was_written(self):
    spec = _from_proto(
        _to_proto(_CustomSpec(stablehlo="module {}")), trust_programs=True
    )
    self.assertEqual(spec.get_static_params()["stablehlo"], "module {}")

  @parameterized.parameters(
      dict(stablehlo_text="module { }"),
      dict(stablehlo_bytes=b"ML\xefR\x00"),
      dict(stablehlo_sha256=b""),
  )
  def test_damaged_program_is_an_error_for_every_reader(self, **damage):
    message = _to_proto(_CustomSpec(stablehlo="module {}"))
    for field, value in damage.items():
      setattr(message.custom, field, value)
    for trust_programs in (False, True):
      with self.assertRaisesRegex(ValueError, "damaged.*SHA-256"):
        _from_proto(message, trust_programs=trust_programs)


class WireFormatTest(parameterized.TestCase):

  @parameterized.parameters(*_TYPES.items())
  def test_types_of_classes(self, type_name, optimizer_class):
    optimizer_type = _Proto.OptimizerType.Value(type_name)
    self.assertEqual(
        embedding_proto_utils.get_optimizer_type(optimizer_class),
        optimizer_type,
    )
    self.assertIs(
        embedding_proto_utils.get_optimizer_class(optimizer_type),
        optimizer_class,
    )

  @parameterized.parameters(
      embedding_spec.LaPropOptimizerSpec, _CustomSpec, UsersSgd
  )
  def test_classes_without_a_type_are_custom(self, optimizer_class):
    self.assertEqual(
        embedding_proto_utils.get_optimizer_type(optimizer_class), _Proto.CUSTOM
    )

  @parameterized.parameters(_Proto.CUSTOM, 0, 99)
  def test_other_types_have_no_class(self, optimizer_type):
    self.assertIsNone(embedding_proto_utils.get_optimizer_class(optimizer_type))

  def test_float_fields_are_written_for_older_readers(self):
    spec = embedding_spec.AdagradOptimizerSpec(1 / 3, 1 / 7)
    message = _to_proto(spec)
    self.assertEqual(message.learning_rate, np.float32(1 / 3))
    self.assertEqual(
        message.float_params["initial_accumulator_value"], np.float32(1 / 7)
    )
    self.assertEqual(message.exact_learning_rate, 1 / 3)
    self.assertEqual(
        message.exact_float_params, {"initial_accumulator_value": 1 / 7}
    )

  def test_short_decimals_need_no_new_field(self):
    message = _to_proto(embedding_spec.AdamOptimizerSpec())
    expected = _Proto(type=_Proto.ADAM, learning_rate=0.001)
    expected.float_params.update(beta_1=0.9, beta_2=0.999, epsilon=1e-8)
    self.assertEqual(message, expected)
    self.assertEqual(
        vars(_from_proto(message)), vars(embedding_spec.AdamOptimizerSpec())
    )

  def test_option_that_is_off_is_not_written(self):
    for optimizer in (_SGD, _CustomSpec):
      self.assertEmpty(_to_proto(optimizer(0.5)).bool_params)
      message = _to_proto(optimizer(0.5, skip_non_finite_gradients=True))
      self.assertEqual(message.bool_params, {"skip_non_finite_gradients": True})

  def test_float_that_an_older_program_changed_counts(self):
    message = _to_proto(embedding_spec.AdagradOptimizerSpec(1 / 3, 1 / 7))
    message.learning_rate = 0.5
    message.float_params["initial_accumulator_value"] = 0.25
    self.assertEqual(
        _from_proto(message), embedding_spec.AdagradOptimizerSpec(0.5, 0.25)
    )

  def test_nothing_becomes_sgd(self):
    self.assertIsNone(_to_proto(None))
    self.assertEqual(_from_proto(None), _SGD(0.0))

  @parameterized.parameters(_Proto.CUSTOM, _Proto.OPTIMIZER_TYPE_UNSPECIFIED)
  def test_unspecified_types_become_sgd(self, optimizer_type):
    message = _Proto(type=optimizer_type, learning_rate=0.5)
    self.assertEqual(_from_proto(message), _SGD(0.5))

  def test_unknown_types_raise(self):
    with self.assertRaisesRegex(ValueError, "type 99 is not .*SGD, ADAGRAD"):
      _from_proto(_Proto(type=99))


if __name__ == "__main__":
  absltest.main()
