# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Draws which core of which device wrote which rows.

    bazel run //examples/pallas:who_did_what -- --picture=/tmp/cores.png

Each worker writes its own number into the rows that it is given, so that the
picture is of what ran.
"""

from absl import app
from absl import flags
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
import numpy as np
import running

_PICTURE = flags.DEFINE_string("picture", None, "Where to write it, as PNG.")

_ROWS, _COLUMNS = 256, 128  # of a device


def write_number(x, o, block):
  """On every core: its number into its share of the rows."""
  del x
  worker = 0
  for axis in ("device", "core", *_subcore_axis()):
    worker = worker * jax.lax.axis_size(axis) + jax.lax.axis_index(axis)
  first = (worker % (_ROWS // block.shape[0])) * block.shape[0]

  def fill(row, carry):
    lanes = 8 if _subcore_axis() else _COLUMNS
    for column in range(0, _COLUMNS, lanes):
      block[row, column : column + lanes] = jnp.full((lanes,), worker)
    return carry

  jax.lax.fori_loop(0, block.shape[0], fill, 0)
  pltpu.sync_copy(block, o.at[pl.ds(first, block.shape[0])])


def _subcore_axis():
  try:
    jax.lax.axis_size("subcore")
    return ("subcore",)
  except NameError:
    return ()


def numbers(mesh, core_mesh):
  """int32[devices * rows, columns]: who wrote each number."""
  workers = 1
  for size in core_mesh.shape.values():
    workers *= size
  nobody = jax.device_put(
      np.full((mesh.size * _ROWS, _COLUMNS), -1, np.int32),
      jax.sharding.NamedSharding(mesh, running.ROWS),
  )
  return pallas.kernel(
      write_number,
      core_mesh,
      [pltpu.VMEM((_ROWS // workers, _COLUMNS), jnp.int32)],
      running.ROWS,
      running.ROWS,
      mesh=mesh,
  )(nobody)


def draw(mesh, path):
  import matplotlib  # pylint: disable=g-import-not-at-top

  matplotlib.use("Agg")
  import matplotlib.pyplot as plt  # pylint: disable=g-import-not-at-top

  kinds = (
      ("TensorCores", pallas.tensor_core_mesh(chip="v5p"), ("core",)),
      (
          "vector subcores of the SparseCores",
          pallas.vector_subcore_mesh(chip="v5p"),
          ("SparseCore", "subcore"),
      ),
  )
  figure, axes = plt.subplots(1, 2, figsize=(9, 5), sharey=True)
  for axis, (title, core_mesh, names) in zip(axes, kinds):
    who = np.asarray(numbers(mesh, core_mesh))
    sizes = tuple(core_mesh.shape.values())
    num_cores, num_subcores = sizes[0], (sizes + (1,))[1]
    device, rest = np.divmod(who, num_cores * num_subcores)
    core, subcore = np.divmod(rest, num_subcores)
    # A colour for each core, light to dark along its subcores.
    colors = plt.get_cmap("tab10")(core)[..., :3]
    shade = 1 - 0.55 * subcore[..., None] / max(num_subcores - 1, 1)
    axis.imshow(colors * shade, aspect="auto", interpolation="nearest")
    for i in range(mesh.size):
      axis.axhline(i * _ROWS - 0.5, color="black", linewidth=1.5)
      for c in range(num_cores):
        middle = i * _ROWS + (c + 0.5) * _ROWS / num_cores
        text = f"device {device[int(middle), 0]}, {names[0]} {c}"
        if num_subcores > 1:
          text += f", {names[1]}s 0 to {num_subcores - 1}"
        axis.text(
            _COLUMNS / 2,
            middle,
            text,
            ha="center",
            va="center",
            color="white",
            fontsize=8,
        )
    axis.set_title(f"{len(np.unique(who))} {title}")
    axis.set_xlabel("column")
  axes[0].set_ylabel("row")
  figure.suptitle("Who wrote which rows, on four devices of a v5p (emulated)")
  figure.tight_layout()
  figure.savefig(path, dpi=90)


def main(_):
  mesh = jax.make_mesh((jax.device_count(),), ("device",))
  if _PICTURE.value:
    draw(mesh, _PICTURE.value)
    print(f"wrote {_PICTURE.value}")
  who = np.asarray(numbers(mesh, pallas.vector_subcore_mesh(chip="v5p")))
  print(f"{len(np.unique(who))} subcores wrote {who.shape[0]} rows")


if __name__ == "__main__":
  app.run(main)
