# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A Linen layer that looks embeddings up and trains their tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import Literal

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _configured_layer
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _devices
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookup_config
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookups
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _raw_ids
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _seal
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _table_state
from jax_tpu_embedding.sparsecore.lib.flax.linen import _table_collection
from jax_tpu_embedding.sparsecore.lib.flax.linen import _table_parameters
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _partial_shapes

Nested = embedding.Nested
EmbeddingLookupInput = embedding.PreprocessedInput
LogicalNames = _table_parameters.LogicalNames
WithSparseCoreLayout = _table_parameters.WithSparseCoreLayout
with_sparsecore_layout = _table_parameters.with_sparsecore_layout
on_every_device = _devices.on_every_device

# The parameter of a layer that owns its tables.
EMBEDDING_PARAM_NAME = "sc_embedding_variables"
EMBEDDING_COLLECTION = _table_collection.EMBEDDING_COLLECTION
# The parameter that guards EMBEDDING_PARAM_NAME, see _seal.py: a dict with that
# key, so that whatever treats tables by their path treats it the same way.
SEAL_PARAM_NAME = _seal.NAME


class SparseCoreEmbed(_configured_layer.ConfiguredLayer, nn.Module):
  """Looks ids up; the backward pass runs the optimizers of the tables.

  Tables are in one of two places, `tables` says which.

  "ref": in mutable arrays that create_embedding_variables makes, and that are
  passed to `model.apply` as the collection "embedding", whatever the place of
  the layer in the model. Differentiating the loss by the model's parameters
  updates them in place; applying the model without differentiating only reads
  them.

      tables = SparseCoreEmbed.create_embedding_variables(feature_specs, key)
      params = model.init(key, ids)["params"]
      model.apply({"params": params, "embedding": tables}, ids)

  The layer then owns one scalar parameter, "update_anchor". It is always zero
  and so is its gradient: it is what makes JAX run the layer's backward pass.
  Tables are not updated when the loss is not differentiated by it. Each lookup
  is an update of its own: a layer that is called twice makes two steps.

  "param": in a parameter of the layer, "sc_embedding_variables", with the
  optimizer's slots. Its "gradient" is not a gradient, but the new tables and
  slots, which have to replace the old ones as they are; embed_optimizer.py does
  so. A second parameter, "update_seal", is replaced with them; a lookup after
  anything else was done with such gradients raises (on TPU and GPU, it gives
  NaN).

  "auto": "param" if the layer has a mesh or is called with preprocessed inputs,
  and the model was applied without the collection "embedding"; else "ref". The
  former warns: "ref" will be the default.

  Attributes:
    feature_specs: the features to look up, any tree. Tables that are in no
      stack yet are prepared by the layer, each alone.
    sharding_axis: the mesh axis that tables and batches are split over, or a
      tuple of several, the first one outermost. The default stands for all
      axes of a mesh that has none of this name.
    mesh: default: that of jax.set_mesh, or else one axis over all devices.
    table_sharding_strategy: "MOD".
    enable_minibatching: whether preprocessing may split a batch. Raw ids never
      need it.
    num_sc_per_device: default: that of the hardware; where SparseCores are
      emulated, what the specs were prepared for.
    tables: where they are, see above.
    activation_dtype: of the activations; sums and gradients of rows are float32
      in any case.
    feature_stacking_strategy: which samples each SparseCore has.
    frozen: names of tables that are looked up and never updated, all or none of
      a stack. With tables="ref", stacks whose variables are arrays in place of
      jax.Refs are so, too.
  """

  feature_specs: Nested[embedding_spec.FeatureSpec]
  sharding_axis: str | tuple[str, ...] = _devices.DEFAULT_AXIS
  mesh: jax.sharding.Mesh | None = None
  table_sharding_strategy: str = "MOD"
  enable_minibatching: bool = False
  num_sc_per_device: int = -1
  tables: Literal["auto", "ref", "param"] = "auto"
  activation_dtype: jax.typing.DTypeLike = jnp.float32
  feature_stacking_strategy: str = "SPLIT_THEN_STACK"
  frozen: tuple[str, ...] = ()

  def __post_init__(self):
    _configured_layer.check_fields(self.tables, self.activation_dtype)
    super().__post_init__()

  @property
  def embedding_table(self) -> Mapping[str, Any] | None:
    """The tables and slots, if they are a parameter and there is one."""
    return nn.meta.unbox(self.get_variable("params", EMBEDDING_PARAM_NAME))

  @nn.nowrap
  def preprocess_inputs(
      self,
      step: int,
      features: Any,
      features_weights: Any | None,
      all_reduce_interface: Any | None = None,
  ) -> embedding.PreprocessedInput:
    """Converts this process's part of a batch, on the host.

    In one process and without minibatching, a batch beyond the limits of its
    stacks raises them in place, and programs are compiled for them anew. Else
    it is an error: use AdaptiveLimits.

    Needs no `apply`. See embedding.preprocess_sparse_dense_matmul_input for the
    forms of features and weights and the errors.

    Args:
      step: names the batch in reductions between hosts.
      features: ids of every feature.
      features_weights: weights of every id, or None for ones.
      all_reduce_interface: how hosts agree on minibatches.
    """
    _partial_shapes.check_known(self.feature_specs)
    config = self._config()
    local_mesh = config.mesh.local_mesh
    num_local = _lookup_config.num_devices_along(
        local_mesh, config.sharding_axis
    )
    # Several processes, and several passes, need an agreement on limits.
    grows = num_local == config.num_shards and not self.enable_minibatching
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        features,
        features_weights,
        config.feature_specs,
        num_local,
        config.num_shards,
        num_sc_per_device=config.num_sc_per_device,
        sharding_strategy=self.table_sharding_strategy,
        batch_number=step,
        enable_minibatching=self.enable_minibatching,
        all_reduce_interface=all_reduce_interface,
        feature_stacking_strategy=self.feature_stacking_strategy,
        limits="grow" if grows else "specs",
    )
    return inputs

  @nn.compact
  def __call__(
      self,
      embedding_lookup_inputs: EmbeddingLookupInput | Nested[Any],
      weights: Nested[Any] | None = None,
      *,
      step: jax.typing.ArrayLike | None = None,
      gradient_scale: jax.typing.ArrayLike | None = None,
  ) -> Nested[jax.Array]:
    """Looks up a batch.

    Args:
      embedding_lookup_inputs: what preprocessing returned, or the tree of
        `feature_specs` with raw ids, which are converted inside the program:
        for each feature an integer array or a pair (values, row_splits); see
        _raw_ids.read. A feature with output_shape (*lead, D) takes ids of
        shape `lead`, one per vector, or `(*lead, valency)`, pooled by the
        table's combiner.
      weights: with raw ids, a weight per id, or None for ones.
      step: the training step, from 0, for learning rates that are schedules,
        the bias correction of Adam and the like. Default: the number of updates
        of the tables so far, which is counted beside them.
      gradient_scale: what the loss was multiplied by, a number. Gradients are
        divided by it before the optimizer of the tables sees them.

    Returns:
      The tree of `feature_specs` with activations [*output_shape] of
      `activation_dtype`. While the model is initialized they are zeros where
      there are no tables to look up, in the collection "embedding", and with
      several processes. To have the parameters and an output in one call, apply
      the model to {"embedding": tables} with rngs and mutable=["params"].

    Raises:
      ValueError: if inputs do not fit the specs, the collection "embedding" is
        missing, there are tables in both places, or a number is not possible.
    """
    _configured_layer.check_numbers(step, gradient_scale)
    inputs = _raw_ids.as_preprocessed(
        embedding_lookup_inputs, weights, self.feature_specs
    )
    is_preprocessed, ids = inputs is not None, None
    if not is_preprocessed:
      ids = flax.core.unfreeze(embedding_lookup_inputs)
    config = self._config(ids)
    stacks = embedding.get_stacked_table_specs(config.feature_specs)
    collection = _table_collection.find(self.scope, stacks)
    has_parameter = self._has_parameter(is_preprocessed, collection)
    if has_parameter:
      variables, seal = self._parameters(config)
    else:
      anchor = self.param(
          "update_anchor", nn.initializers.zeros, (), jnp.float32
      )
    # Programs of several processes may initialize with one process's part of
    # preprocessed inputs, which is no batch that can be looked up.
    if self.is_initializing() and not (
        has_parameter and jax.process_count() == 1
    ):
      return _zero_activations(config, inputs, self.activation_dtype)

    if not is_preprocessed:
      inputs = _raw_ids.read(config, ids, weights)
    if has_parameter:
      activations = _lookups.lookup_returning_tables(
          config, variables, seal, inputs, step
      )
    else:
      refs = _table_collection.select(collection, stacks, self.path)
      activations = _lookups.lookup_updating_refs(
          config, anchor, inputs, refs, step
      )
    if gradient_scale is not None:
      activations = _lookups.scale_gradients(activations, gradient_scale)
    return jax.tree.map(lambda x: x.astype(self.activation_dtype), activations)

  def apply_gradient(
      self,
      gradients: Nested[jax.Array],
      embedding_lookup_inputs: EmbeddingLookupInput,
      *,
      step: jax.typing.ArrayLike | None = None,
  ) -> dict[str, Any]:
    """The tables and slots of the layer after an update.

    For programs that differentiate by the activations themselves.

    Args:
      gradients: the tree of `feature_specs` with gradients of the activations.
      embedding_lookup_inputs: what the lookup was given, preprocessed.
      step: passed to optimizers and schedules. It is needed where these depend
        on it: what is returned are tables and no count, so that the count of
        "update_seal" knows nothing of such updates.

    Returns:
      The path of the parameter, joined by "/", and its new value.

    Raises:
      ValueError: if the tables are not a parameter of the layer, or an update
        needs a step and there is none.
      TypeError: if the inputs are raw ids.
    """
    variables = self.embedding_table
    if variables is None:
      raise ValueError(
          "apply_gradient updates the parameter"
          f" {EMBEDDING_PARAM_NAME!r}, which the layer does not have. Pass"
          " tables='param'."
      )
    inputs = _raw_ids.as_preprocessed(
        embedding_lookup_inputs, None, self.feature_specs
    )
    if inputs is None:
      raise TypeError(
          "apply_gradient takes what preprocess_inputs returned, got"
          f" {type(embedding_lookup_inputs).__name__}. Raw ids lack their"
          " weights here."
      )
    _configured_layer.check_numbers(step, None)
    config = self._config()
    _table_state.check_step(
        config,
        step,
        " apply_gradient does not go by the count of"
        f" {SEAL_PARAM_NAME!r}, since it does not return a new one.",
    )
    new = _lookups.update(config, gradients, inputs, variables, step)
    return {"/".join((*self.path, EMBEDDING_PARAM_NAME)): new}

  @staticmethod
  def create_embedding_variables(
      feature_specs: Nested[embedding_spec.FeatureSpec],
      rng: jax.Array,
      *,
      sharding_axis: str | tuple[str, ...] = _devices.DEFAULT_AXIS,
      mesh: jax.sharding.Mesh | None = None,
      num_sc_per_device: int = -1,
  ) -> dict[str, _table_state.TableVariables]:
    """Makes the collection "embedding": tables and slots in mutable arrays.

    Specs that are not prepared are prepared, in place and without stacking.

    Args:
      feature_specs: the features, any tree.
      rng: a key.
      sharding_axis: as the layer's, like the rest.
      mesh: default: that of jax.set_mesh, or else one axis over all devices.
      num_sc_per_device: default: as the layer's.

    Returns:
      Stack name -> (table, slot, state), whose leaves are jax.Ref: the first
      two as in EmbeddingVariables, and the state i32[1 + tables], which is the
      number of updates so far and where each table is. Save all of it.
    """
    config = _devices.lookup_config(
        flax.core.unfreeze(feature_specs),
        mesh,
        sharding_axis,
        num_sc_per_device,
    )
    return _lookups.init_refs(config, rng)

  def _has_parameter(self, is_preprocessed: bool, collection: Any) -> bool:
    """Whether the tables are a parameter."""
    has_both = collection is not None and self.has_variable(
        "params", EMBEDDING_PARAM_NAME
    )
    if has_both:
      raise ValueError(
          f"There are tables in the parameter {EMBEDDING_PARAM_NAME!r} and in"
          f" the collection {EMBEDDING_COLLECTION!r}. Initialize the model"
          " with tables='ref' if the layer is to use the collection, or apply"
          " it without one."
      )
    if self.tables != "auto":
      return self.tables == "param"
    is_parameter = collection is None and (
        self.mesh is not None or is_preprocessed
    )
    if is_parameter:
      _seal.warn_of_default()
    return is_parameter

  def _parameters(
      self, config: _lookup_config.LookupConfig
  ) -> tuple[dict[str, embedding.EmbeddingVariables], jax.Array | None]:
    """The tables and their seal; made if the layer is initialized."""
    if self.is_initializing():
      names = tuple(config.table_partition)
      self.param(
          EMBEDDING_PARAM_NAME,
          with_sparsecore_layout(
              lambda rng: _lookups.init(config, rng),
              names,
              config.mesh,
              config.replicated_stacks,
          ),
      )
      self.param(
          SEAL_PARAM_NAME,
          lambda unused_rng: {
              EMBEDDING_PARAM_NAME: _lookups.initial_seal(config)
          },
      )
    # Not self.param, which would initialize the tables once more, in the
    # abstract, to compare shapes.
    variables = self.embedding_table
    if variables is None:
      raise ValueError(
          "The model was applied without the parameter"
          f" {EMBEDDING_PARAM_NAME!r} of the layer {'/'.join(self.path)!r}."
          " Initialize the model with tables='param', or with tables='ref' to"
          f" use the collection {EMBEDDING_COLLECTION!r}."
      )
    # Tables that were made elsewhere may come without a seal.
    seal = self.get_variable("params", SEAL_PARAM_NAME, {})
    return dict(variables), seal.get(EMBEDDING_PARAM_NAME)


def _zero_activations(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput | None,
    dtype: jax.typing.DTypeLike,
) -> Nested[jax.Array]:
  """What the layer returns if there is nothing to look up: only shapes."""
  feature_specs = _batch_sizes.of_settings(
      config.feature_specs, inputs and inputs.settings
  )
  return jax.tree.map(
      lambda feature: jnp.zeros(feature.output_shape, dtype), feature_specs
  )
