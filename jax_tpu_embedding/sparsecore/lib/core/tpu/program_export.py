# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Programs for TPU as bytes: exported on any machine, loaded on another.

jax.export keeps the layouts of arguments and results, and which of them share
memory, in the program, but jax.jit of what it gives back does not look there: it
would copy every table to the layout that XLA prefers and back. Here they are read
and repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
import re
from typing import Any

import jax
from jax import export
from jax.experimental import layout
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import calls

# Attributes of the arguments and results of a module's function main.
_LAYOUT = "mhlo.layout_mode"
_SHARES_MEMORY = ("tf.aliasing_output", "jax.buffer_donor")

# "{1,0:T(8)}": dimensions from minor to major, then tiles.
_LAYOUT_TEXT = re.compile(r"\{([\d,]*)(?::T((?:\([\d,]+\))+))?\}")


def export_program(jitted: jax.stages.Wrapped, *args: Any) -> export.Exported:
  """A program for TPU. `.serialize()` makes bytes of it.

  Args:
    jitted: a function from jax.jit, with its layouts and donation.
    *args: arrays or jax.ShapeDtypeStructs with shardings, or layouts, on a mesh
      with as many devices as the program will have.
  """
  return export.export(
      jitted,
      platforms=("tpu",),
      # JAX does not promise that the calls of SparseCores keep their meaning.
      disabled_checks=[
          export.DisabledSafetyCheck.custom_call(target)
          for target in calls.TARGETS
      ],
  )(*args)


def load_program(
    exported: export.Exported, mesh: jax.sharding.Mesh
) -> jax.stages.Wrapped:
  """The function of `exported` with its layouts, shardings and donation.

  Args:
    exported: from `export_program`, or from jax.export.deserialize.
    mesh: the devices; as many, and with the axes, that it was exported for.

  Returns:
    A function from jax.jit. It can be called, or lowered and compiled.

  Raises:
    ValueError: if the mesh has another number of devices, or the function has
      keyword arguments.
  """
  if mesh.size != exported.nr_devices:
    raise ValueError(
        f"The program was exported for {exported.nr_devices} devices; the mesh"
        f" has {mesh.size}. Load it on a mesh like the one of the export."
    )
  args, kwargs = jax.tree.unflatten(
      exported.in_tree, range(exported.in_tree.num_leaves)
  )
  if kwargs:
    raise ValueError(
        f"The exported function has keyword arguments, {sorted(kwargs)}, which"
        " jax.jit gives no layouts. Export it with positional arguments."
    )
  arguments, results = _attributes(exported)
  in_formats = _formats(exported.in_shardings_jax(mesh), arguments)
  out_formats = _formats(exported.out_shardings_jax(mesh), results)
  return jax.jit(
      exported.call,
      in_shardings=jax.tree.map(in_formats.__getitem__, args),
      out_shardings=jax.tree.unflatten(exported.out_tree, out_formats),
      donate_argnums=[
          number
          for number, leaves in enumerate(args)
          if any(
              attribute in arguments[leaf]
              for leaf in jax.tree.leaves(leaves)
              for attribute in _SHARES_MEMORY
          )
      ],
  )


def _attributes(
    exported: export.Exported,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
  """The attributes of every argument, and of every result."""
  with mlir.make_ir_context() as context:
    module = mlir.ir.Module.parse(exported.mlir_module(), context)
    main = mlir.ir.SymbolTable(module.operation)["main"]
    of_kept, of_results = (
        [_named(of_one) for of_one in mlir.ir.ArrayAttr(attributes)]
        for attributes in (main.arg_attrs, main.result_attrs)
    )
  # Arguments that the function does not use are not in the module.
  of_arguments = [{} for _ in exported.in_avals]
  for index, attributes in zip(
      exported.module_kept_var_idx, of_kept, strict=True
  ):
    of_arguments[index] = attributes
  return of_arguments, of_results


def _named(attributes: mlir.ir.Attribute) -> dict[str, Any]:
  """Names with Python values, which outlive the module."""
  return {
      named.name: getattr(named.attr, "value", True)
      for named in mlir.ir.DictAttr(attributes)
  }


def _formats(
    shardings: Sequence[jax.sharding.Sharding | None],
    attributes: Sequence[dict[str, Any]],
) -> list[layout.Format | jax.sharding.Sharding | None]:
  """Each sharding with the layout that the attributes say, if they do."""
  formats = []
  for sharding, of_one in zip(shardings, attributes, strict=True):
    text = of_one.get(_LAYOUT, "default")
    if text != "default":
      sharding = layout.Format(parse_layout(text), sharding)
    formats.append(sharding)
  return formats


def parse_layout(text: str) -> layout.Layout:
  """A layout as XLA writes it.

  >>> parse_layout("{1,0:T(8)}")
  Layout(major_to_minor=(0, 1), tiling=((8,),), sub_byte_element_size_in_bits=0)

  Raises:
    ValueError: if it has more than dimensions and tiles.
  """
  match = _LAYOUT_TEXT.fullmatch(text)
  if match is None:
    raise ValueError(
        f"The layout {text!r} is not of the form '{{1,0:T(8)}}', dimensions and"
        " tiles."
    )
  minor_to_major = [int(d) for d in match[1].split(",") if d]
  tiles = re.findall(r"\(([\d,]+)\)", match[2] or "")
  return layout.Layout(
      major_to_minor=tuple(reversed(minor_to_major)),
      tiling=tuple(tuple(map(int, tile.split(","))) for tile in tiles) or None,
  )
