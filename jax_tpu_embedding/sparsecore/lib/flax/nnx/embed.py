# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""An NNX layer that looks embeddings up and trains their tables.

class Model(nnx.Module):

  def __init__(self, feature_specs, mesh, rngs):
    self.embed = SparseCoreEmbed(feature_specs, mesh=mesh, rngs=rngs)
    self.dense = nnx.Linear(64, 1, rngs=rngs)

  def __call__(self, ids):
    return self.dense(self.embed(ids)["words"])

optimizer = PartitionedOptimizer(model, optax.adam(1e-3))

@functools.partial(nnx.jit, donate_argnums=(0, 1))
def train_step(model, optimizer, ids):
  loss, grads = nnx.value_and_grad(loss_fn, allow_int=True)(model, ids)
  optimizer.update(model, grads)
  return loss
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from typing import Literal

from flax import nnx
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _configured_layer
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _devices
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookup_config
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookups
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _raw_ids
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _seal
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _table_state
from jax_tpu_embedding.sparsecore.lib.flax.nnx import _embedding_variables
from jax_tpu_embedding.sparsecore.lib.flax.nnx import _partitioned_optimizer
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

Nested = embedding.Nested
EmbeddingLookupInput = embedding.PreprocessedInput

EmbeddingVariablesParam = _embedding_variables.EmbeddingVariablesParam
is_embedding_variables = _embedding_variables.is_embedding_variables
is_non_embedding_variables = _embedding_variables.is_non_embedding_variables
get_named_sharding = _embedding_variables.get_named_sharding
PartitionedOptimizer = _partitioned_optimizer.PartitionedOptimizer
on_every_device = _devices.on_every_device


