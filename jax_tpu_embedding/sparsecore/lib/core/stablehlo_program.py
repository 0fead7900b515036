# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A StableHLO program as a JAX function.

Source: https://openxla.org/stablehlo/spec, "Programs" and "Functions".
"""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from typing import Any

import jax
from jax.extend import core
from jax.extend.mlir.dialects import func
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import jax_private
import numpy as np

# The first bytes of MLIR bytecode; other modules are text.
_BYTECODE_MAGIC = b"ML\xefR"
# What a program may consist of. Only a custom call names code of the process,
# and may hand it addresses as numbers.
_DIALECTS = frozenset(("builtin", "chlo", "func", "stablehlo", "sdy"))
_CUSTOM_CALL = "stablehlo.custom_call"
# Custom calls that XLA replaces by operations of its own, such as mhlo.erf.
_SAFE_CALL_TARGETS = ("chlo.", "mhlo.")

# Bytecode in, text out.
_DISASSEMBLE = """
import sys
from jax.interpreters import mlir
with mlir.make_ir_context() as context:
  module = mlir.ir.Module.parse(sys.stdin.buffer.read(), context)
  sys.stdout.buffer.write(str(module).encode())
"""
# It starts Python and imports JAX.
_DISASSEMBLE_SECONDS = 120


@dataclasses.dataclass(frozen=True)
class StablehloProgram:
  """The function `main` of a module, of float32 arrays.

  `jax.vmap` runs it once per element, one after the other: it has fixed shapes.

  Raises (when it is called):
    ValueError: if the module cannot be parsed, has no function `main`, has
      operations that call code outside of it, or is called with arguments of
      other shapes.
  """

  module: str | bytes  # text, also as UTF-8, or MLIR bytecode

  def __call__(self, *args: jax.Array) -> tuple[jax.Array, ...]:
    @jax.custom_batching.sequential_vmap
    def call(*args):
      return tuple(call_stablehlo_p.bind(*args, program=self))

    return call(*args)


def _abstract_eval(
    *args: jax.core.ShapedArray, program: StablehloProgram
) -> tuple[jax.core.ShapedArray, ...]:
  parameters, results = _signature(program)
  given = tuple(tuple(arg.shape) for arg in args)
  if given != parameters or any(arg.dtype != np.float32 for arg in args):
    raise ValueError(
        "The function main of the StableHLO program takes float32 arrays of"
        f" shapes {_listed(parameters)}; it was called with"
        f" {', '.join(arg.str_short() for arg in args)}."
    )
  return tuple(jax.core.ShapedArray(shape, np.float32) for shape in results)


@functools.lru_cache(maxsize=64)
def _signature(program: StablehloProgram) -> tuple[Any, Any]:
  """The shapes of the parameters and of the results of main."""
  with mlir.make_ir_context() as context:
    function_type = _main(_parse(program, context)).type
    return _shapes(function_type.inputs), _shapes(function_type.results)


def _parse(
    program: StablehloProgram, context: mlir.ir.Context
) -> mlir.ir.Module:
  try:
    module = mlir.ir.Module.parse(_text(program.module), context)
  except mlir.ir.MLIRError as error:
    raise ValueError(f"Not a StableHLO module: {error}") from error
  _check_operations(module)
  return module


def _text(module: str | bytes) -> str:
  if isinstance(module, str):
    return module
  if module.startswith(_BYTECODE_MAGIC):
    return _disassemble(module)
  try:
    return module.decode()
  except UnicodeDecodeError as error:
    raise ValueError(
        f"Not a StableHLO module: neither MLIR bytecode nor text ({error})."
    ) from error


@functools.lru_cache(maxsize=64)
def _disassemble(bytecode: bytes) -> str:
  """The text of a module, from a child process.

  MLIR's reader of bytecode ends its process on some damaged bytes; that of text
  does not.
  """
  try:
    done = subprocess.run(
        [sys.executable, "-c", _DISASSEMBLE],
        input=bytecode,
        capture_output=True,
        check=False,
        timeout=_DISASSEMBLE_SECONDS,
    )
  except subprocess.TimeoutExpired as error:
    raise ValueError(
        "Not a StableHLO module: its bytecode was not read within"
        f" {_DISASSEMBLE_SECONDS} seconds."
    ) from error
  if done.returncode:
    reason = done.stderr.decode(errors="replace").strip().splitlines()[-4:]
    raise ValueError(
        "Not a StableHLO module: its bytecode cannot be read"
        f" ({' '.join(reason)})."
    )
  return done.stdout.decode()


def _check_operations(module: mlir.ir.Module) -> None:
  """Raises ValueError if something in it reaches code outside of it."""
  found = set()

  def visit(operation):
    name = operation.name
    if name == _CUSTOM_CALL:
      target = operation.attributes["call_target_name"].value
      if not target.startswith(_SAFE_CALL_TARGETS):
        found.add(f"{name} @{target}")
    elif name.partition(".")[0] not in _DIALECTS:
      found.add(name)
    return mlir.ir.WalkResult.ADVANCE

  module.operation.walk(visit)
  if found:
    raise ValueError(
        "The StableHLO program has operations that it may not have:"
        f" {', '.join(sorted(found))}. It may consist of StableHLO and CHLO, and"
        " call no code outside of it. Give the step as custom_computation_fn."
    )


def _main(module: mlir.ir.Module) -> func.FuncOp:
  symbols = mlir.ir.SymbolTable(module.operation)
  if "main" not in symbols:
    raise ValueError("The StableHLO module has no function named main.")
  return symbols["main"]


def _shapes(types) -> tuple[tuple[int, ...], ...]:
  shapes = []
  for t in types:
    if (
        not isinstance(t, mlir.ir.RankedTensorType)
        or not t.has_static_shape
        or not isinstance(t.element_type, mlir.ir.F32Type)
    ):
      raise ValueError(
          "The function main of the StableHLO program must take and return"
          f" float32 tensors of fixed shapes; it has one of type {t}."
      )
    shapes.append(tuple(t.shape))
  return tuple(shapes)


def _listed(shapes) -> str:
  return ", ".join(str(list(shape)) for shape in shapes) or "none"


def _lower(ctx: mlir.LoweringRuleContext, *args, program: StablehloProgram):
  module = _parse(program, ctx.module_context.context)
  results = list(_main(module).type.results)
  name = jax_private.add_module(ctx, "orig_custom_optimizer", module)
  call = func.CallOp(results, mlir.ir.FlatSymbolRefAttr.get(name), args)
  return call.results


call_stablehlo_p = core.Primitive("call_stablehlo")
call_stablehlo_p.multiple_results = True
call_stablehlo_p.def_impl(lambda *args, program: jax.jit(program)(*args))
call_stablehlo_p.def_abstract_eval(_abstract_eval)
mlir.register_lowering(call_stablehlo_p, _lower)
