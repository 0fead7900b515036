# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Optimizer specs to and from the wire format, lib/proto/embedding_spec.proto.

What is written is read back as an equal spec, or it is not written at all.
Functions are the exception: a message holds their tags, and the reader brings
the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import hashlib
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core import optimizer_spec
from jax_tpu_embedding.sparsecore.lib.core import row_options as options
from jax_tpu_embedding.sparsecore.lib.core import schedules
from jax_tpu_embedding.sparsecore.lib.nn.specs import _custom_optimizer
from jax_tpu_embedding.sparsecore.lib.nn.specs import _optimizers
from jax_tpu_embedding.sparsecore.lib.nn.wire import _callable_tags
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2 as pb
import numpy as np

_Proto = pb.OptimizerSpecProto
_SpecClass = type[optimizer_spec.OptimizerSpec]

# The types that every reader of the format knows: it grows by names below.
_OPTIMIZER_CLASSES: dict[int, _SpecClass] = {
    _Proto.SGD: _optimizers.SGDOptimizerSpec,
    _Proto.ADAGRAD: _optimizers.AdagradOptimizerSpec,
    _Proto.ADAM: _optimizers.AdamOptimizerSpec,
    _Proto.FTRL: _optimizers.FTRLOptimizerSpec,
    _Proto.F2A: _optimizers.F2AOptimizerSpec,
    _Proto.ADAGRAD_MOMENTUM: _optimizers.AdagradMomentumOptimizerSpec,
}
# Those that share the type CUSTOM, by `custom_type`. To add an optimizer to the
# wire format: a row here, and its name in the comment on that field.
_CUSTOM_CLASSES: dict[str, _SpecClass] = {
    "laprop": _optimizers.LaPropOptimizerSpec,
    "rowwise_adagrad": _optimizers.RowwiseAdagradOptimizerSpec,
    "momentum": _optimizers.MomentumOptimizerSpec,
    "lion": _optimizers.LionOptimizerSpec,
    "custom": _custom_optimizer.CustomOptimizerSpec,
}


def get_optimizer_class(optimizer_type: int) -> _SpecClass | None:
  """The spec class of a type, or None if it has none."""
  return _OPTIMIZER_CLASSES.get(optimizer_type)


def get_optimizer_type(optimizer_class: _SpecClass) -> int:
  """The type of a spec class: CUSTOM for any that has none, subclasses too."""
  for optimizer_type, known_class in _OPTIMIZER_CLASSES.items():
    if optimizer_class is known_class:
      return optimizer_type
  return _Proto.CUSTOM


def optimizer_spec_to_proto(
    optimizer: optimizer_spec.OptimizerSpec | None,
    tags: _callable_tags.CallableTags | None = None,
) -> _Proto | None:
  """The message of a spec; None for None.

  Args:
    optimizer: the spec.
    tags: tells apart the functions of several specs; default: of this one.

  Raises:
    ValueError: if an optimizer of a user has parameters that are neither in
      `_float_params` nor in `_bool_params` of its class.
  """
  if optimizer is None:
    return None
  if tags is None:
    tags = _callable_tags.CallableTags()
  message = _Proto(type=get_optimizer_type(type(optimizer)))
  rate = optimizer.learning_rate
  if callable(rate):
    message.learning_rate_tag = tags.tag(rate)
  else:
    rate = np.asarray(rate).item()
    message.learning_rate = rate
    if _shortest(message.learning_rate) != rate:
      message.exact_learning_rate = rate
  for name, value in optimizer.get_float_params().items():
    message.float_params[name] = value
    if _shortest(message.float_params[name]) != value:
      message.exact_float_params[name] = value
  message.bool_params.update(optimizer.get_bool_params())
  if message.type == _Proto.CUSTOM:
    message.custom_type = _custom_type(type(optimizer))
  if type(optimizer) is _custom_optimizer.CustomOptimizerSpec:
    _write_custom(optimizer, tags, message.custom)
  _check_reads_back(optimizer, message, tags)
  return message


def proto_to_optimizer_spec(
    message: _Proto | None,
    callables: Mapping[str, Callable[..., Any]] | None = None,
    *,
    trust_programs: bool = False,
) -> optimizer_spec.OptimizerSpec:
  """The spec of a message.

  Where the message does not say which optimizer it was (no message, no type,
  CUSTOM in an older message) the result is SGD.

  Args:
    message: as optimizer_spec_to_proto made it.
    callables: functions by their tags, for learning rates and for what a custom
      optimizer is made of; classes of users' optimizers by module and name. A
      function that is not here becomes a CallablePlaceholder.
    trust_programs: whether the StableHLO program of a custom optimizer may run.
      It runs in this process: pass True only for messages from those who might
      run programs here anyway. Otherwise the spec describes its table, and
      raises a ValueError when the table is updated.

  Raises:
    ValueError: if the message has a type that this version does not know, or
      that of a user's optimizer whose class is not in `callables`; if its
      parameters are none that the optimizer can have, or its program is
      damaged.
  """
  callables = callables or {}
  if message is None:
    return _optimizers.SGDOptimizerSpec(learning_rate=0.0)
  if message.WhichOneof("learning_rate_spec") == "learning_rate_tag":
    rate = _function(message.learning_rate_tag, callables)
  else:
    rate = _exact(
        message.learning_rate,
        message.exact_learning_rate
        if message.HasField("exact_learning_rate")
        else None,
    )
  optimizer_class = _class_of(message, callables)
  float_params = {
      name: _exact(value, message.exact_float_params.get(name))
      for name, value in message.float_params.items()
  }
  if optimizer_class is _custom_optimizer.CustomOptimizerSpec:
    row_options = float_params | {
        name: message.bool_params[name]
        for name in options.FLAGS
        if name in message.bool_params
    }
    return _read_custom(
        message.custom, rate, row_options, callables, trust_programs
    )
  return optimizer_class.from_float_and_bool_params(
      float_params, message.bool_params, rate
  )