class SparseCoreEmbed(_configured_layer.ConfiguredLayer, nnx.Module):
  """Looks ids up; the backward pass runs the optimizers of the tables.

  The tables have one of two forms.

  "param": `embedding_table` is an EmbeddingVariablesParam, and its "gradient"
  is the new tables and slots, which PartitionedOptimizer puts into the model;
  in place, if the model is donated. They have to replace the old ones as they
  are. A second such variable, `update_seal`, is replaced with them; a lookup
  after anything else was done with such gradients raises (on TPU and GPU, it
  gives NaN). The tables of a layer that the loss does not use stay as they are.

  "ref": `embedding_table` is a dict with jax.Refs, which the backward pass
  updates in place. There is no gradient to handle wrongly, any nnx.Optimizer
  will do, and each lookup is an update of its own: a layer that is called
  twice makes two steps. `update_anchor` is always zero and so is its gradient:
  it is what makes JAX run the backward pass. A model with refs cannot be made
  inside nnx.jit, go through nnx.scan (jax.lax.scan over what nnx.split returned
  works) or be donated (there is no need to), which raises; and nnx.clone does
  not copy them. Beside the table and slots of a stack is its `state`: the
  number of its updates, and where its tables are. In the modes without graphs (graph=False, graph_updates=False)
  JAX 0.12 does not differentiate by a model with refs either: split off its
  nnx.Params, and differentiate by these.

  Calling the layer without differentiating only reads, and needs no slots: the
  `slot` of variables may then be an empty tuple.
  """

  def __init__(
      self,
      feature_specs: Nested[embedding_spec.FeatureSpec],
      sharding_axis: str | tuple[str, ...] = _devices.DEFAULT_AXIS,
      mesh: jax.sharding.Mesh | None = None,
      rngs: nnx.Rngs | None = None,
      *,
      enable_minibatching: bool = False,
      table_sharding_strategy: str = "MOD",
      num_sc_per_device: int = -1,
      tables: Literal["auto", "param", "ref"] = "auto",
      activation_dtype: jax.typing.DTypeLike = jnp.float32,
      feature_stacking_strategy: str = "SPLIT_THEN_STACK",
      frozen: Collection[str] = (),
  ) -> None:
    """Initializes tables and slots on their devices.

    Args:
      feature_specs: the features, any tree. Tables that are in no stack yet are
        prepared, in place, each alone.
      sharding_axis: the axis of `mesh` that rows of tables and batches are
        split over, or several, the first one outermost. Devices along other
        axes have copies. The default stands for all axes of a mesh that has
        none of this name.
      mesh: axes may be of any type. None: that of jax.set_mesh, or else one
        axis over all devices.
      rngs: the stream "params" gives the key of the tables. It has a default
        only because what is before it has one.
      enable_minibatching: whether preprocessing may split a batch. Raw ids
        never need it.
      table_sharding_strategy: "MOD".
      num_sc_per_device: if not positive, that of the hardware; where
        SparseCores are emulated, what the specs were prepared for.
      tables: the form of the tables; "auto" is "param", and warns: "ref" will be
        the default.
      activation_dtype: of the activations; sums and gradients of rows are
        float32 in any case.
      feature_stacking_strategy: that of the preprocessing.
      frozen: names of tables that are looked up and never updated, all or none
        of a stack. The attribute may be changed. With tables="ref", stacks
        whose variables are arrays in place of jax.Refs are so, too.

    Raises:
      ValueError: if `tables` is another word, the mesh lacks the axis, the
        specs were prepared for other devices, a part of a stack is frozen, or
        activations are not floats.
      TypeError: if `rngs` has no such stream, or an argument is something else.
    """
    if not hasattr(rngs, "params"):
      raise TypeError(
          "SparseCoreEmbed: rngs must be an nnx.Rngs with the stream 'params' or"
          f" a default, for the key of the tables, got {rngs!r}. Pass"
          " rngs=nnx.Rngs(seed)."
      )
    _configured_layer.check_fields(tables, activation_dtype)
    if tables == "auto":
      _seal.warn_of_default()
    config = _devices.lookup_config(
        feature_specs,
        mesh,
        sharding_axis,
        num_sc_per_device,
        frozen=frozen,
    )
    features, tree = jax.tree.flatten(feature_specs)
    # NNX compares what is static, to know which program to run.
    self._features = nnx.static(tuple(features))
    self._tree = nnx.static(tree)
    self.sharding_axis = nnx.static(config.sharding_axis)
    self.mesh = nnx.static(config.mesh)
    self.num_sc_per_device = config.num_sc_per_device
    self.enable_minibatching = enable_minibatching
    self.table_sharding_strategy = table_sharding_strategy
    self.activation_dtype = jnp.dtype(activation_dtype)
    self.feature_stacking_strategy = feature_stacking_strategy
    self.frozen = nnx.static(tuple(frozen))

    by_rows = jax.sharding.NamedSharding(config.mesh, config.table_partition)
    everywhere = by_rows.update(spec=jax.sharding.PartitionSpec())
    if tables == "ref":
      # Not as nnx.Variables: nnx.grad copies those that are not differentiated,
      # and the update is lost with the copy.
      self.embedding_table = nnx.data(_lookups.init_refs(config, rngs.params()))
      self.update_anchor = EmbeddingVariablesParam(
          # Beside the Refs, where the results of a step with them are.
          _devices.on_every_device(
              jnp.zeros((), jnp.float32), config.mesh, config.sharding_axis
          ),
          embedding_sharding=everywhere,
      )
    else:
      variables = _lookups.init(config, rngs.params())
      self.embedding_table = EmbeddingVariablesParam(
          variables,
          embedding_sharding=tuple(
              (name, by_rows.update(spec=spec))
              for name, spec in config.partition_tables(variables).items()
          )
          if config.replicated_stacks
          else by_rows,
      )
      self.update_seal = EmbeddingVariablesParam(
          _lookups.initial_seal(config), embedding_sharding=everywhere
      )

  @property
  def feature_specs(self) -> Nested[embedding_spec.FeatureSpec]:
    """The features; the tree is a copy, its leaves are not."""
    return jax.tree.unflatten(self._tree, self._features)

  def table_variables(self) -> dict[str, Any]:
    """The tables as lib/checkpoint takes them, whichever form they have.

    Returns:
      stack name -> table, slot and state: the arrays or jax.Refs of the layer,
      and the count of updates, beside where its tables are.
    """
    if not isinstance(self.embedding_table, EmbeddingVariablesParam):
      return self.embedding_table
    variables = self.embedding_table.get_value()
    states = _table_state.initial(self._config())
    seal = _seal_of(self)
    count = None if seal is None else _seal.num_updates(seal)
    for state in states.values():
      state[0] = 0 if count is None else count
    return {
        name: _table_state.TableVariables(v.table, v.slot, states[name])
        for name, v in variables.items()
    }

  def set_table_variables(self, variables: dict[str, Any]) -> None:
    """Puts tables into the layer: what restore_into made of the above.

    Args:
      variables: as of table_variables. Where those of the layer are jax.Refs,
        they have been changed in place.
    """
    if not isinstance(self.embedding_table, EmbeddingVariablesParam):
      return
    self.embedding_table.set_value(
        {
            name: embedding.EmbeddingVariables(v.table, v.slot)
            for name, v in variables.items()
        }
    )
    if _seal_of(self) is not None:
      count = max(int(v.state[0]) for v in variables.values())
      self.update_seal.set_value(_seal.restored(_seal_of(self), count))

  def __call__(
      self,
      inputs: EmbeddingLookupInput | Nested[Any],
      step: jax.typing.ArrayLike | None = None,
      *,
      weights: Nested[jax.typing.ArrayLike] | None = None,
      gradient_scale: jax.typing.ArrayLike | None = None,
  ) -> Nested[jax.Array]:
    """Looks a batch up, see embedding_lookup."""
    return embedding_lookup(
        self, inputs, step, weights=weights, gradient_scale=gradient_scale
    )

  def _read_inputs(
      self, inputs: Any, weights: Any | None
  ) -> tuple[
      _lookup_config.LookupConfig, EmbeddingLookupInput | _raw_ids.RawIds
  ]:
    """The config for inputs, and these, preprocessed or checked."""
    preprocessed = _raw_ids.as_preprocessed(inputs, weights, self.feature_specs)
    if preprocessed is not None:
      return self._config(), preprocessed
    config = self._config(inputs)
    return config, _raw_ids.read(config, inputs, weights)


