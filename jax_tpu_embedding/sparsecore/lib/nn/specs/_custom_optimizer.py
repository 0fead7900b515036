# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""An optimizer that the user writes, as a JAX function or as StableHLO."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import importlib
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core import optimizer_spec
from jax_tpu_embedding.sparsecore.lib.core import schedules


@dataclasses.dataclass(frozen=True)
class UntrustedProgram:
  """A program that came in a message whose reader did not say to trust it.

  It keeps its place in the spec, which can be written again, but is not run.
  """

  # The `stablehlo` that a spec would have.
  program: str | bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CustomOptimizerSpec(optimizer_spec.OptimizerSpec):
  """An optimizer given by its step on one row.

  The step takes the row's gradient, the row, its slots and the learning rate,
  f32[1, D] each, and returns the new row and the new slots: a tuple, or without
  slots an array. It runs for each row by itself. Of `stablehlo` and
  `custom_computation_fn` the former wins; without either the table can be
  looked up, but not updated.

  Example:

      def adagrad(grad, row, accumulator, learning_rate):
        accumulator = accumulator + grad * grad
        row = row - learning_rate * grad / jnp.sqrt(accumulator)
        return row, accumulator

      CustomOptimizerSpec(
          0.1,
          custom_computation_fn=adagrad,
          slot_variable_initializers_tuple=(jax.nn.initializers.constant(0.1),),
      )

  A program may consist of StableHLO and CHLO operations; it calls no code
  outside of it.

  Attributes:
    custom_computation_fn: the step.
    stablehlo: a module whose function `main` is the step, in place of it: text,
      bytes of it, or MLIR bytecode, which is read in a process of its own
      (seconds, once).
    slot_variable_initializers_tuple: one initializer per slot; any tuple type.
    short_name_str: a name for compiled programs.
    learning_rate: as of any optimizer, like the rest.
    skip_non_finite_gradients: whether a row, slots too, stays as it is in an
      update in which its gradient has an infinity or NaN.
    max_gradient_norm: the most that the gradient of a row may have.
    l2_weight_decay: times the row is added to its gradient.
    decoupled_weight_decay: times learning rate times the row is taken from it.

  Raises:
    TypeError: if the function or an initializer is not callable, the program is
      neither text nor bytes, or the learning rate is not one.
  """

  learning_rate: schedules.LearningRate = 0.001
  custom_computation_fn: Callable[..., Any] | None = None
  stablehlo: str | bytes | UntrustedProgram | None = None
  slot_variable_initializers_tuple: tuple[Callable[..., Any], ...] = ()
  short_name_str: str = "custom"

  def __post_init__(self):
    super().__post_init__()
    if self.custom_computation_fn is not None and not callable(
        self.custom_computation_fn
    ):
      raise TypeError(
          "CustomOptimizerSpec: custom_computation_fn must be callable, got"
          f" {self.custom_computation_fn!r}."
      )
    if not isinstance(
        self.stablehlo, (str, bytes, UntrustedProgram, type(None))
    ):
      raise TypeError(
          "CustomOptimizerSpec: stablehlo must be str or bytes, got"
          f" {type(self.stablehlo).__name__}. Pass str(module)."
      )
    if not isinstance(self.slot_variable_initializers_tuple, tuple):
      raise TypeError(
          "CustomOptimizerSpec: slot_variable_initializers_tuple must be a"
          f" tuple, got {self.slot_variable_initializers_tuple!r}."
      )
    for initializer in self.slot_variable_initializers_tuple:
      if not callable(initializer):
        raise TypeError(
            "CustomOptimizerSpec: slot_variable_initializers_tuple must have"
            f" initializers, got {initializer!r}."
        )

  def slot_variables_initializers(self) -> tuple[Any, ...]:
    return self.slot_variable_initializers_tuple

  @property
  def may_read_whole_rows(self) -> bool:
    """See OptimizerSpec: the step is given rows."""
    return True

  def get_optimizer_primitive(self) -> optimizer_spec.Primitive:
    return optimizer_spec.primitive_of("sparse_dense_matmul_optimizer_grad")

  def short_name(self) -> str:
    return self.short_name_str

  def get_static_params(self) -> dict[str, Any]:
    """See OptimizerSpec.

    Raises:
      ValueError: if the program came in a message that is not trusted.
    """
    if isinstance(self.stablehlo, UntrustedProgram):
      raise ValueError(
          f"Custom optimizer {self.short_name_str!r}: its step is a StableHLO"
          " program that came in a message, and was not read as trusted. If you"
          " know who wrote the message, read it with trust_programs=True;"
          " otherwise make the optimizer from a program of your own."
      )
    return dict(
        num_hyperparameters=1,
        custom_computation_fn=self.custom_computation_fn,
        stablehlo=self.stablehlo,
    )

  def order_operands(
      self, *, coo, table, slots, gradient, hyperparameters
  ) -> tuple[Any, ...]:
    """Gradient and hyperparameters stand before the table."""
    return (*coo, gradient, *hyperparameters, table, *slots)

  @classmethod
  def lower_to_stablehlo(
      cls,
      custom_computation_fn: Callable[..., Any],
      embedding_dim: int = 1,
      num_slot_variables: int = 0,
      num_hyperparameters: int = 1,
      min_value: float | None = None,
      max_value: float | None = None,
  ) -> str:
    """See custom_optimizer_lowering.lower_to_stablehlo."""
    return _lowering().lower_to_stablehlo(
        custom_computation_fn,
        embedding_dim,
        num_slot_variables,
        num_hyperparameters,
        min_value,
        max_value,
    )

  @classmethod
  def wrap_stablehlo_with_limits(
      cls,
      stablehlo: str | bytes,
      embedding_dim: int,
      num_slot_variables: int,
      num_hyperparameters: int,
      min_value: float | None = None,
      max_value: float | None = None,
  ) -> str:
    """See custom_optimizer_lowering.wrap_stablehlo_with_limits."""
    return _lowering().wrap_stablehlo_with_limits(
        stablehlo,
        embedding_dim,
        num_slot_variables,
        num_hyperparameters,
        min_value,
        max_value,
    )


def _lowering():
  # Imported when used: describing a table needs no MLIR.
  return importlib.import_module(
      "jax_tpu_embedding.sparsecore.lib.nn.custom_optimizer_lowering"
  )
