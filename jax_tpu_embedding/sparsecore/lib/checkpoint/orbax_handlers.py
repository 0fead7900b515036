# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables as an item of orbax, beside dense state in the same step directory.

    checkpointer.save_checkpointables_async(
        step, {"state": dense, "tables": Tables(variables, feature_specs)})
    loaded = checkpointer.load_checkpointables(
        step, {"tables": AbstractTables(feature_specs, sharding)})

Importing this module registers the handler with orbax v1, and TablesSave and
TablesRestore with the CheckpointManager of orbax v0. An item without this
package is read by orbax's own handler: {table: {"table": .., "slot": {..}}}.

One job at a time may save to a path or a step, and the program has to see to
it: orbax removes what another save has in the temporary directory of that path
before it asks this handler. checkpoint.save keeps other jobs out.
"""

from __future__ import annotations

from collections.abc import Awaitable
from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures
import dataclasses
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _restore
from jax_tpu_embedding.sparsecore.lib.checkpoint import _save
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
import orbax.checkpoint as ocp_v0
from orbax.checkpoint import v1 as ocp

# Of network file systems too.
_DIRECTORY_TIMEOUT_SECONDS = 300


class Tables:
  """Variables of tables, to be saved.

  Args:
    variables: {stack name: EmbeddingVariables}.
    feature_specs: what they were made for.
    **options: those of checkpoint.save.

  Raises:
    ValueError: variables and specs do not fit each other.
  """

  def __init__(
      self, variables: Mapping[str, Any], feature_specs: Any, **options: Any
  ):
    self.save = _save.plan(variables, feature_specs, **options)

  @classmethod
  def from_rows(cls, save: _save.Save) -> Tables:
    """Those of any other source of rows."""
    tables = cls.__new__(cls)
    tables.save = save
    return tables


@dataclasses.dataclass(frozen=True)
class AbstractTables:
  """What to restore tables to: as the arguments of checkpoint.restore.

  With `variables` as those of checkpoint.restore_into, and no sharding.
  """

  feature_specs: Any
  sharding: jax.sharding.NamedSharding | None = None
  _: dataclasses.KW_ONLY
  variables: Mapping[str, Any] | None = None
  key: jax.Array | None = None
  num_sc_per_device: int | None = None
  tables: Sequence[str] | None = None
  names: Mapping[str, str] | None = None
  policy: _restore.Policies = _restore.RestorePolicy()

  def __post_init__(self):
    if (self.sharding is None) == (self.variables is None):
      given = "neither" if self.sharding is None else "both"
      raise ValueError(
          "AbstractTables: pass either sharding, to make variables, or"
          f" variables, to restore into them, got {given}."
      )

  # To restore is to ask for transfers, whatever a program forbids around it.
  @jax.transfer_guard("allow")
  def restore(self, path: str) -> dict[str, Any]:
    """The variables with what is in a checkpoint, or in its item."""
    directory, saved = _tables_json.read(path)
    restores = _restore.plan(
        saved,
        _restore.specs_of(self.feature_specs),
        tables=self.tables,
        names=self.names,
        policy=self.policy,
    )
    sources = _restore.open_sources(directory, saved, restores)
    variables = self.variables
    if variables is None:
      variables = _restore.make_variables(
          self.feature_specs,
          restores,
          self.sharding,
          self.key,
          self.num_sc_per_device,
      )
    return _restore.fill(
        variables,
        self.feature_specs,
        restores,
        sources,
        updates={
            name: saved.tables[restore.source].updates
            for name, restore in restores.items()
        },
        num_sc_per_device=self.num_sc_per_device,
    )


class TablesHandler(ocp.handlers.CheckpointableHandler):
  """Saves and loads Tables for orbax v1."""

  async def save(
      self, directory: Any, checkpointable: Tables
  ) -> Awaitable[None]:
    path = await directory.await_creation()
    # Programs on devices run on the caller's thread, and nowhere else.
    writing = checkpointable.save.begin(str(path))

    async def finish():
      writing.finish()

    return finish()

  async def load(
      self,
      directory: Any,
      abstract_checkpointable: AbstractTables | None = None,
  ) -> Awaitable[dict[str, Any]]:
    if abstract_checkpointable is None:
      raise ValueError(
          "Tables are loaded for devices: pass {'tables':"
          " AbstractTables(feature_specs, sharding)}."
      )
    variables = abstract_checkpointable.restore(str(directory))

    async def loaded():
      return variables

    return loaded()

  async def metadata(self, directory: Any) -> _tables_json.SavedTables:
    return _tables_json.read(str(directory))[1]

  def is_handleable(self, checkpointable: Any) -> bool:
    return isinstance(checkpointable, Tables)

  def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
    return isinstance(abstract_checkpointable, AbstractTables)


ocp.handlers.register_handler(TablesHandler)


class TablesCheckpointHandler(ocp_v0.AsyncCheckpointHandler):
  """Saves and restores tables for the CheckpointManager of orbax v0."""

  async def async_save(
      self, directory: Any, args: TablesSave
  ) -> list[concurrent.futures.Future]:
    _wait_for_directories(str(directory))
    writing = args.tables.save.begin(str(directory))
    pool = concurrent.futures.ThreadPoolExecutor(1)
    future = pool.submit(writing.finish)
    pool.shutdown(wait=False)
    return [future]

  def save(self, directory: Any, args: TablesSave) -> None:
    args.tables.save.begin(str(directory)).finish()

  def restore(self, directory: Any, args: TablesRestore) -> dict[str, Any]:
    return args.tables.restore(str(directory))

  def metadata(self, directory: Any) -> _tables_json.SavedTables:
    return _tables_json.read(str(directory))[1]


def _wait_for_directories(path: str) -> None:
  """Waits until the threads of orbax v0 that make directories say so.

  A directory that is there may be that of a save that was killed: temporary
  names are the same in every save of a step, and orbax removes it first.
  """

  async def nothing():
    pass

  try:
    ocp_v0.future.CommitFutureAwaitingContractedSignals(
        nothing(), timeout_secs=_DIRECTORY_TIMEOUT_SECONDS
    ).result()
  except (TimeoutError, jax.errors.JaxRuntimeError) as error:
    raise TimeoutError(
        f"orbax did not make the directory {path} within"
        f" {_DIRECTORY_TIMEOUT_SECONDS} seconds: its log has the reason."
    ) from error


@ocp_v0.args.register_with_handler(TablesCheckpointHandler, for_save=True)
@dataclasses.dataclass
class TablesSave(ocp_v0.args.CheckpointArgs):
  """What a CheckpointManager is to save."""

  tables: Tables


@ocp_v0.args.register_with_handler(TablesCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class TablesRestore(ocp_v0.args.CheckpointArgs):
  """What a CheckpointManager is to restore."""

  tables: AbstractTables