def embedding_lookup(
    layer: SparseCoreEmbed,
    inputs: EmbeddingLookupInput | Nested[Any],
    step: jax.typing.ArrayLike | None = None,
    *,
    weights: Nested[jax.typing.ArrayLike] | None = None,
    gradient_scale: jax.typing.ArrayLike | None = None,
) -> Nested[jax.Array]:
  """Looks a batch up; differentiating the result updates the tables.

  Args:
    layer: the layer.
    inputs: what preprocess_sparse_dense_matmul_input returned, as global
      arrays; or the tree of the layer's features with raw ids, which are
      converted inside the program: for each feature an integer array or a pair
      (values, row_splits); see _raw_ids.read.
    step: the training step, from 0, for learning rates that are schedules, the
      bias correction of Adam and the like. Default: the number of updates of
      the tables so far, which is counted beside them.
    weights: with raw ids, a weight per id, or None for ones.
    gradient_scale: what the loss was multiplied by, a number. Gradients are
      divided by it before the optimizer of the tables sees them.

  Returns:
    The tree of the layer's features with activations [*output_shape] of its
    activation_dtype, split as its data_partition says.

  Raises:
    ValueError: if inputs do not fit the specs, weights are given with
      preprocessed inputs, or a number is not possible.
  """
  _configured_layer.check_numbers(step, gradient_scale)
  config, inputs = layer._read_inputs(inputs, weights)  # pylint: disable=protected-access
  table = layer.embedding_table
  if isinstance(table, EmbeddingVariablesParam):
    # In modules that nnx.bridge made for Linen it is a State, and no dict.
    activations = _lookups.lookup_returning_tables(
        config, dict(table.get_value()), _seal_of(layer), inputs, step
    )
  else:
    anchor = layer.update_anchor.get_value()
    activations = _lookups.lookup_updating_refs(
        config, anchor, inputs, table, step
    )
  if gradient_scale is not None:
    activations = _lookups.scale_gradients(activations, gradient_scale)
  return jax.tree.map(lambda x: x.astype(layer.activation_dtype), activations)


def embedding_lookup_bwd(res: Any, g: Any) -> tuple[Any, Any, Any]:
  """The backward pass alone, for programs with one of their own.

  Args:
    res: (layer, inputs, step), what the lookup was called with. The layer has
      the form "param".
    g: ((layer's gradients, inputs' and step's), gradients of activations), as
      nnx.custom_vjp has them. The gradients of the layer are its state; the
      entries "embedding_table" and "update_seal" are changed.

  Returns:
    The first of `g`, with the new tables as the gradient of tables.

  Raises:
    ValueError: if the layer has the form "ref", or inputs do not fit the specs.
  """
  layer, inputs, step = res
  if not isinstance(layer.embedding_table, EmbeddingVariablesParam):
    raise ValueError(
        "embedding_lookup_bwd returns new tables, and those of this layer are"
        " jax.Refs, which its lookups update themselves. Make the layer with"
        " tables='param'."
    )
  (layer_g, inputs_g, step_g), activations_g = g
  config, inputs = layer._read_inputs(inputs, None)  # pylint: disable=protected-access
  inputs = _raw_ids.convert(config, inputs)
  variables = dict(layer.embedding_table.get_value())
  tables, seal = _lookups.update_sealed(
      config,
      inputs,
      (variables, _seal_of(layer)),
      activations_g,
      has_failed=None,
      step=step,
  )
  layer_g["embedding_table"].set_value(tables)
  if seal is not None:
    layer_g["update_seal"].set_value(seal)
  return layer_g, inputs_g, step_g


def _seal_of(layer: SparseCoreEmbed) -> jax.Array | None:
  """The seal of the tables; None if they were made without one."""
  seal = getattr(layer, _seal.NAME, None)
  return None if seal is None else seal.get_value()