def _class_of(
    message: _Proto, callables: Mapping[str, Callable[..., Any]]
) -> _SpecClass:
  if message.type in _OPTIMIZER_CLASSES:
    return _OPTIMIZER_CLASSES[message.type]
  if message.type == _Proto.CUSTOM and message.custom_type:
    known = _CUSTOM_CLASSES | dict(callables)
    if message.custom_type in known:
      return known[message.custom_type]
    raise ValueError(
        f"The optimizer is of the class {message.custom_type}, of which the"
        " message holds the name only. Pass callables="
        f"{{{message.custom_type!r}: the class}}."
    )
  if message.type in (_Proto.OPTIMIZER_TYPE_UNSPECIFIED, _Proto.CUSTOM):
    return _optimizers.SGDOptimizerSpec
  names = map(_Proto.OptimizerType.Name, _OPTIMIZER_CLASSES)
  raise ValueError(
      f"Optimizer type {message.type} is not one of those known:"
      f" {', '.join(names)}. The message was written by another version of the"
      " package."
  )


def _custom_type(optimizer_class: _SpecClass) -> str:
  for name, known_class in _CUSTOM_CLASSES.items():
    if optimizer_class is known_class:
      return name
  return f"{optimizer_class.__module__}.{optimizer_class.__qualname__}"


def _write_custom(
    optimizer: _custom_optimizer.CustomOptimizerSpec,
    tags: _callable_tags.CallableTags,
    message: pb.CustomOptimizerProto,
) -> None:
  message.SetInParent()
  if optimizer.custom_computation_fn is not None:
    message.computation_tag = tags.tag(optimizer.custom_computation_fn)
  program = optimizer.stablehlo
  if isinstance(program, _custom_optimizer.UntrustedProgram):
    program = program.program
  if isinstance(program, bytes):
    message.stablehlo_bytes = program
  elif program is not None:
    message.stablehlo_text = program
  if program is not None:
    message.stablehlo_sha256 = _sha256(program)
  message.slot_initializer_tags.extend(
      map(tags.tag, optimizer.slot_variable_initializers_tuple)
  )
  message.short_name = optimizer.short_name_str


def _read_custom(
    message: pb.CustomOptimizerProto,
    rate: schedules.LearningRate,
    row_options: Mapping[str, float | bool],
    callables: Mapping[str, Callable[..., Any]],
    trust_programs: bool,
) -> _custom_optimizer.CustomOptimizerSpec:
  program = _program(message)
  if program is not None and not trust_programs:
    program = _custom_optimizer.UntrustedProgram(program)
  return _custom_optimizer.CustomOptimizerSpec(
      learning_rate=rate,
      custom_computation_fn=(
          _function(message.computation_tag, callables)
          if message.computation_tag
          else None
      ),
      stablehlo=program,
      slot_variable_initializers_tuple=tuple(
          _function(tag, callables) for tag in message.slot_initializer_tags
      ),
      short_name_str=message.short_name,
      **row_options,
  )


def _program(message: pb.CustomOptimizerProto) -> str | bytes | None:
  """The program as it was written; raises ValueError if it is another one."""
  field = message.WhichOneof("stablehlo")
  if field is None:
    return None
  program = getattr(message, field)
  if _sha256(program) != message.stablehlo_sha256:
    raise ValueError(
        f"Custom optimizer {message.short_name!r}: the StableHLO program in the"
        " message is damaged: it does not have the SHA-256 that the message"
        " states. Write the message again."
    )
  return program


def _sha256(program: str | bytes) -> bytes:
  data = program.encode() if isinstance(program, str) else program
  return hashlib.sha256(data).digest()


def _function(
    tag: str, callables: Mapping[str, Callable[..., Any]]
) -> Callable[..., Any]:
  return callables.get(tag, schedules.CallablePlaceholder(tag))


def _shortest(value: float) -> float:
  """The shortest decimal that rounds to a float32: 0.1, not 0.10000000149."""
  return float(str(np.float32(value)))


def _exact(value: float, exact: float | None) -> float:
  """What was rounded to `value`: `exact`, unless `value` was changed since."""
  if exact is not None:
    with np.errstate(over="ignore"):  # Beyond float32 is infinite in both.
      if np.float32(exact) == np.float32(value):
        return exact
  return _shortest(value)


def _check_reads_back(
    optimizer: optimizer_spec.OptimizerSpec,
    message: _Proto,
    tags: _callable_tags.CallableTags,
) -> None:
  """Raises ValueError if the message does not hold all of the spec."""
  callables = {**tags.functions, message.custom_type: type(optimizer)}
  is_untrusted = isinstance(
      getattr(optimizer, "stablehlo", None),
      _custom_optimizer.UntrustedProgram,
  )
  try:
    restored = proto_to_optimizer_spec(
        message, callables, trust_programs=not is_untrusted
    )
  except TypeError as error:
    restored = error  # The constructor needs more than the message holds.
  if restored != optimizer:
    raise ValueError(
        f"Optimizer {optimizer!r} cannot be written to a proto: it would be"
        f" read as {restored!r}. Name all of its parameters in _float_params or"
        f" _bool_params of {type(optimizer).__name__}."
    )
