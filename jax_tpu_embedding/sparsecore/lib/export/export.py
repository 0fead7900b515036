# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables for those who only read them: servers, indexes, other libraries.

    export_tables("/served", variables, feature_specs, encoding="int8")

    publisher = Publisher("/served", feature_specs)
    publisher.publish(variables, step)     # every few minutes of training

    export_lookup("/program", feature_specs)    # ids to activations, with JAX alone

Files have rows in logical order (row = id), as float32, in 16 bits, or as codes
of 8 or 4 bits with a scale and bias per row: docs/reference/served_tables.md.
Rows go from devices or from a checkpoint to files in blocks; never is there a
copy of a table in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import os
from typing import Any

from absl import logging
from jax_tpu_embedding.sparsecore.lib.export import _exported_lookup
from jax_tpu_embedding.sparsecore.lib.export import _full_version
from jax_tpu_embedding.sparsecore.lib.export import _new_version
from jax_tpu_embedding.sparsecore.lib.export import _parts
from jax_tpu_embedding.sparsecore.lib.export import _published
from jax_tpu_embedding.sparsecore.lib.export import _publisher
from jax_tpu_embedding.sparsecore.lib.export import _served_directory
from jax_tpu_embedding.sparsecore.lib.export import _sources
from jax_tpu_embedding.sparsecore.lib.export import _table_files

PublishedTable = _published.PublishedTable
PublishedVersion = _published.PublishedVersion
Publisher = _publisher.Publisher
export_lookup = _exported_lookup.export_lookup


def export_tables(
    directory: str | os.PathLike[str],
    source: Mapping[str, Any] | str | os.PathLike[str],
    feature_specs: Any = None,
    *,
    tables: Sequence[str] | None = None,
    encoding: str | Mapping[str, str] = "float32",
    file_format: str = "safetensors",
    max_file_bytes: int = 4 << 30,
    overwrite: bool = False,
    num_sc_per_device: int | None = None,
) -> PublishedVersion:
  """Writes tables to files: one full version of served tables.

  In a job of several processes, variables are exported by all of them: each
  calls this with the same arguments, and writes the rows that it reads to files
  of its own. It is a collective operation, as saving is, and the directory is on
  a file system that all processes share. A checkpoint is exported by the one
  process that calls this.

  Args:
    directory: a new or empty one; with `overwrite` one that was exported or
      published to, whose readers see the old version until the new one is
      complete, and the new one from then on.
    source: {stack name: EmbeddingVariables}, arrays or jax.Refs, which stay as
      they are; or the path of a checkpoint, and then no device is used.
    feature_specs: what the variables were made for. With a checkpoint they are
      only needed to tell readers of features.
    tables: the names of those to export; default: all.
    encoding: "float32", "bfloat16", "float16", "int8" or "int4", of all tables
      or by table.
    file_format: "safetensors"; "npy", an array per table, or "parquet", columns
      `id` and `embedding`, for other programs.
    max_file_bytes: of a file's rows; a table may have several files, of several
      processes one of each or more. An array of NumPy has one.
    overwrite: whether the directory may have an earlier version.
    num_sc_per_device: of variables; default: what the specs were prepared for.

  Returns:
    What was written, with the largest and the root mean square error of each
    table's values.

  Raises:
    TypeError: tables, encoding or max_file_bytes is of another kind. No file
      was made.
    ValueError: source, specs, tables and encodings do not fit each other, the
      checkpoint has a step that readers refuse, the directory is a URL, or
      something is in it: no file was made. Or rows cannot be encoded (NaN,
      infinity, too large): no version was made.
    RuntimeError: another job writes to the directory.
    CheckpointError: the checkpoint is damaged, or there is none.
    OSError: files cannot be written, or are not seen by all processes. No
      version was made.
    What one of several processes raises, all raise: the others with its number.
  """
  agreement = _new_version.new_agreement(
      is_alone=isinstance(source, (str, os.PathLike))
  )
  with agreement.stage():
    found = _sources.of(
        source, feature_specs, tables, encoding, num_sc_per_device
    )
    _table_files.check_format(file_format, found.tables)
    max_file_bytes = _sources.as_positive("max_file_bytes", max_file_bytes)
  with contextlib.ExitStack() as until_done:
    served = None
    with agreement.stage():
      if agreement.is_first:
        served = _served_directory.ServedDirectory(directory)
        if served.exists() and not overwrite:
          raise ValueError(
              f"{served.path} already has tables. Give another directory, or"
              " pass overwrite=True."
          )
        until_done.enter_context(served.locked())
    version = _new_version.write(
        agreement,
        served,
        found,
        {
            name: _parts.runs_of(found, name, is_one=file_format == "npy")
            for name in found.tables
        },
        functools.partial(
            _full_version.FullTable,
            index=agreement.index,
            file_format=file_format,
            max_file_bytes=max_file_bytes,
        ),
        functools.partial(
            _full_version.manifest,
            kind="full",
            run=os.urandom(16).hex(),
            step=found.step,
            features=found.features,
            **(
                {}
                if file_format == "safetensors"
                else {"file_format": file_format}
            ),
        ),
    )
    with agreement.stage():
      if served is not None:
        try:
          served.remove_others({version.number})
        except OSError as error:
          # The version is there; the next export tries again.
          logging.warning("Old versions stay in %s: %s", served.path, error)
  return version
